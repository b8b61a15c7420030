"""`Case`: one training of the zoo, faulty or healthy; `run_case` trains it.

Keys: ``01-lr-times-100-M`` is fault 1 on base M; ``clean-M`` the base itself; ``clean-22-G`` the
clean run that fault 22 is compared with, where that one needs a variant of the base; ``h09-dcgan``
a healthy training that looks odd.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torchvitals.testing.bases import BASES
from torchvitals.testing.fault import Fault
from torchvitals.testing.faults import FAULTS
from torchvitals.testing.healthy import HEALTHY
from torchvitals.testing.outcome import Outcome
from torchvitals.testing.training import Training


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is to be trained. Which seed is up to the caller."""

    key: str
    base: str | None = None
    fault: type[Fault] | None = None
    """The injected fault; None for healthy cases."""
    variant_of: type[Fault] | None = None
    """The fault whose variant of the base this clean case is."""
    kind: str | None = None
    """The healthy kind."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.fault is None

    @property
    def reference(self) -> str | None:
        """The key of the clean case that a faulty one is compared with."""
        if self.fault is None or self.base is None:
            return None
        if self.fault.variant_of(self.base):
            return f"clean-{self.fault.number:02d}-{self.base}"
        return f"clean-{self.base}"


def _cases() -> dict[str, Case]:
    found = [Case(key=f"clean-{letter}", base=letter) for letter in BASES]
    for fault in FAULTS.values():
        for letter in fault.bases:
            key = f"{fault.number:02d}-{fault.id}-{letter}"
            found.append(Case(key=key, base=letter, fault=fault))
            if fault.variant_of(letter):
                clean = f"clean-{fault.number:02d}-{letter}"
                found.append(Case(key=clean, base=letter, variant_of=fault))
    found += [Case(key=kind, kind=kind) for kind in HEALTHY]
    return {case.key: case for case in found}


CASES = _cases()
"""All cases by key: clean, faulty, healthy."""


def run_case(
    case: Case | str,
    seed: int,
    folder: str | Path,
    *,
    steps: int | None = None,
    change: Mapping[str, Any] | None = None,
) -> Outcome:
    """Train a case, watched; the run file lies in `folder`.

    Args:
        case: one of `CASES`, or its key.
        seed: of data, weights, batches; it also decides width, depth, rate, batch size and dose.
        folder: the run's folder; must not be there yet.
        steps: shorter than the case's own number, for tests; the data is smaller then too.
        change: a finding's recommended change, applied to the faulty settings.
    """
    if isinstance(case, str):
        case = CASES[case]
    begun = time.perf_counter()
    if case.kind is not None:
        torch.manual_seed(seed)
        outcome = HEALTHY[case.kind](seed, Path(folder), steps)
        return replace(outcome, case=case.key, seconds=time.perf_counter() - begun)
    assert case.base is not None
    base = BASES[case.base]
    settings = base.settings(seed)
    if steps is not None:
        settings.steps, settings.eval_every = steps, max(1, steps // 2)
        settings.warmup_steps = min(settings.warmup_steps, steps // 4)
        settings.num_samples = min(settings.num_samples, 1000)
    varied = case.fault or case.variant_of
    for name, value in (varied.variant_of(case.base) if varied else {}).items():
        setattr(settings, name, value)
    fault = (case.fault or Fault)(seed)
    fault.settings(settings)
    changed = fault.apply(settings, change) if change else []
    outcome = Training(base, settings, fault).run(Path(folder), case.key)
    return replace(outcome, changed=tuple(changed))
