"""RUN on the command line: a run's folder, its file, or a name under ./runs."""

from __future__ import annotations

import os
import time
from difflib import get_close_matches
from pathlib import Path

from torchvitals.record.errors import RunNotFound

RUNS = Path("runs")


def find_run(text: str) -> Path:
    """Where the run is; RunNotFound with the closest names when it is nowhere."""
    from torchvitals.store.connect import run_file

    for path in (Path(text), RUNS / text):
        if run_file(path).is_file():
            return path
    raise RunNotFound(f"there is no run {text!r} here.{_instead(text)}")


def await_run(text: str, seconds: float, pause: float = 0.2) -> Path:
    """The same for a run that may not have begun: looked for so long, then RunNotFound.

    It has begun when its file says so: one that is just being made is not yet a run.
    """
    from torchvitals.record.errors import CorruptRun
    from torchvitals.store import open_run

    end = time.monotonic() + seconds
    while True:
        try:
            path = find_run(text)
            with open_run(path) as history:
                if history.attempts:
                    return path
            raise RunNotFound(f"{path} has a file, but no training has begun in it.")
        except (RunNotFound, CorruptRun):
            if time.monotonic() >= end:
                raise
            time.sleep(min(pause, seconds))


def newest_run() -> tuple[Path, str]:
    """The run under ./runs that began last, a running one if there is any, and why it is this."""
    from torchvitals.record.errors import VitalsError
    from torchvitals.store import list_runs, open_run

    found: list[tuple[bool, float, Path]] = []
    for run in list_runs(RUNS):
        try:
            with open_run(run.path) as history:
                started = max((attempt.started for attempt in history.attempts), default=0.0)
                found.append((history.status == "running", started, run.path))
        except VitalsError:  # what can't be read can't be followed
            continue
    if not found:
        raise RunNotFound(
            "there are no runs under ./runs; name one that is elsewhere, or make one with "
            "'vitals demo'."
        )
    running, _, path = max(found)
    num = sum(one for one, _, _ in found)
    if not running:
        return path, "the newest run; none is running"
    return path, "the run that is running" if num == 1 else f"the newest of {num} that are running"


def _instead(text: str) -> str:
    from torchvitals.store import list_runs

    given = Path(text)
    if given.is_dir():
        below = [str(run.path) for run in list_runs(given)]
        if below:
            return f" These below it are runs: {_some(below)}."
    known = {os.path.relpath(run.path, RUNS): str(run.path) for run in list_runs(RUNS)}
    if given.parent != Path() and given.parent.is_dir():
        known |= {run.path.name: str(run.path) for run in list_runs(given.parent)}
    near = get_close_matches(given.name, known, n=3, cutoff=0.5)
    if near:
        return f" Did you mean {' or '.join(known[name] for name in near)}?"
    if known:
        return f" There are {_some(list(known.values()))}."
    return " There are no runs under ./runs either; 'vitals demo' makes one."


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
