"""The bar of a coordinate check, on a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """Shows which width and seed is trained, and how long it will still take."""

    def __init__(self, total: int) -> None:
        self._progress = Progress(
            BarColumn(bar_width=30),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Callable[[str], None]:
        self._progress.start()
        return self._advance

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def _advance(self, text: str) -> None:
        self._progress.update(self._task, advance=1, description=text)
