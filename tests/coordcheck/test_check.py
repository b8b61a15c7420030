"""`coordinate_check` and its table."""

from __future__ import annotations

import builtins
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torchvitals.coordcheck import CoordinateTable, coordinate_check
from torchvitals.coordcheck import check as check_module
from torchvitals.coordcheck.check import usual_loss
from torchvitals.coordcheck.progress import Bar
from torchvitals.coordcheck.table import CoordinateRow
from torchvitals.record import ConfigError, MissingExtra

from .examples import FOLDER


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(width)
        self.last = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.drop(self.first(x)))))


def batches() -> list[tuple[Tensor, Tensor]]:
    dice = torch.Generator().manual_seed(0)
    return [
        (torch.randn(6, 4, generator=dice), torch.randint(3, (6,), generator=dice))
        for _ in range(2)
    ]


def checked(**options: Any) -> CoordinateTable:
    settings: dict[str, Any] = {"steps": 2, "seeds": 2, **options}
    return coordinate_check(Net, [8, 16], batches(), **settings)


def test_same_seed_same_table_and_the_dice_stay() -> None:
    before = torch.get_rng_state()
    one = checked()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert one.to_json() == checked().to_json()


def test_no_dropout_between_the_two_passes() -> None:
    """With weights that did not move both passes are the same, to the bit."""

    def still(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.0)

    table = checked(optimizer=still)
    for term in ("effective", "propagating", "change"):
        assert {row.value for row in table.rows if row.term == term} == {0.0}


def test_values_by_hand() -> None:
    """One linear layer, one step of plain SGD."""
    kept: list[nn.Linear] = []

    def make(width: int) -> nn.Module:
        kept.append(nn.Linear(4, width))
        return nn.Sequential(kept[-1])

    x = batches()[0][0]
    table = coordinate_check(
        make, [5], [x], optimizer="sgd", lr=0.1, steps=1, seeds=[3],
        loss=lambda model, batch: model(batch).square().mean(),
    )  # fmt: skip
    torch.manual_seed(3)
    start = nn.Linear(4, 5).weight.detach().double()
    now = kept[0].weight.detach().double()
    moved = (x.double() @ (now - start).T).numpy()
    right = np.sqrt((moved**2).mean(axis=1)).mean()
    assert table.values("0", "effective") == pytest.approx(right, rel=1e-5)
    out = kept[0](x).detach().double().numpy()
    assert table.values("0", "activation") == pytest.approx(np.sqrt((out**2).mean(axis=1)).mean())
    largest = np.linalg.norm((now - start).numpy(), 2)
    right = np.linalg.norm(moved, axis=1).mean() / (largest * x.norm(dim=1).mean())
    assert table.values("0", "effective_alignment") == pytest.approx(float(right), rel=1e-4)


def test_modules_steps_and_terms() -> None:
    table = checked(at=[0, 2])
    assert table.modules == ["first", "norm", "last"]
    assert (table.widths, table.seeds, table.steps) == ([8, 16], [0, 1], [0, 2])
    assert checked(modules="drop|last").modules == ["drop", "last"]
    assert not any("alignment" in row.term for row in checked(alignment=False).rows)
    with pytest.raises(ValueError, match=r"step 1 was not measured; there are \[0, 2\]"):
        table.exponent("first", "effective", 1)
    with pytest.raises(
        ValueError, match="no 'effective' of 'fist' in this table; modules are first"
    ):
        table.exponent("fist")
    with pytest.raises(ValueError, match="no module was measured"):
        checked(modules="nothing").summary()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"at": [3]}, r"at must lie within 0 … steps \(2\), got \[3\]"),
        ({"optimizer": "adams"}, "one of adam, adamw, sgd, got 'adams'"),
        ({"lr": 0.0}, "lr must be above 0, got 0.0"),
        ({"modules": "("}, "is not a regular expression"),
    ],
)
def test_wrong_arguments_raise_before_anything_is_built(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        checked(**options)


@pytest.mark.parametrize("widths", [[], [8, 8], [0]])
def test_wrong_widths(widths: list[int]) -> None:
    with pytest.raises(ValueError, match="widths must be different whole numbers above 0"):
        coordinate_check(Net, widths, batches())


def no_width() -> nn.Module:
    return nn.Linear(4, 3)


MISUSE: list[tuple[str, Any, str]] = [
    ("make_model", lambda width: None, "make_model must return a torch.nn.Module, got None for "),
    ("make_model", no_width, r"function of the width that returns a .* got no_width\(\)"),
    ("make_model", nn.Linear(8, 8), "make_model must be a function of the width .* got a Linear"),
    ("widths", 64, r"widths must be different whole numbers above 0, got 64; for instance \[64"),
    ("widths", [8.0, 16.0], r"whole numbers above 0, got \[8.0, 16.0\]"),
    ("seeds", [1, 1], r"different whole numbers such as \[0, 1, 2\], got \[1, 1\]"),
    ("seeds", 1.5, "seeds must be at least 1, or .* got 1.5"),
    ("at", 1, r"at must lie within .* got 1; for instance at=\[0, 1\]"),
    ("steps", "3", "steps must be at least 1, got '3'"),
    ("modules", 5, "modules=5 is not a regular expression"),
    ("optimizer", torch.optim.SGD, r"the class SGD.* use optimizer=lambda model: SGD\(model.par"),
    ("optimizer", partial(torch.optim.SGD, lr=0.1), "got the class SGD, which takes parameters"),
    ("optimizer", lambda model: None, r"must return an optimizer, with zero_grad\(\) .* got None"),
    ("optimizer", ["adam"], "a function of the model or one of adam, adamw, sgd, got a list"),
    ("loss", lambda model: model, r"loss must be a function of model and batch, got <lambda>\(mod"),
    ("loss", lambda model, batch: None, "loss must return a tensor .* got None; does it end"),
    ("batches", 5, "batches must be an iterable of batches, or .* got 5"),
    ("batches", lambda width: [], r"without arguments that gives one, got <lambda>\(width\)"),
]


@pytest.mark.parametrize(("name", "value", "text"), MISUSE)
def test_misuse_is_named_with_what_to_do(name: str, value: Any, text: str) -> None:
    settings: dict[str, Any] = {"make_model": Net, "widths": [8], "batches": batches()}
    # What only shows when the loss is used comes before the second model, too.
    with pytest.raises(ConfigError, match=text):
        coordinate_check(**{**settings, "steps": 1, "seeds": 1, "optimizer": "sgd", name: value})


def test_numbers_of_numpy_are_whole() -> None:
    table = coordinate_check(Net, np.array([8, 16]), batches(), steps=1, seeds=np.arange(2))
    assert (table.widths, table.seeds) == ([8, 16], [0, 1])


def test_errors_of_the_users_own_code_stay_as_they_are() -> None:
    def broken() -> Any:
        yield batches()[0]
        raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine$"):
        coordinate_check(Net, [8], broken)


def test_batches_of_all_kinds() -> None:
    def endless() -> Any:
        while True:
            yield from batches()

    right = checked().to_json()
    for given in (batches, endless, endless()):
        assert coordinate_check(Net, [8, 16], given, steps=2, seeds=2).to_json() == right
    with pytest.raises(ValueError, match="batches is empty"):
        coordinate_check(Net, [8], [])


def test_usual_loss() -> None:
    x = torch.ones(2, 3)

    class Own(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return {"loss": x.sum(), "logits": x}

    assert usual_loss(nn.Identity(), (x, torch.zeros(2, 3))) == 1.0
    assert usual_loss(nn.Identity(), (x, torch.tensor([0, 1]))) == pytest.approx(math.log(3))
    assert usual_loss(Own(), {"x": x}) == 6.0
    assert usual_loss(nn.Identity(), torch.tensor(4.0)) == 4.0


def test_usual_loss_says_what_is_missing() -> None:
    with pytest.raises(
        ValueError, match=r"gave a tensor of shape \(2, 3\), not a loss; use batches"
    ):
        usual_loss(nn.Identity(), torch.ones(2, 3))


def test_a_run_that_diverges_is_named() -> None:
    table = checked(optimizer="sgd", lr=1e30, steps=3)
    assert table.exponent("last", "activation").reason.startswith(("not finite at", "not measured"))
    assert "NaN" in table.to_json()


def test_json_round_trip_with_nan() -> None:
    rows = [CoordinateRow(8, 0, 1, "a", "effective", value) for value in (1.5,)]
    rows += [CoordinateRow(16, 0, 1, "a", "effective", float("inf"))]
    rows += [CoordinateRow(32, 0, 1, "a", "effective", float("nan"))]
    table = CoordinateTable(rows)
    text = table.to_json()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    again = CoordinateTable.from_json(text)
    assert repr(again.rows) == repr(rows)
    assert again.to_records()[0] == {
        "width": 8, "seed": 0, "step": 1, "module": "a", "term": "effective", "value": 1.5,
    }  # fmt: skip


def grown() -> CoordinateTable:
    return CoordinateTable(
        [
            CoordinateRow(width, seed, step, module, "effective", step * width**power * 2.0**seed)
            for width in (8, 16, 32)
            for seed in (0, 1)
            for step in (1, 2)
            for module, power in (("up", 1.0), ("flat", 0.0))
        ]
    )


def test_an_exponent_of_nothing_has_no_minus() -> None:
    rows = [
        CoordinateRow(width, 0, 1, "flat", "effective", 1.0 - 1e-9 * width) for width in (8, 16, 32)
    ]
    assert "+0.00 (+0.00 … +0.00)" in CoordinateTable(rows).summary()


def test_summary() -> None:
    assert grown().summary().splitlines() == [
        "Exponents of the width at step 2: widths 8, 16, 32; 2 seeds (lowest … highest)",
        "",
        "module  effective              propagating  activation",
        "up      +1.00 (+1.00 … +1.00)  –            –",
        "flat    +0.00 (+0.00 … +0.00)  –            –",
    ]


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table = grown()
    for ending in ("png", "svg", "pdf"):
        table.plot(tmp_path / f"plot.{ending}", predicted={"up": 1.0})
        assert (tmp_path / f"plot.{ending}").stat().st_size > 1000
    text = (tmp_path / "plot.svg").read_text()
    for word in ("up: effective", "flat: effective", "step 1", "step 2", "predicted slope"):
        assert f"<!-- {word} -->" in text
    table.plot(tmp_path / "one.svg", modules="fl", terms=["effective"])
    assert "up: effective" not in (tmp_path / "one.svg").read_text()
    with pytest.raises(ValueError, match="no module's name matches 'x'"):
        table.plot(tmp_path / "none.svg", modules="x")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("x.foo", "matplotlib knows no .foo; use .png, .svg or .pdf"),
        ("nodir/x.png", "there is no folder 'nodir'; make it first"),
        (".", "is a folder; name a file inside it"),
    ],
)
def test_where_no_plot_can_be_written(
    path: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=text):
        grown().plot(path)
    with pytest.raises(ConfigError, match=text):
        check_module.need_plots(path)
    assert not list(tmp_path.iterdir())


def test_plot_draws_the_values_and_the_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, _path: drawn.append(self))
    grown().plot(tmp_path / "x.png", predicted={"up": 1.0}, terms=["effective"])
    up, flat = drawn[0].axes
    first, second, guide = up.get_lines()
    np.testing.assert_allclose(second.get_xydata()[:, 0], [8, 16, 32])
    np.testing.assert_allclose(second.get_ydata(), 2 * 2**0.5 * np.array([8, 16, 32]))
    np.testing.assert_allclose(second.get_ydata(), 2 * np.array(first.get_ydata()))
    np.testing.assert_allclose(guide.get_ydata(), second.get_ydata())
    assert guide.get_linestyle() == "--"
    assert len(flat.get_lines()) == 2
    low, high = flat.get_ylim()
    assert high / low >= 10 * (1 - 1e-9)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install torchvitals\[plots\]"):
        grown().plot("x.png")


def test_bar_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked()
    assert capsys.readouterr() == ("", "")
    made: list[Bar] = []

    class Seen(Bar):
        def __init__(self, total: int) -> None:
            super().__init__(total)
            made.append(self)

    monkeypatch.setattr(check_module.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("torchvitals.coordcheck.progress.Bar", Seen)
    checked(progress=False)
    assert not made
    checked()
    (task,) = made[0]._progress.tasks
    assert task.completed == task.total == 2 * 2 * 3
    assert task.description == "width 16, seed 1"


def test_transformer_layers_of_torch_are_seen_inside() -> None:
    """Their fast path would work past the modules."""

    def make(width: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(4, width), nn.TransformerEncoderLayer(width, 2, 16, batch_first=True)
        )

    table = coordinate_check(
        make, [8], [torch.randn(2, 5, 4)], steps=1, seeds=1,
        loss=lambda model, batch: model(batch).square().mean(),
    )  # fmt: skip
    assert {"1.linear1", "1.norm1", "1.self_attn:out[0]"} <= set(table.modules)
    assert (table.values("1.linear1", "effective") > 0).all()


def test_projections_of_attention_are_measured_too() -> None:
    """None of them is a module that is called."""

    class Attends(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.up = nn.Linear(4, width)
            self.attn = nn.MultiheadAttention(width, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            h = self.up(x)
            return self.attn(h, h, h, need_weights=False)[0]

    kept: list[Attends] = []

    def make(width: int) -> nn.Module:
        kept.append(Attends(width))
        return kept[-1]

    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    table = coordinate_check(
        make, [8], [x], steps=2, seeds=[3],
        loss=lambda model, batch: model(batch).square().mean(),
    )  # fmt: skip
    names = [f"attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")]
    assert table.modules == ["up", "attn:out[0]", *names]
    torch.manual_seed(3)
    start, now = Attends(8).double(), kept[0].double()
    h, h0 = now.up(x.double()), start.up(x.double())
    for name, wt, w0 in zip(
        names, now.attn.in_proj_weight.chunk(3), start.attn.in_proj_weight.chunk(3), strict=False
    ):
        right = rms_of(h @ (wt - w0).T)
        assert table.values(name, "effective") == pytest.approx(right, rel=1e-4)
        right = rms_of((h - h0) @ w0.T)
        assert table.values(name, "propagating") == pytest.approx(right, rel=1e-4)
        assert (table.values(name, "effective_alignment") > 0).all()


def rms_of(tensor: Tensor) -> float:
    return float(tensor.detach().square().mean(dim=-1).sqrt().mean())


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_examples_run(name: str, tmp_path: Path) -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-W", "error", FOLDER / f"coordinate_check_{name}.py",
         "--widths", "64,128", "--steps", "1", "--seeds", "1", "--plots", tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Exponents of the width at step 1") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"sp.png", "mup.png"}
