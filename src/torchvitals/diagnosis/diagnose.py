"""`diagnose`: all rules over a run, findings grouped by cause and ranked."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchvitals.diagnosis.grouping import group
from torchvitals.record import Finding, Severity
from torchvitals.rules.catalogue import NAMES, rules
from torchvitals.rules.plugged import plugged
from torchvitals.rules.rule import NotChecked, Rule
from torchvitals.rules.run import Run
from torchvitals.rules.stored import Stored
from torchvitals.rules.thresholds import Thresholds

log = logging.getLogger("torchvitals")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """A rule that could not judge this run, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is wrong with a run, the cause first."""

    run: str
    """The run's name."""
    status: str
    """running, finished, failed or died."""
    steps: int
    """The last step that was looked at."""
    findings: tuple[Finding, ...]
    not_checked: tuple[Unchecked, ...]

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst finding; None when there is none."""
        return max((one.severity for one in self.findings), key=lambda s: s.rank, default=None)

    def to_json(self) -> dict[str, Any]:
        """One object of JSON values."""
        return {
            "run": self.run,
            "status": self.status,
            "steps": self.steps,
            "findings": [{**one.to_json(), "docs": _docs(one)} for one in self.findings],
            "not_checked": [{"name": one.name, "reason": one.reason} for one in self.not_checked],
        }


def _docs(one: Finding) -> str | None:
    """Its page; rules of other packages have none here."""
    return f"docs/rules/{one.name}.md" if one.name in NAMES else None


def diagnose(
    history: Stored,
    *,
    thresholds: Thresholds | Mapping[str, Any] | None = None,
    at: int | None = None,
    now: float | None = None,
) -> Diagnosis:
    """What is wrong with this run; with `at`, as it looked after that step."""
    run = Run(history, at=at, now=now)
    found, unchecked = judge(run, Thresholds.make(thresholds), (*rules(), *plugged()))
    return Diagnosis(
        run=run.info.name,
        status=history.status,
        steps=run.last_step,
        findings=tuple(group(run, found)),
        not_checked=tuple(unchecked),
    )


def judge(
    run: Run, thresholds: Thresholds, some: Iterable[Rule]
) -> tuple[list[Finding], list[Unchecked]]:
    """Findings of these rules, in their order, and the rules that could not judge.

    A rule that fails is told as not checked: one mistake of ours must not hide what the others saw.
    """
    found: list[Finding] = []
    unchecked: list[Unchecked] = []
    for rule in some:
        missing = rule.missing(run)
        if missing is not None:
            unchecked.append(Unchecked(name=rule.name, reason=missing))
            continue
        try:
            one = rule.check(run, thresholds)
        except NotChecked as reason:
            unchecked.append(Unchecked(name=rule.name, reason=str(reason)))
        except Exception as error:
            if os.environ.get("TORCHVITALS_STRICT", "") not in {"", "0"}:
                raise  # in our own tests nothing is swallowed
            log.debug("torchvitals: rule %s failed", rule.name, exc_info=True)
            text = f"the rule failed: {type(error).__name__}: {error}"
            unchecked.append(Unchecked(name=rule.name, reason=text))
        else:
            if one is not None:
                found.append(one)
    return found, unchecked
