"""What rules read: thinned, cut, in depth order."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchvitals.record import (
    ROOT,
    Event,
    Key,
    ModelInfo,
    ModuleInfo,
    ParameterInfo,
    Row,
    RunInfo,
)
from torchvitals.rules.catalogue import NAMES, rules
from torchvitals.rules.model import Model
from torchvitals.rules.pages import written
from torchvitals.rules.run import HEAD, RAW, TAIL, Run
from torchvitals.rules.spikes import robust_z
from torchvitals.rules.table import median, quantile
from torchvitals.store import RunWriter, open_run

from .builder import RunBuilder

DOCS = Path(__file__).parents[2] / "docs"


def long_run(path: Path, steps: int) -> None:
    keys = (Key("gradient", "a.weight", "norm"), Key("gradient", "b.weight", "norm"),
            Key("summary", "x", "median"))  # fmt: skip
    writer = RunWriter.create(path, RunInfo(name="long"))
    for step in range(1, steps + 1):
        values = np.array([step, 1.0, 0.0], dtype=np.float32)
        if step == 2000:
            values[1] = 777.0
        writer.append(Row(step, float(step), keys, values))
    writer.close()


def test_long_runs_keep_their_ends_and_every_spike(tmp_path: Path) -> None:
    steps = 4 * RAW
    long_run(tmp_path / "run", steps)
    with open_run(tmp_path / "run") as history:
        table = Run(history).table("gradient", "norm")
    assert len(table.steps) < RAW
    assert table.steps[:HEAD].tolist() == list(range(1, HEAD + 1))
    assert table.steps[-TAIL:].tolist() == list(range(steps - TAIL + 1, steps + 1))
    assert table.values[:HEAD, 0].tolist() == list(range(1, HEAD + 1))
    assert table.line("b.weight").values.max() == 777.0
    assert (np.diff(table.steps) > 0).all()


def test_short_runs_are_read_as_they_are(tmp_path: Path) -> None:
    long_run(tmp_path / "run", 300)
    with open_run(tmp_path / "run") as history:
        run = Run(history, at=250)
        table = run.table("gradient", "norm")
        assert table.steps.tolist() == list(range(1, 251))
        assert run.last_step == 250
        assert not run.table("gradient", "nothing")
        assert len(run.line("gradient", "a.weight", "norm")) == 250


def test_depth_goes_by_calls_and_bare_parameters_stand_before_what_follows() -> None:
    info = RunInfo(
        name="x",
        models=(
            ModelInfo(
                name="",
                modules=(
                    ModuleInfo(name=ROOT, type="Net", depth=0, parameters=("scale",)),
                    ModuleInfo(name="head", type="Linear", depth=1, parameters=("head.weight",)),
                    ModuleInfo(name="stem", type="Linear", depth=1, parameters=("stem.weight",)),
                ),
                parameters=(
                    ParameterInfo(name="scale", shape=(8,), dtype="float32"),
                    ParameterInfo(name="stem.weight", shape=(8, 8), dtype="float32"),
                    ParameterInfo(name="head.weight", shape=(8, 8), dtype="float32"),
                ),
            ),
        ),
    )
    model = Model(info, lambda: ["stem", "head"])
    assert sorted(model.order, key=model.depth) == ["scale", "stem.weight", "head.weight"]
    assert model.is_bare("scale")
    assert not model.is_bare("stem.weight")


def test_a_changed_rate_and_a_resume_reset_the_baseline(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder["optimizer/group0/lr"] = lambda t: 1e-3 if t < 50 else 1e-4
    with builder.open() as history:
        assert Run(history).resets == [50]


def test_a_spike_after_a_changed_rate_is_not_told(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder[f"gradient/{ROOT}/norm"] = lambda t: 60.0 if t == 81 else 0.6
    builder["optimizer/group0/lr"] = lambda t: 1e-3 if t < 80 else 3e-4
    assert builder.check("gradient_spike") is None


def test_robust_z_agrees_with_its_definition() -> None:
    values = np.exp(np.random.default_rng(0).normal(0, 0.3, 300))
    z, ratio = robust_z(values, window=50, least=10)
    assert np.isnan(z[:10]).all()
    for at in (10, 49, 50, 51, 299):
        before = np.log(values[max(0, at - 50) : at])
        mad = 1.4826 * np.median(np.abs(before - np.median(before)))
        assert z[at] == np.float64((np.log(values[at]) - np.median(before)) / max(mad, 0.05))
        np.testing.assert_allclose(ratio[at], values[at] / np.exp(np.median(before)))


def test_median_and_quantile_ignore_what_is_missing() -> None:
    values = np.random.default_rng(0).normal(size=(7, 9))
    values[values > 0.8] = np.nan
    values[:, 3] = np.nan
    known = [c[~np.isnan(c)] for c in values.T]
    want = [np.median(c) if len(c) else np.nan for c in known]
    np.testing.assert_allclose(median(values, axis=0), want)
    rows = [np.sort(r[~np.isnan(r)]) for r in values]
    want = [r[max(int(np.ceil(0.75 * len(r))) - 1, 0)] for r in rows]
    np.testing.assert_allclose(quantile(values, 0.75), want)


def test_the_pages_in_docs_are_those_of_the_rules() -> None:
    for name, text in written().items():
        path = DOCS / name
        assert path.exists(), f"{name} is missing: python -m torchvitals.rules.pages docs"
        assert path.read_text() == text, f"{name}: python -m torchvitals.rules.pages docs"
    assert {path.stem for path in (DOCS / "rules").glob("*.md")} == {*NAMES, "index"}


def test_every_page_says_what_a_page_must() -> None:
    for rule in rules():
        for part in ("**Shows as**", "**Why it hurts**", "**Judged by**", "**Known false alarms**"):
            assert part in rule.page, (rule.name, part)


def test_events_are_cut_too(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", steps=40)
    builder.events.append(Event(30, 0.0, "checkpoint", "saved"))
    with builder.open() as history:
        assert len(Run(history).events("checkpoint")) == 1
        assert Run(history, at=20).events() == []
