"""`vitals demo`: trains a small GPT with a fault in it and shows what torchvitals saw."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchvitals.cli.options import echo_json, json_option

if TYPE_CHECKING:
    from torchvitals.store import History
    from torchvitals.views.layers import LayerTable

STEPS, FAST_STEPS = 600, 60
SECONDS = 60.0
LINE_EVERY_S = 5.0
"""How often a line is printed where there is no terminal for a bar."""

EPILOG = """\b
Examples:
  vitals demo                      about a minute, into runs/demo
  vitals demo --fast               a few seconds
  vitals demo --steps 300 --run /tmp/demo
  vitals demo --fast --json | jq .on_top
"""


@click.command("demo", epilog=EPILOG)
@click.option("--steps", type=click.IntRange(min=1), help=f"At most so many. [default: {STEPS}]")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=SECONDS,
    show_default=True,
    help="At most so long.",
)
@click.option(
    "--run", metavar="DIR", type=click.Path(), help="The run's folder. [default: runs/demo]"
)
@click.option("--fast", is_flag=True, help=f"{FAST_STEPS} small steps: a few seconds.")
@json_option
def command(
    *, steps: int | None, seconds: float, run: str | None, fast: bool, as_json: bool
) -> None:
    """Train a small character GPT for about a minute and show what torchvitals saw.

    It learns the sources of Python's standard library. One layer has a fault planted in it, which
    the tables at the end put on top by themselves. Ctrl-C ends the training early and shows what
    there is. On a terminal the page shows it live, until another Ctrl-C.
    """
    training = _import_training()
    path = Path(run) if run is not None else _free_path()
    num_steps = steps or (FAST_STEPS if fast else STEPS)
    page = None if as_json else _page(path)
    _say(
        f"Training a small GPT on Python's own sources, recorded in {path} (Ctrl-C ends it early)."
    )
    with _interruptible() as stopped, _Display(num_steps, seconds) as display:
        training.train(
            path,
            steps=num_steps,
            seconds=seconds,
            batch_size=4 if fast else 16,
            every=2 if fast else 5,
            on_step=display.step,
            stopped=stopped,
        )
    _report(path, training.FAULTY, as_json=as_json)
    if page is not None:
        _wait(page)


def _page(path: Path) -> Any:
    """The page beside the training, where somebody sits at a terminal; None elsewhere."""
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        return None
    from torchvitals.monitor.page import PageProcess

    path.parent.mkdir(parents=True, exist_ok=True)
    page = PageProcess(path)
    if page.url is None:  # it has said why
        return None
    from torchvitals.dashboard.serve import open_browser

    open_browser(page.url)
    return page


def _wait(page: Any) -> None:
    """Until Ctrl-C."""
    _say(f"\nThe page is at {page.url} until Ctrl-C.")
    try:
        page.wait()
    except KeyboardInterrupt:
        pass
    finally:
        page.close()


def _import_training() -> Any:
    try:
        from torchvitals.cli import demo_training
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from torchvitals.record.errors import MissingExtra

        raise MissingExtra(
            "the demo trains a model and needs torch, which is not installed here. Install it "
            "with: pip install torch"
        ) from error
    return demo_training


def _free_path() -> Path:
    path, number = Path("runs/demo"), 1
    while path.exists():
        number += 1
        path = Path(f"runs/demo-{number}")
    return path


def _say(text: str) -> None:
    click.echo(text, err=True)


@contextmanager
def _interruptible() -> Iterator[Any]:
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
        _say("Interrupted; this is what was recorded so far.")


class _Display:
    """A bar on a terminal, a line every few seconds elsewhere; on stderr."""

    def __init__(self, steps: int, seconds: float) -> None:
        self._steps, self._seconds = steps, seconds
        self._begun = self._told = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> _Display:
        if sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TextColumn

            from torchvitals.views.terminal import Screen

            self._bar = Progress(
                BarColumn(bar_width=30),
                TextColumn("{task.fields[text]}"),
                console=Screen(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=1.0, text="")
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
            _say(f"  {text}")
        else:
            self._bar.update(self._task, completed=min(done, 1.0), text=text)


def _report(path: Path, planted: str, *, as_json: bool) -> None:
    """What a user wants to see after a training."""
    from rich.text import Text

    from torchvitals.cli.show import make_tables, print_summary, print_tables
    from torchvitals.diagnosis import diagnose
    from torchvitals.store import open_run
    from torchvitals.views.findings_text import diagnosis_text
    from torchvitals.views.summary import summarize
    from torchvitals.views.terminal import Screen

    with open_run(path) as history:
        tables = make_tables(history, (), top=4)
        on_top = _on_top(history)
        diagnosis = diagnose(history)
        found = on_top is not None and on_top.startswith(planted)
        if as_json:
            summary = summarize(history)
            echo_json(
                {
                    "run": path,
                    "planted": planted,
                    "on_top": on_top,
                    "found": found,
                    "diagnosis": diagnosis.to_json(),
                    "summary": summary,
                    "tables": tables,
                }
            )
            return
        screen = Screen()
        screen.show("")
        print_summary(screen, history)
        print_tables(screen, tables)
        screen.show("", Text("What was planted", "bold"))
        screen.show(
            f"  {planted} was put into a parameter group with learning rate 0: it gets",
            "  gradients and never moves. "
            + (
                f"The first line of the updates is {on_top}: found."
                if found
                else "It takes three measured steps to call a layer frozen; train longer to see it."
            ),
        )
        screen.show("", Text("The diagnosis", "bold"))
        screen.show(diagnosis_text(diagnosis, screen.width, path=path))
        overhead = summarize(history).overhead_frac
        if overhead is not None:
            screen.show("", Text("What it cost", "bold"))
            size = sum(file.stat().st_size for file in path.glob("run.*"))
            screen.show(f"  {_cost(overhead)} of the training's time, {size / 1e6:.1f} MB on disk.")
        screen.show(
            "", Text("Next", "bold"),
            f"  vitals diagnose {path}",
            f"  vitals ui {path.parent}",
            f"  vitals show {path} --kind gradient --top 20",
            f"  vitals show {path} --site blocks.2.mlp",
            f"  vitals export {path} --to csv -o demo.csv",
        )  # fmt: skip


def _cost(share: float) -> str:
    return f"{100 * share:.2g} %"


def _on_top(history: History) -> str | None:
    """The first layer of the table of updates."""
    from torchvitals.views.layers import layer_table

    table: LayerTable | None = layer_table(history, "update", top=1)
    return table.lines[0].site if table is not None and table.lines else None
