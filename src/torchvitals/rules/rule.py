"""`Rule`: one ailment: its check, the columns it needs, its page. And what all checks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torchvitals.record import Cause, Evidence, Finding, Key, Severity
from torchvitals.rules.run import Run
from torchvitals.rules.thresholds import Thresholds

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

DOCS = "https://torchvitals.readthedocs.io/rules/"
"""Where the pages of the rules are."""

HOW = {
    "loss": "log it: monitor.log(loss=loss)",
    "validation": 'log evaluations: monitor.log_eval("val", loss=…)',
    "activation": "watch(…, activations=True); a compiled model's are not seen",
    "gradient": "watch(…, gradients=True)",
    "parameter": "watch(…, parameters=True)",
    "update": 'pass the optimizer to watch() and updates="sampled" or "exact"',
    "optimizer": "pass the optimizer to watch()",
    "attention": "watch(…, attention=True)",
    "clock": "watch(…, clocks=True)",
    "speed": "watch(…, clocks=True)",
    "machine": "watch(…, machine=True)",
    "noise": "accumulate two or more micro-batches a step: the noise scale is measured from them",
    "rank": "several processes (torch.distributed) compare themselves",
    "category": "log losses by category: monitor.log_samples(losses, category=labels)",
    "input": "watch() sees what the model is called with on monitored steps",
    "output": "watch() sees what the model returns on monitored steps",
    "criterion": "use torch.nn.functional's loss functions, or the modules that call them",
    "amp": "a torch.amp.GradScaler is seen when the training uses one",
}
"""What to do where a column was not measured."""


class NotChecked(Exception):
    """Raised by a check that can't judge this run: too early, or nothing to look at."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One file of this room."""

    name: str
    title: str
    needs: tuple[str, ...]
    """``kind/stat`` columns, or ``loss`` or ``validation``, without which it can't judge."""
    check: Callable[[Run, Thresholds], Finding | None]
    page: str
    cheap: bool
    """Reads a few columns only; these are run first while the training goes on."""

    @classmethod
    def of(cls, module: ModuleType) -> Rule:
        """A rule from its file."""
        return cls(
            name=module.__name__.rpartition(".")[2],
            title=module.TITLE,
            needs=tuple(module.NEEDS),
            check=module.check,
            page=(module.__doc__ or "").strip(),
            cheap=getattr(module, "CHEAP", False),
        )

    def missing(self, run: Run) -> str | None:
        """Why it can't be checked in this run, and what to do; None when it can."""
        for need in self.needs:
            if need == "loss":
                there = bool(run.loss)
            elif need == "validation":
                there = bool(run.validation_loss)
            else:
                kind, _, stat = need.partition("/")
                there = run.has(kind, stat or None)
            if not there:
                how = HOW.get(need.partition("/")[0], "")
                return f"{need} was not measured; {how}" if how else f"{need} was not measured"
        return None


def evidence(
    text: str,
    key: Key | tuple[str, str, str] | str | None = None,
    *,
    step: int | None = None,
    value: float | None = None,
    threshold: float | None = None,
) -> Evidence:
    """One measured number beside its limit; the key in any form."""
    if isinstance(key, tuple):
        key = str(Key(*key))
    return Evidence(
        text=text,
        key=key,
        step=None if step is None else int(step),
        value=None if value is None else float(value),
        threshold=None if threshold is None else float(threshold),
    )


def cause(text: str, test: str, confidence: float) -> Cause:
    """What may be behind it, and the test that tells."""
    return Cause(text=text, test=test, confidence=confidence)


def finding(
    name: str,
    run: Run,
    *,
    severity: Severity,
    sites: Sequence[str],
    first_step: int,
    last_step: int | None = None,
    evidence: Sequence[Evidence],
    explanation: str,
    causes: Sequence[Cause],
    fix: str,
    change: Mapping[str, Any] | None = None,
    confidence: float,
) -> Finding:
    """A finding that goes on until now unless a last step is given."""
    ranked = sorted(causes, key=lambda one: -one.confidence)
    return Finding(
        name=name.rpartition(".")[2],
        severity=severity,
        sites=tuple(sites),
        first_step=int(first_step),
        last_step=int(run.last_step if last_step is None else last_step),
        evidence=tuple(evidence),
        explanation=explanation,
        causes=tuple(ranked),
        fix=fix,
        change=dict(change or {}),
        confidence=round(float(min(max(confidence, 0.0), 1.0)), 2),
    )


def changed(name: str, before: float | None, after: float) -> dict[str, Any]:
    """The numbers of a fix for a machine."""
    return {name: {"from": before, "to": after}}
