"""What is said of a run, what harm its fault did, and when it could have been named."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from faults.places import Place
from torchvitals.record.finding import Finding
from torchvitals.store.history import History, open_run
from torchvitals.testing import CASES, harm
from torchvitals.testing.scoring import Verdict, first_right, judge


def diagnose(
    place: Place, harmed: str | None, cli: bool, replay: bool
) -> tuple[Verdict, list[Any], float]:
    """The verdict, the findings as JSON, and the seconds the diagnosis took."""
    case = CASES[place.case]
    outcome = place.outcome()
    assert outcome is not None
    begun = time.perf_counter()
    findings = diagnose_run(place.run, cli=cli)
    seconds = time.perf_counter() - begun
    fault = case.fault
    names = fault.names if fault is not None else ()
    every = int(outcome.settings.get("every", 5))
    raised_at = None
    if fault is not None and harmed is not None:
        if replay:  # the same on a busy machine as on an idle one
            raised_at = replayed(place, outcome.onset or 1, every, outcome.steps, names)
        else:
            with open_run(place.run) as history:
                raised_at = raised(history, names)
    verdict = judge(
        findings,
        case=place.case,
        seed=place.seed,
        right=names,
        harm=harmed,
        fault=fault.number if fault is not None else None,
        prompt=fault is not None and fault.prompt,
        numeric_fix=fault is not None and fault.numeric_fix,
        onset=outcome.onset,
        raised_at=raised_at,
        every=every,
    )
    return verdict, [finding.to_json() for finding in findings], seconds


def diagnose_run(path: Path, at: int | None = None, *, cli: bool = False) -> list[Finding]:
    """The top-level findings, ranked."""
    if cli:
        command = [str(Path(sys.executable).with_name("vitals")), "diagnose", str(path), "--json"]
        if at is not None:
            command += ["--at", str(at)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise RuntimeError(done.stderr.strip()[-500:])
        return [Finding.from_json(each) for each in json.loads(done.stdout)["findings"]]
    from torchvitals.diagnosis import diagnose

    with open_run(path) as history:
        return list(diagnose(history, at=at).findings)


def raised(history: History, names: Sequence[str]) -> int | None:
    """The step at which the run itself raised a right finding."""
    steps = [event.step for event in history.events("finding") if event.data.get("name") in names]
    return min(steps, default=None)


def replayed(place: Place, onset: int, every: int, last: int, names: Sequence[str]) -> int | None:
    """The first of some monitored steps at which a diagnosis of what was there names it right."""
    first = math.ceil(onset / every) * every
    for ahead in (0, 1, 2, 4, 6, 8, 10, 15, 20, 30, 40, 60, 80, 120):
        step = first + ahead * every
        if step > last:
            break
        if first_right(diagnose_run(place.run, at=step), names) is not None:
            return step
    return None


def harms(places: Iterable[Place]) -> dict[Place, str | None]:
    """What each faulty run lost against its clean one; None where nothing."""
    found: dict[Place, str | None] = {}
    for place in places:
        case, outcome = CASES[place.case], place.outcome()
        if outcome is None:
            continue
        if case.fault is None or case.reference is None:
            found[place] = None
            continue
        clean = Place(place.root, case.reference, place.seed).outcome()
        if clean is not None:  # without it nobody knows whether harm was done
            found[place] = harm(outcome, clean, case.fault.harms)
    return found
