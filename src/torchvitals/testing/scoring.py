"""How well a diagnosis did: verdicts on single runs, and their sum over a benchmark.

A run counts as sick when a fault was injected *and* did harm; everything else counts as healthy.
Only top-level findings of severity warning or error count; what stands among the symptoms of a
finding belongs to that finding.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchvitals.record.finding import Finding, Severity


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a diagnosis said of one run, against what was wrong with it."""

    case: str
    seed: int
    harm: str | None
    """What the fault spoilt; None: the run is healthy."""
    fault: int | None
    """The injected fault's number, also where it did no harm."""
    prompt: bool
    """A wiring or non-finite fault."""
    numeric_fix: bool
    names: tuple[str, ...]
    """Top-level findings that count, in their order."""
    rank: int | None
    """Place of the first finding that names the fault right, from 1."""
    delay: int | None
    """First step of that finding minus the step of the fault, at least 0."""
    live_delay: int | None = None
    """The same for the moment it was raised: by the run itself, or in a replay."""
    every: int = 5
    """Steps from one monitored step to the next."""
    num_errors: int = 0
    num_warnings: int = 0
    fixed: bool | None = None
    """Whether a rerun with the recommended change came up to the clean run; None: not tried."""

    @property
    def found(self) -> bool:
        """Whether anything was found."""
        return bool(self.names)

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON values."""
        return asdict(self) | {"found": self.found}


def counted(findings: Iterable[Finding]) -> list[Finding]:
    """Those that count: warnings and errors, in their order."""
    return [finding for finding in findings if finding.severity != Severity.INFO]


def first_right(findings: Iterable[Finding], names: Sequence[str]) -> Finding | None:
    """The first counted finding with one of the right names."""
    return next((finding for finding in counted(findings) if finding.name in names), None)


def judge(
    findings: Sequence[Finding],
    *,
    case: str,
    seed: int,
    right: Sequence[str] = (),
    harm: str | None = None,
    fault: int | None = None,
    prompt: bool = False,
    numeric_fix: bool = False,
    onset: int | None = None,
    raised_at: int | None = None,
    every: int = 5,
) -> Verdict:
    """Compare findings with the truth. `right`: rule names that would be right."""
    told = counted(findings)
    hit = first_right(findings, right)
    start = onset or 1
    return Verdict(
        case=case,
        seed=seed,
        harm=harm,
        fault=fault,
        prompt=prompt,
        numeric_fix=numeric_fix,
        names=tuple(finding.name for finding in told),
        rank=None if hit is None else told.index(hit) + 1,
        delay=None if hit is None else max(0, hit.first_step - start),
        live_delay=None if raised_at is None else max(0, raised_at - start),
        every=every,
        num_errors=sum(finding.severity == Severity.ERROR for finding in told),
        num_warnings=sum(finding.severity == Severity.WARNING for finding in told),
    )


@dataclass(frozen=True, kw_only=True)
class Score:
    """The sum of verdicts. Shares are 0…1, NaN where there is nothing to count."""

    num_sick: int
    num_healthy: int
    found: float
    top1: float
    top3: float
    errors_on_healthy: float
    """Share of healthy runs with at least one error."""
    alarms_on_healthy: float
    """Share of healthy runs with at least one warning or error."""
    prompt_in_time: float
    """Share of named wiring and non-finite faults seen within 2 monitored steps."""
    median_delay: float
    """Of the other named faults, in steps."""
    fixed: float
    """Share of sick runs with a numeric fix whose rerun came up to the clean run."""


def score(verdicts: Iterable[Verdict]) -> Score:
    """Over any set of verdicts."""
    all_of_them = list(verdicts)
    sick = [v for v in all_of_them if v.harm is not None]
    healthy = [v for v in all_of_them if v.harm is None]
    waits = [(v, v.live_delay if v.live_delay is not None else v.delay) for v in sick]
    prompt = [wait <= 2 * v.every for v, wait in waits if v.prompt and wait is not None]
    others = [wait for v, wait in waits if not v.prompt and wait is not None]
    tried = [v for v in sick if v.numeric_fix]
    return Score(
        num_sick=len(sick),
        num_healthy=len(healthy),
        found=_share(v.found for v in sick),
        top1=_share(v.rank == 1 for v in sick),
        top3=_share(v.rank is not None and v.rank <= 3 for v in sick),
        errors_on_healthy=_share(v.num_errors > 0 for v in healthy),
        alarms_on_healthy=_share(v.found for v in healthy),
        prompt_in_time=_share(prompt),
        median_delay=statistics.median(others) if others else float("nan"),
        fixed=_share(v.fixed is True for v in tried)
        if any(v.fixed is not None for v in tried)
        else float("nan"),
    )


def _share(flags: Iterable[bool]) -> float:
    listed = list(flags)
    return sum(listed) / len(listed) if listed else float("nan")
