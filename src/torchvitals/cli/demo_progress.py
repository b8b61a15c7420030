"""How far the demo's training is, and Ctrl-C in it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

LINE_EVERY_S = 5.0
"""How often a line is printed where there is no terminal for a bar."""


def say(text: str) -> None:
    """A line for the one who waits: stdout is for results, and comes before it."""
    sys.stdout.flush()
    click.echo(text, err=True)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C ends the training after its step, the second one at once."""
    asked: list[bool] = []

    def ask(_number: int, _frame: object) -> None:
        asked.append(True)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        say("Interrupted; this is what was recorded so far.")


class Progress:
    """A bar on a terminal, a line every few seconds elsewhere; on stderr."""

    def __init__(self, steps: int, seconds: float) -> None:
        self._steps, self._seconds = steps, seconds
        self._begun = self._told = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            from torchvitals.views.terminal import Screen

            self._bar = Bar(
                TextColumn(" "),
                BarColumn(bar_width=30),
                TextColumn("{task.fields[text]}"),
                console=Screen(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=1.0, text="getting ready")
            self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, step: int, loss: float) -> None:
        """Show how far the training is."""
        now = time.monotonic()
        if self._bar is None and now - self._told < LINE_EVERY_S and step < self._steps:
            return
        self._told = now
        spent = max(now - self._begun, 1e-9)
        done = max(step / self._steps, spent / self._seconds)
        left = max(spent / done - spent, 0.0)
        text = f"step {step}  loss {loss:.3f}  {step / spent:.1f} steps/s  {left:.0f} s left"
        if self._bar is None:
            say(f"  {text}")
        else:
            self._bar.update(self._task, completed=min(done, 1.0), text=text)
