"""Two runs beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.views.made_runs import write_columns
from torchvitals.diagnosis import Diagnosis
from torchvitals.record import Finding, Key, Severity
from torchvitals.store import open_run
from torchvitals.views.difference import Difference, difference, difference_text, verdict
from torchvitals.views.terminal import Screen

LOSS = Key.scalar("loss")
RATIO = Key("update", "head.weight", "ratio")


def found(*names: str) -> Diagnosis:
    """Warnings of these names, and a note."""
    severities = [Severity.WARNING] * len(names) + [Severity.INFO]
    findings = tuple(
        Finding(name=name, severity=severity, sites=("head.weight",), first_step=1, last_step=2,
                evidence=(), explanation="")
        for name, severity in zip([*names, "a_note"], severities, strict=True)
    )  # fmt: skip
    return Diagnosis(run="x", status="finished", steps=1, findings=findings, not_checked=())


def two(folder: Path, old: list[float | None], new: list[float | None]) -> Difference:
    paths = (
        write_columns(folder / "old", {LOSS: old, RATIO: [0.0] * len(old)}),
        write_columns(folder / "new", {LOSS: new, RATIO: [0.25] * len(new)}),
    )
    with open_run(paths[0]) as before, open_run(paths[1]) as after:
        return difference((before, found("frozen_layer")), (after, found()), site="head.weight")


def text(one: Difference, width: int = 100) -> str:
    screen = Screen(width=width)
    with screen.capture() as captured:
        screen.print(difference_text(one, names=("before", "after")))
    return captured.get()


def test_means_of_the_last_tenth_up_to_the_step_both_have(tmp_path: Path) -> None:
    one = two(tmp_path, [4.0] * 18 + [3.0, 5.0], [4.0] * 18 + [1.0, 3.0, 99.0, 99.0])
    assert one.step == 19
    assert (one.before.loss, one.after.loss) == (4.0, 2.0)
    assert one.loss_change_frac == -0.5
    assert (one.before.update_ratio, one.after.update_ratio) == (0.0, 0.25)
    assert (one.before.findings, one.after.findings) == (("frozen_layer",), ())
    assert verdict(one) == "The loss is 50 % lower after the same 19 steps: 2 instead of 4."


def test_both_are_drawn_on_one_scale(tmp_path: Path) -> None:
    one = two(tmp_path, [8.0, 8.0, 8.0, 8.0], [8.0, 6.0, 3.0, 0.5])
    assert one.before.loss_spark == "████"
    assert one.after.loss_spark == "█▆▃▁"


def test_the_table(tmp_path: Path) -> None:
    lines = text(two(tmp_path, [4.0] * 20, [2.0] * 20)).splitlines()
    assert [line.split()[0] for line in lines] == [
        "The", "before", "loss", "loss", "findings", "update", "run",
    ]  # fmt: skip
    assert lines[2].split() == ["loss", "4", "2", "−50", "%"]
    assert " ".join(lines[4].split()) == "findings frozen_layer · 1 note none · 1 note"
    assert lines[5].split() == ["update", "ratio", "0", "0.250", "head.weight"]


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (4.0, "The loss is the same after 19 steps."),
        (5.0, "The loss is 25 % higher after the same 19 steps: 5 instead of 4."),
        (float("nan"), "The losses of the two runs can't be compared."),
    ],
)
def test_what_is_said_of_worse_ones(tmp_path: Path, new: float, said: str) -> None:
    assert verdict(two(tmp_path, [4.0] * 20, [new] * 20)) == said


def test_what_is_still_there_is_said(tmp_path: Path) -> None:
    path = write_columns(tmp_path / "run", {LOSS: [4.0] * 20})
    with open_run(path) as history:
        same = (history, found("frozen_layer"))
        one = difference(same, same)
    assert verdict(one).endswith("Still there: frozen_layer.")
    assert "update ratio" not in text(one)
