"""`Judging`: the half of `Guard` that looks and judges; `acting.py` has the half that acts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.guard import on_device as d
from torchvitals.guard.agreement import Agreement
from torchvitals.guard.on_device import OnDevice, can_skip_itself
from torchvitals.guard.policy import CLIP, WARN, Policy
from torchvitals.guard.rates import CHANGED, RAISED
from torchvitals.guard.rules import AdaGC, Rule
from torchvitals.guard.signals import Reading
from torchvitals.guard.snapshots import Snapshots
from torchvitals.guard.verdict import DIVERGENCE, NON_FINITE, SPIKE, Verdict
from torchvitals.guard.ward import Ward, to_host

Floats: TypeAlias = NDArray[np.float64]

FIXED = 5
"""Numbers that each rank tells the others, before those of single tensors."""
PENDING = 8
"""Decisions on a device that the host may be behind, at most."""


@dataclass(slots=True)
class Case:
    """A verdict, and what acting on it needs."""

    verdict: Verdict
    grads: Sequence[Tensor] = ()
    factor: float | None = None
    """Scales all gradients down to the rule's target."""
    factors: Floats | None = None
    """Scales each one."""
    on_device: bool = False
    """The optimizer skips by itself."""


class Seen(NamedTuple):
    """The numbers of a step that all ranks agree on."""

    norm: float
    loss: float | None
    """Of this step."""
    before: float
    """Of the last one, told after it; NaN where it was not."""
    bad_ranks: list[int]
    """Whose own loss is not finite."""
    tensors: Floats
    """Norms of the tensors: this rank's, or all ranks' where the rule needs them."""


@dataclass(slots=True)
class Pending:
    """A decision made on a device that the host has not read yet."""

    ward: Ward
    step: int
    packed: Tensor
    norms: Tensor
    places: list[int]
    event: Any


class Judging:
    """Looks at a step and says what is wrong with it."""

    policy: Policy
    _rule: Rule
    _decide: str
    _snapshots: Snapshots | None

    def __init__(self) -> None:
        self._wards: list[Ward] = []
        self._last: Ward | None = None
        self._agreement = Agreement(wanted=False, timeout_s=1.0)
        self._watches_loss: bool | None = False
        self._pending: list[Pending] = []

    def _decided(self, ward: Ward, case: Case) -> None:
        raise NotImplementedError

    def _scaler_skipped(self, ward: Ward) -> None:
        raise NotImplementedError

    def _step(self, ward: Ward) -> int:
        raise NotImplementedError

    @property
    def _device_can(self) -> bool:
        return OnDevice.serves(self._rule) and self.policy.only_skips

    def _judge(self, ward: Ward) -> None:
        """Judge the step that is about to be made."""
        ward.steps += 1
        ward.hook_ran = True
        self._drain(wait=False)
        ward.was_flagged = ward.flagged
        ward.flagged = ward.skipped = ward.good = False
        self._last = ward
        if ward.skip_next:
            self._pass_over(ward)
            return
        reading = ward.take_reading()
        loss, ward.loss = ward.loss, None
        if not reading.places and not self._agreement.several:
            return  # nothing has a gradient: the optimizer makes no step
        self._look_at_settings(ward, reading)
        if self._on_device(ward, reading):
            self._judge_on_device(ward, reading, loss)
            return
        seen = self._read(ward, reading, loss)
        if seen is None:
            self._scaler_skipped(ward)
            return
        ward.norm = seen.norm
        cases = self._cases(ward, reading, seen)
        for case in cases:
            ward.flagged = True
            self._decided(ward, case)
            if case.verdict.done != WARN:
                break
        if seen.loss is not None and math.isfinite(seen.loss):
            ward.losses.add(seen.loss, good=not ward.flagged)
        if not ward.flagged:
            self._learn(ward, reading, seen)
        elif not ward.skipped and cases[-1].verdict.done == CLIP:
            self._clipped(ward, reading, seen, cases[-1])

    def _trusts_loss(self, ward: Ward) -> bool:
        """Whether a loss that stays up means harm."""
        return ward.losses.positive if self._watches_loss is None else self._watches_loss

    def _pass_over(self, ward: Ward) -> None:
        """The weights were rolled back after these gradients were made."""
        ward.skip_next, ward.skipped = False, True
        ward.reading = ward.loss = None
        ward.aside.take(ward.parameters)

    def _look_at_settings(self, ward: Ward, reading: Reading) -> None:
        """Start baselines anew where the user changed what they stand on."""
        changed = ward.rates.look(ward.optimizer.param_groups)
        if changed == RAISED:
            # Baselines stay: such a rate is a mistake more often than a plan.
            ward.losses.raised()
        elif changed == CHANGED:
            ward.losses.changed()
        if changed == CHANGED or ward.newcomers(reading.places):
            ward.rule.reset()
            if ward.device is not None:
                ward.device.reset()

    def _read(self, ward: Ward, reading: Reading, loss: Any) -> Seen | None:
        """Everything on the host, in one transfer; None: the GradScaler skips this step."""
        scale = getattr(ward.optimizer, "grad_scale", None)
        found = getattr(ward.optimizer, "found_inf", None)
        extras = [1.0 if scale is None else scale, 0.0 if found is None else found]
        late, ward.late = ward.late, []
        extras += [math.nan if loss is None else loss, *late]
        norms, (by, overflow, value, *told) = to_host(reading, extras)
        if overflow:
            return None
        if reading.scale != 1.0:  # read before clipping, where the scaler was asked
            by = reading.scale
        if by != 1.0:
            norms = norms / by
        before = [one for one in told if math.isfinite(one)]
        mean = sum(before) / len(before) if before else math.nan
        seen = self._agree(ward, reading, norms, None if loss is None else value, mean)
        if math.isfinite(seen.before):
            ward.losses.add(seen.before, good=not ward.was_flagged)
        return seen

    def _agree(
        self, ward: Ward, reading: Reading, norms: Floats, loss: float | None, before: float
    ) -> Seen:
        squares = norms * norms
        plain = float(squares.sum())
        if not self._agreement.several:
            bad = [0] if loss is not None and not math.isfinite(loss) else []
            return Seen(math.sqrt(plain), loss, before, bad, norms)
        world = self._agreement.world_size
        weights = 1.0 / world if reading.weights is None else reading.weights
        has = loss is not None
        finite = not has or math.isfinite(loss or 0.0)
        told_now = loss if loss is not None and finite else 0.0
        own = [float((squares * weights).sum()), has, finite, told_now, before]
        every = isinstance(ward.rule, AdaGC)
        if every:
            own += ward.full(reading.places, squares * weights).tolist()
        rows = self._agreement.gather(np.array(own, dtype=np.float64))
        if len(rows) == 1:  # the others are lost
            alone = [] if finite else [self._agreement.rank]
            return Seen(math.sqrt(plain), loss, before, alone, norms)
        bad_ranks = np.flatnonzero(rows[:, 2] == 0).tolist()
        told = rows[rows[:, 1] > 0, 3]
        mean = None if not len(told) else math.nan if bad_ranks else float(told.mean())
        if every:
            norms = np.sqrt(rows[:, FIXED:].sum(axis=0))[np.asarray(reading.places, dtype=np.intp)]
        known = rows[np.isfinite(rows[:, 4]), 4]
        earlier = float(known.mean()) if len(known) else math.nan
        return Seen(math.sqrt(float(rows[:, 0].sum())), mean, earlier, bad_ranks, norms)

    def _cases(self, ward: Ward, reading: Reading, seen: Seen) -> list[Case]:
        """What is wrong, the gravest first."""
        cases: list[Case] = []
        step = self._step(ward)

        def add(
            cause: str, signal: str, rule: str, value: float, limit: float, **more: Any
        ) -> Case:
            stats = ward.losses.stats() if signal == "loss" else ward.rule.stats()
            culprits = more.pop("culprits", None)
            if culprits is None:
                own = ward.culprits(reading.places, seen.tensors)
                culprits = self._agreement.names(own)
            verdict = Verdict(
                step, cause, signal, rule, value, limit, stats, culprits, ward.number, **more
            )
            cases.append(Case(verdict))
            return cases[-1]

        if not math.isfinite(seen.norm):
            add(NON_FINITE, "gradient_norm", "finite", seen.norm, math.nan)
            return cases
        if seen.bad_ranks:
            ranks = [f"rank {rank}" for rank in seen.bad_ranks] if self._agreement.several else []
            add(NON_FINITE, "loss", "finite", math.nan, math.nan, culprits=ranks)
            return cases
        diverged = ward.losses.diverged() if self._trusts_loss(ward) else None
        if diverged is not None:
            level, limit, why = diverged
            add(DIVERGENCE, "loss", "level", level, limit, note=why, culprits=[])
        grads = ward.grads()[1]
        if isinstance(ward.rule, AdaGC):
            norms = ward.full(reading.places, seen.tensors)
            factors = ward.rule.factors(norms)
            if factors is not None and (factors < 1).any():
                own = factors[np.asarray(reading.places, dtype=np.intp)]
                at = int(np.argmin(own))
                worst = [ward.name(reading.places[at])]
                case = add(SPIKE, "tensor_norms", "adagc", 1 / own[at], 1.0, culprits=worst)
                case.grads, case.factors = grads, own
            return cases
        judged = ward.rule.judge(seen.norm)
        if judged.flagged:
            case = add(SPIKE, "gradient_norm", ward.rule.name, seen.norm, judged.threshold)
            case.grads, case.factor = grads, min(judged.target / seen.norm, 1.0)
        if seen.loss is not None and not judged.flagged and self._trusts_loss(ward):
            height = ward.losses.spiked(seen.loss)
            if height is not None:
                add(SPIKE, "loss", "median_mad", seen.loss, height)
        return cases

    def _learn(self, ward: Ward, reading: Reading, seen: Seen) -> None:
        """The step is good: its numbers enter the statistics."""
        ward.good = True
        if isinstance(ward.rule, AdaGC):
            ward.rule.learn_norms(ward.full(reading.places, seen.tensors))
        else:
            ward.rule.learn(seen.norm)
        self._good_step(ward, reading, seen)

    def _good_step(self, ward: Ward, reading: Reading, seen: Seen) -> None:
        ward.learn_usual(reading.places, seen.tensors)
        if self._snapshots is not None and ward.number == 0 and self._snapshots.due(ward.steps):
            self._snapshots.take(ward.steps)

    def _clipped(self, ward: Ward, reading: Reading, seen: Seen, case: Case) -> None:
        """Some rules learn what was scaled down, as they are published."""
        ward.good = True
        if isinstance(ward.rule, AdaGC):
            after = seen.tensors if case.factors is None else seen.tensors * case.factors
            ward.rule.learn_norms(ward.full(reading.places, after))
            self._good_step(ward, reading, seen)
        elif ward.rule.learns_clipped and case.factor is not None:
            ward.rule.learn(seen.norm * case.factor)

    def _on_device(self, ward: Ward, reading: Reading) -> bool:
        """Whether this step is judged where its gradients are."""
        if self._decide == "host" or not self._device_can or self._agreement.several:
            return False
        if self._decide == "auto" and (reading.device_norms is None or reading.device_norms.is_cpu):
            return False
        with_grads = [ward.parameters[place] for place in reading.places]
        return can_skip_itself(ward.optimizer, with_grads)

    def _judge_on_device(self, ward: Ward, reading: Reading, loss: Any) -> None:
        norms = reading.device_norms
        if norms is None:
            norms = torch.from_numpy(reading.norms)
        scale = getattr(ward.optimizer, "grad_scale", None)
        found = getattr(ward.optimizer, "found_inf", None)
        norm = norms.square().sum().sqrt() / reading.scale
        if scale is not None and reading.scale == 1.0:
            norm = norm / scale.to(norm.device)
        if ward.device is None:
            ward.device = OnDevice(ward.rule, norm.device)  # type: ignore[arg-type]
        nan = torch.full((), math.nan, device=norm.device)
        told = nan if loss is None else torch.as_tensor(loss, device=norm.device).reshape(())
        if loss is not None:
            # A loss that is not finite is judged like a norm that is not.
            norm = torch.where(torch.isfinite(told), norm, torch.full_like(norm, math.nan))
        packed = ward.device.judge(norm, found)
        flag = packed[d.FLAGGED].float()
        for name, value in (("found_inf", flag), ("grad_scale", None)):
            if not hasattr(ward.optimizer, name):
                setattr(ward.optimizer, name, value)
                ward.handed.append(name)
        if found is not None:
            ward.optimizer.found_inf = torch.maximum(found, flag.to(found))  # type: ignore[attr-defined]
            flag = ward.optimizer.found_inf  # type: ignore[attr-defined]
        ward.device_flag = flag
        packed = torch.cat([packed, told.to(packed).reshape(1)])
        event = None
        if packed.device.type == "cuda":
            packed = packed.to("cpu", non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        pending = Pending(ward, self._step(ward), packed, norms, reading.places, event)
        self._pending.append(pending)
        if self._snapshots is not None and ward.number == 0 and self._snapshots.due(ward.steps):
            # The state before this step is good only if the step is: once in a while, wait.
            self._drain(wait=True)
            if ward.good:
                self._snapshots.take(ward.steps)

    def _flush(self) -> None:
        self._drain(wait=True)

    def _drain(self, *, wait: bool) -> None:
        """Take in what was decided on the device, in order, as far as it is known by now."""
        while self._pending:
            first = self._pending[0]
            behind = len(self._pending) > PENDING
            if not (wait or behind or first.event is None or first.event.query()):
                return
            if first.event is not None:
                first.event.synchronize()
            self._pending.pop(0)
            self._conclude(first)

    def _conclude(self, pending: Pending) -> None:
        ward = pending.ward
        flagged, norm, threshold, finite, scaled, loss = pending.packed.tolist()
        ward.norm = norm
        late, ward.late = ward.late, []
        for one in (loss, *map(float, late)):
            if math.isfinite(one):
                ward.losses.add(one, good=not flagged)
        if scaled:
            self._scaler_skipped(ward)
            return
        ward.flagged, ward.good = bool(flagged), not flagged
        norms = pending.norms.double().cpu().numpy() if flagged else None
        if norms is not None:
            cause = SPIKE if finite else NON_FINITE
            verdict = Verdict(
                pending.step, cause, "gradient_norm", ward.rule.name if finite else "finite",
                norm, threshold if finite else math.nan, {},
                ward.culprits(pending.places, norms), ward.number,
            )  # fmt: skip
            self._decided(ward, Case(verdict, on_device=True))
            return
        diverged = ward.losses.diverged() if self._trusts_loss(ward) else None
        if diverged is not None:
            level, limit, why = diverged
            verdict = Verdict(
                pending.step, DIVERGENCE, "loss", "level", level, limit, ward.losses.stats(),
                [], ward.number, note=why,
            )  # fmt: skip
            self._decided(ward, Case(verdict, on_device=True))
