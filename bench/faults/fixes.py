"""Trains again with what was recommended: is it as good as the clean run then?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from faults.places import Place, train
from faults.pool import pooled
from torchvitals.record.finding import Finding
from torchvitals.testing import CASES, Outcome, as_good
from torchvitals.testing.scoring import Verdict, counted, first_right


def rerun_fixes(
    verdicts: dict[Place, Verdict], findings: Mapping[Place, list[Any]], jobs: int
) -> None:
    """Apply what was recommended, train again, compare with the clean run; fills in `fixed`."""
    tasks = []
    for place, verdict in verdicts.items():
        if verdict.harm is None or not verdict.numeric_fix:
            continue
        change = recommended([Finding.from_json(each) for each in findings[place]], place)
        verdicts[place] = replace(verdict, fixed=False)
        if change:
            tasks.append((place.rerun(change), change, place))
    done = pooled(jobs, "reran", _rerun, tasks)
    for (_, _, place), outcome in done:
        clean = Place(place.root, CASES[place.case].reference or "", place.seed).outcome()
        good = clean is not None and bool(outcome.changed) and as_good(outcome, clean)
        verdicts[place] = replace(verdicts[place], fixed=good)


def _rerun(place: Place, change: Mapping[str, Any], _original: Place) -> Outcome:
    return train(place, change)


def recommended(findings: Sequence[Finding], place: Place) -> Mapping[str, Any]:
    """The change of the first finding, as a user would follow it; else of the first right one."""
    told = counted(findings)
    fault = CASES[place.case].fault
    right = first_right(findings, fault.names) if fault is not None else None
    for finding in (*told[:1], *([right] if right is not None else [])):
        if finding.change:
            return finding.change
    return {}
