"""What the demo shows after its trainings: what was wrong, and what the fix changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text

from torchvitals.cli.demo_fix import Fix
from torchvitals.cli.show import make_tables, print_tables
from torchvitals.diagnosis import Diagnosis, diagnose
from torchvitals.store import History, open_run
from torchvitals.views import words
from torchvitals.views.difference import Difference, difference, difference_text, verdict
from torchvitals.views.findings_text import diagnosis_text
from torchvitals.views.layers import LayerTable, layer_table
from torchvitals.views.summary import summarize
from torchvitals.views.terminal import Screen


def diagnosed(path: Path) -> Diagnosis:
    """What is wrong with a run."""
    with open_run(path) as history:
        return diagnose(history)


def show_fault(path: Path, found: Diagnosis, planted: str) -> None:
    """The layers by how much they move, and the diagnosis."""
    screen = Screen()
    with open_run(path) as history:
        print_tables(screen, make_tables(history, ("update",), top=4))
    screen.show("", Text("The diagnosis", "bold"))
    screen.show(diagnosis_text(found, screen.width, path=path))
    named = bool(found.findings) and found.findings[0].sites[0].startswith(planted)
    screen.show(
        "",
        Text("What was planted", "bold"),
        f"  The {planted} sits in a parameter group with learning rate 0: it gets gradients and",
        f"  never moves. {_found(named)}",
    )


def show_difference(path: Path, fixed: Path, fix: Fix) -> None:
    """Both runs beside each other."""
    screen = Screen()
    one = compared(path, fixed, fix)
    screen.show("", difference_text(one, names=("with the fault", "with the fix")))
    screen.show("", f"  {verdict(one)}")


def show_end(path: Path, *, fixed: bool) -> None:
    """What it cost, and what to try next."""
    screen = Screen()
    with open_run(path) as history:
        summary = summarize(history)
    if summary.overhead_frac is not None:
        screen.show("", Text("What it cost", "bold"))
        cost = f"{100 * summary.overhead_frac:.2g} %"
        size = words.size(summary.size_bytes)
        screen.show(f"  {cost} of the training's time, {size} on disk.")
    commands = {
        f"vitals ui {path.parent}": "both runs on the page" if fixed else "the page",
        f"vitals show {path}": "how it went, and its layers",
        f"vitals diagnose {path}": "what is wrong, once more",
        f"vitals report {path}": "all of it in one HTML file",
    }
    width = max(map(len, commands))
    screen.show("", Text("Next", "bold"))
    for command, what in commands.items():
        screen.show(Text.assemble(f"  {command:{width}}", (f"   {what}", "dim")))


def compared(path: Path, fixed: Path, fix: Fix) -> Difference:
    """The run with the fault and the one with the fix."""
    with open_run(path) as before, open_run(fixed) as after:
        return difference(
            (before, diagnose(before)), (after, diagnose(after)), site=fix.finding.sites[0]
        )


def as_object(path: Path, found: Diagnosis, planted: str) -> dict[str, Any]:
    """The same of the first run as plain data."""
    with open_run(path) as history:
        on_top = _on_top(history)
        return {
            "run": path,
            "planted": planted,
            "on_top": on_top,
            "found": on_top is not None and on_top.startswith(planted),
            "diagnosis": found.to_json(),
            "summary": summarize(history),
            "tables": make_tables(history, (), top=4),
        }


def _found(named: bool) -> str:
    if named:
        return "Found."
    return "It takes three measured steps to call a layer frozen; train longer to see it."


def _on_top(history: History) -> str | None:
    """The first layer of the table of updates."""
    table: LayerTable | None = layer_table(history, "update", top=1)
    return table.lines[0].site if table is not None and table.lines else None
