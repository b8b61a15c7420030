"""`vitals demo`: trains a small GPT with a fault, names the fault, trains again with the fix."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from torchvitals.cli.demo_progress import Progress, interruptible, say
from torchvitals.cli.options import echo_json, json_option

STEPS, FAST_STEPS = 240, 60
SECONDS = 30.0
FIXED = "fixed"
"""The second run lies in the folder of the first: the page of the one shows both."""

EPILOG = """\b
Examples:
  vitals demo                      about a minute, into runs/demo
  vitals demo --fast               a few seconds
  vitals demo --steps 300 --run /tmp/demo
  vitals demo --fast --json | jq .difference
"""


@click.command("demo", epilog=EPILOG)
@click.option(
    "--steps", type=click.IntRange(min=1), help=f"At most so many each time. [default: {STEPS}]"
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=SECONDS,
    show_default=True,
    help="At most so long each time.",
)
@click.option(
    "--run", metavar="DIR", type=click.Path(), help="The run's folder. [default: runs/demo]"
)
@click.option("--fast", is_flag=True, help=f"{FAST_STEPS} small steps each time: a few seconds.")
@json_option
def command(
    *, steps: int | None, seconds: float, run: str | None, fast: bool, as_json: bool
) -> None:
    """Train a small character GPT with a fault, name the fault, and train again with the fix.

    It learns the sources of Python's standard library. One layer has a fault planted in it. The
    diagnosis names it and says what to do; the second training follows that advice, from the same
    seed and as many steps, and both are shown beside each other. Ctrl-C ends a training early and
    shows what there is. On a terminal the page shows it live, until another Ctrl-C.
    """
    training = _import_training()
    path = Path(run) if run is not None else _free_path()
    size = {"batch_size": 4 if fast else 8, "every": 2 if fast else 5, "seconds": seconds}
    page = None if as_json else _page(path)
    say(
        f"Training a small GPT on Python's own sources, with a fault in it: {path} "
        "(Ctrl-C ends it early)."
    )
    ended = _train(training, path, steps or (FAST_STEPS if fast else STEPS), **size)

    from torchvitals.cli import demo_report as report
    from torchvitals.cli.demo_fix import recommended

    found = report.diagnosed(path)
    shown = report.as_object(path, found, training.FAULTY) if as_json else {}
    if not as_json:
        report.show_fault(path, found, training.FAULTY)
    fix = None if ended else recommended(found)
    fixed = path / FIXED
    if fix is not None:
        say(f"\nTraining again as the diagnosis recommends, {fix}: {fixed}")
        rates = dict.fromkeys(fix.parameters or ("",), fix.lr)
        _train(training, fixed, found.steps, rates=rates, **size)
        if not as_json:
            report.show_difference(path, fixed, fix)
    elif not ended:
        say("\nThe diagnosis recommends no learning rate: there is nothing to train again with.")
    if as_json:
        shown["fix"] = None if fix is None else {"text": fix.finding.fix, **fix.finding.change}
        shown["difference"] = None if fix is None else report.compared(path, fixed, fix)
        echo_json(shown)
        return
    report.show_end(path, fixed=fix is not None)
    if page is not None:
        _wait(page, [path, fixed] if fix is not None else [])


def _train(training: Any, path: Path, steps: int, **given: Any) -> bool:
    """Train with a bar; True when Ctrl-C ended it."""
    with interruptible() as stopped, Progress(steps, given["seconds"]) as progress:
        training.train(path, steps=steps, on_step=progress.step, stopped=stopped, **given)
    return stopped()


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


def _wait(page: Any, both: list[Path]) -> None:
    """Until Ctrl-C."""
    from torchvitals.dashboard.shelf import Shelf, run_id

    shelf = Shelf(page.folder)
    runs = ",".join(run_id(shelf.name(path.absolute())) for path in both)
    place = f"#/overview?runs={runs}" if runs else ""
    what = "both runs" if runs else "the run"
    try:
        say(f"\nThe page with {what} is at {page.url}{place} until Ctrl-C.")
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
