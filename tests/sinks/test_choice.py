"""Which columns a sink gets."""

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from torchvitals.record import MISSING, ROOT, ConfigError, HistogramRow, Key, Row
from torchvitals.record.bins import NUM_BINS
from torchvitals.sinks.choice import LIMIT, Choice
from torchvitals.sinks.sink import Sink

from .training import PARAMETERS, row, train


class Keeps(Sink):
    """Remembers everything."""

    name = "keeps"

    def __init__(self, series: str | None = None) -> None:
        self.series = series
        self.rows: list[Row] = []
        self.drawn: list[HistogramRow] = []

    def write(self, row: Row) -> None:
        self.rows.append(row)

    def histograms(self, row: HistogramRow) -> None:
        self.drawn.append(row)

    def seen(self) -> set[str]:
        scalars = {str(key) for row in self.rows for key in row.header}
        return scalars | {f"{k}/{s}/histogram" for row in self.drawn for k, s in row.sites}


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Keeps, Keeps, Keeps]:
    """300 layers, watched by three sinks."""
    layers = [layer for _ in range(300) for layer in (nn.Linear(8, 8, bias=False), nn.Tanh())]
    usual, widened, everything = Keeps(), Keeps("^parameter/1[0-3]\\."), Keeps(".*")
    path = tmp_path_factory.mktemp("deep") / "run"
    train(path, [usual, widened, everything], model=nn.Sequential(*layers), steps=6)
    return usual, widened, everything


def test_a_model_of_300_layers_gives_at_most_60_series(deep: tuple[Keeps, Keeps, Keeps]) -> None:
    usual, _, everything = deep
    assert 30 < len(usual.seen()) <= LIMIT
    assert len(everything.seen()) > 5000


def test_what_matters_is_among_them(deep: tuple[Keeps, Keeps, Keeps]) -> None:
    seen = deep[0].seen()
    wanted = {
        "loss", "eval/val/loss", "eval/val/accuracy", "optimizer/group0/lr",
        f"gradient/{ROOT}/norm", f"gradient/{ROOT}/clip_ratio", f"parameter/{ROOT}/norm",
        f"update/{ROOT}/ratio", "summary/gradient_norm/median", "summary/gradient_norm/p95",
        "summary/update_ratio/min", "summary/update_ratio/num_frozen", "clock/forward/wall_s",
        "speed/run/samples_per_s", "machine/process/rss_bytes",
    }  # fmt: skip
    assert wanted <= seen


def test_the_worst_parameters_are_followed_by_name(deep: tuple[Keeps, Keeps, Keeps]) -> None:
    usual, _, everything = deep
    last = everything.rows[-1]
    values = dict(zip(last.header, last.values.tolist(), strict=True))
    norms = {k.site: v for k, v in values.items() if k.kind == "gradient" and k.stat == "rms"}
    named = [key for key in usual.seen() if key.startswith("gradient/") and key.endswith("/norm")]
    named = [key for key in named if ROOT not in key]
    assert 1 <= len(named) <= 4
    worst = max(norms, key=norms.__getitem__)
    assert f"gradient/{worst}/norm" in named or len(named) == 4
    followed = {key.split("/")[1] for key in named}
    assert {s for row in usual.drawn for _, s in row.sites} <= followed
    assert usual.drawn


def test_a_regular_expression_widens_it(deep: tuple[Keeps, Keeps, Keeps]) -> None:
    usual, widened, _ = deep
    more = widened.seen() - usual.seen()
    assert "parameter/10.weight/norm" in more
    assert "parameter/12.weight/histogram" in more
    assert all(key.startswith("parameter/1") for key in more)
    assert {"loss", f"gradient/{ROOT}/norm"} <= widened.seen()


def test_what_was_not_measured_is_left_out() -> None:
    header = (Key.scalar("loss"), Key("gradient", ROOT, "norm"), Key("parameter", ROOT, "norm"))
    values = np.array([np.nan, MISSING, 2.0], dtype=np.float32)
    found = Choice().pick(Row(1, 0.0, header, values))
    assert found is not None
    assert found.header == (Key.scalar("loss"), Key("parameter", ROOT, "norm"))
    assert np.isnan(found.values[0])
    assert Choice().pick(Row(1, 0.0, header[1:2], values[1:2])) is None


def test_too_many_numbers_of_ones_own_are_named() -> None:
    choice = Choice()
    found = choice.pick(row(1, **{f"n{k:02}": 1.0 for k in range(10)}))
    assert found is not None
    assert len(found.header) == 8
    assert choice.left_out == ["n08", "n09"]
    again = choice.pick(row(2, n08=1.0, n00=1.0))
    assert again is not None
    assert [str(key) for key in again.header] == ["n00"]


def offenders(step: int, gradient: int, update: int) -> Row:
    header = (
        Key("summary", "largest_gradient.1", "parameter"),
        Key("summary", "smallest_update.1", "parameter"),
        *(Key("gradient", name, "norm") for name in PARAMETERS),
        *(Key("update", name, "ratio") for name in PARAMETERS),
    )
    values = np.arange(len(header), dtype=np.float32)
    values[:2] = gradient, update
    return Row(step, 0.0, header, values)


def test_one_that_stood_out_once_stays() -> None:
    choice = Choice(PARAMETERS)
    names = []
    for step, (gradient, update) in enumerate([(2, 0), (3, 1), (0, 2)], start=1):
        found = choice.pick(offenders(step, gradient, update))
        assert found is not None
        names.append({str(key) for key in found.header})
    assert names[0] == {"gradient/2.weight/norm", "update/0.weight/ratio"}
    assert names[1] == names[0] | {"gradient/2.bias/norm", "update/0.bias/ratio"}
    # There is room for two updates.
    assert names[2] == names[1] | {"gradient/0.weight/norm"}


def test_histograms_follow_the_gradients() -> None:
    choice = Choice(PARAMETERS)
    sites = tuple((kind, name) for kind in ("gradient", "parameter") for name in PARAMETERS)
    drawn = HistogramRow(1, 0.0, sites, np.ones((len(sites), NUM_BINS), dtype=np.uint32))
    assert choice.pick_histograms(drawn) is None
    choice.pick(offenders(1, 2, 0))
    found = choice.pick_histograms(drawn)
    assert found is not None
    assert found.sites == (("gradient", "2.weight"),)
    assert found.counts.shape == (1, NUM_BINS)


def test_a_wrong_expression_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="series must be a regular expression"):
        train(tmp_path / "run", [Keeps("(")])
    assert not (tmp_path / "run").exists()
