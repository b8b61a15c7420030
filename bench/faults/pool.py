"""`pooled`: tasks in several processes, with a bar on a terminal and a line each elsewhere."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from faults.places import Place

Task = tuple[Any, ...]


def pooled(
    jobs: int, what: str, function: Callable[..., Any], tasks: Sequence[Task]
) -> Iterator[tuple[Task, Any]]:
    """Do the tasks in `jobs` processes, and give each with its result. Failures are told."""
    if not tasks:
        return
    failed = 0
    context = multiprocessing.get_context("spawn")
    with Bar(what, len(tasks)) as bar, ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = {pool.submit(function, *task): task for task in tasks}
        for future in as_completed(waiting):
            task = waiting[future]
            error = future.exception()
            bar.done(_place(task), error)
            if error is None:
                yield task, future.result()
            else:
                failed += 1
    if failed:
        print(f"{failed} of {len(tasks)} failed.", file=sys.stderr)


def _place(task: Task) -> Place:
    found: Place = task[0]
    return found


class Bar:
    """How many are done and how long the rest takes."""

    def __init__(self, what: str, total: int) -> None:
        self._console = Console()
        self._what, self._total, self._num = what, total, 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[last]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task(what, total=total, last="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def done(self, place: Place, error: BaseException | None) -> None:
        """One more."""
        self._num += 1
        name = f"{place.case} seed {place.seed}"
        self._progress.update(self._task, advance=1, last=name)
        if error is not None or not self._console.is_terminal:
            state = f"[{self._num:3}/{self._total}]  {self._what} {name}"
            text = state if error is None else f"{state} FAILED: {error!r}"
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
