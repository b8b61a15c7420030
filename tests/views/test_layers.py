"""What is planted comes out on top, in the words of its kind."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.views.made_runs import INFO, LAYERS, WEIGHTS, Change, make_run
from torchvitals.record import ConfigError, Key
from torchvitals.store import open_run
from torchvitals.views.layers import LayerTable, layer_table


def table(path: Path, kind: str, change: Change | None = None, **options: object) -> LayerTable:
    make_run(path, change=change)
    with open_run(path) as history:
        found = layer_table(history, kind, **options)  # type: ignore[arg-type]
    assert found is not None
    return found


def setting(kind: str, site: str, **stats: float) -> Change:
    def change(_step: int, values: dict[Key, float]) -> None:
        for stat, value in stats.items():
            values[Key(kind, site, stat)] = value

    return change


def both(*changes: Change) -> Change:
    def change(step: int, values: dict[Key, float]) -> None:
        for one in changes:
            one(step, values)

    return change


@pytest.mark.parametrize(
    ("kind", "stats", "note"),
    [
        ("gradient", {"norm": 1e-3}, ""),
        ("gradient", {"norm": 1e3}, "exploding"),
        ("gradient", {"norm": 1e-9}, "vanishing"),
        ("gradient", {"norm": 0.0}, "zero"),
        ("gradient", {"num_nan": 3.0}, "3 NaN"),
        ("gradient", {"num_nan": 3.0, "num_posinf": 1.0}, "3 NaN, 1 Inf"),
        ("gradient", {"norm": math.nan}, "norm not finite"),
        ("parameter", {"rms": 30.0}, ""),
        ("parameter", {"rms": 0.0}, "all zero"),
        ("parameter", {"num_posinf": 2.0}, "2 Inf"),
        ("update", {"ratio": 0.0, "frozen": 1.0}, "frozen"),
        ("update", {"ratio": 0.0}, "unchanged"),
        ("update", {"ratio": 1e-7}, "below 1e-05"),
        ("update", {"ratio": 0.5}, "above 1e-02"),
        ("optimizer", {"g2_over_v_rms": 5.0}, "v lags behind"),
        ("optimizer", {"sqrt_v_over_eps": 2.0}, "ε rules"),
    ],
)
def test_the_planted_layer_is_first(
    tmp_path: Path, kind: str, stats: dict[str, float], note: str
) -> None:
    found = table(tmp_path, kind, setting(kind, WEIGHTS[3], **stats))
    assert found.lines[0].site == WEIGHTS[3]
    assert found.lines[0].note == note
    assert not any(line.note for line in found.lines[1:])
    assert found.num_layers == len(WEIGHTS)


@pytest.mark.parametrize(
    ("stats", "note"),
    [
        ({"dead_frac": 0.4}, "dead units"),
        ({"std": 1e-4}, ""),
        ({"std": 40.0}, ""),
        ({"num_nan": 1.0}, "1 NaN"),
    ],
)
def test_the_planted_activation_is_first(
    tmp_path: Path, stats: dict[str, float], note: str
) -> None:
    found = table(tmp_path, "activation", setting("activation", LAYERS[4], **stats))
    assert found.lines[0].site == LAYERS[4]
    assert found.lines[0].note == note


def test_activations_by_the_order_of_faults(tmp_path: Path) -> None:
    change = both(
        setting("activation", LAYERS[0], std=1e6),
        setting("activation", LAYERS[1], saturated_frac=0.9),
        setting("activation", LAYERS[2], dead_frac=0.2),
        setting("activation", LAYERS[3], dead_frac=0.7),
        setting("activation", LAYERS[4], num_nan=1.0),
        # One dead unit in a hundred is no reason to come before a wild spread.
        setting("activation", LAYERS[5], dead_frac=0.01),
    )
    found = table(tmp_path, "activation", change)
    expected = [LAYERS[4], LAYERS[3], LAYERS[2], LAYERS[1], LAYERS[0], LAYERS[5]]
    assert [line.site for line in found.lines] == expected


def test_not_finite_comes_before_frozen_and_frozen_before_large(tmp_path: Path) -> None:
    change = both(
        setting("update", WEIGHTS[0], ratio=10.0),
        setting("update", WEIGHTS[1], ratio=0.0, frozen=1.0),
        setting("update", WEIGHTS[2], ratio=math.nan),
    )
    found = table(tmp_path, "update", change)
    assert [line.site for line in found.lines[:3]] == [WEIGHTS[2], WEIGHTS[1], WEIGHTS[0]]


def test_a_parameter_no_optimizer_holds_is_named(tmp_path: Path) -> None:
    groups = (replace(INFO.groups[0], parameters=tuple(WEIGHTS[1:])),)

    def unmeasured(_step: int, values: dict[Key, float]) -> None:
        for key in list(values):
            if key.kind == "update" and key.site == WEIGHTS[0] and _step > 1:
                del values[key]

    make_run(tmp_path, change=unmeasured, info=replace(INFO, groups=groups))
    with open_run(tmp_path) as history:
        found = layer_table(history, "update")
    assert found is not None
    assert (found.lines[0].site, found.lines[0].note) == (WEIGHTS[0], "in no optimizer")
    assert set(found.lines[0].values.values()) == {None}


def test_biases_are_compared_with_biases_of_their_type(tmp_path: Path) -> None:
    def change(_step: int, values: dict[Key, float]) -> None:
        for at, layer in enumerate(LAYERS):
            values[Key("parameter", f"{layer}.bias", "rms")] = 1e-4 * (1 + 0.1 * at)

    found = table(tmp_path, "parameter", change)
    factors = [line.values["vs_median"] for line in found.lines]
    assert all(factor is not None and 0.5 < factor < 2 for factor in factors)


def test_the_values_are_those_of_the_step_asked_for(tmp_path: Path) -> None:
    def change(step: int, values: dict[Key, float]) -> None:
        values[Key("gradient", WEIGHTS[2], "norm")] = 100.0 + step if step == 7 else 1.0

    make_run(tmp_path, change=change, steps=range(1, 41, 2))
    with open_run(tmp_path) as history:
        exact = layer_table(history, "gradient", step=7, top=1)
        between = layer_table(history, "gradient", step=8, top=1)
        early = layer_table(history, "gradient", step=0, top=1)
        last = layer_table(history, "gradient", top=1)
    assert exact is not None
    assert between is not None
    assert early is not None
    assert last is not None
    assert (exact.step, exact.asked_step) == (7, None)
    assert exact.lines[0].site == WEIGHTS[2]
    assert exact.lines[0].values["norm"] == 107.0
    assert (between.step, between.asked_step) == (7, 8)
    assert (early.step, early.asked_step) == (1, 0)
    assert last.step == 39
    assert last.lines[0].site != WEIGHTS[2]


def test_subtrees_are_no_layers_unless_asked_for(tmp_path: Path) -> None:
    make_run(tmp_path)
    with open_run(tmp_path) as history:
        layers = layer_table(history, "gradient")
        root = layer_table(history, "gradient", site="root")
        nothing = layer_table(history, "gradient", site="nowhere")
        some = layer_table(history, "gradient", site=r"blocks\.[12]")
    assert layers is not None
    assert {line.site for line in layers.lines} == set(WEIGHTS)
    assert root is not None
    assert [line.site for line in root.lines] == ["[root module]"]
    assert nothing is None
    assert some is not None
    assert some.num_layers == 2


def test_stats_that_are_asked_for_lead(tmp_path: Path) -> None:
    change = setting("gradient", WEIGHTS[5], max=90.0)
    found = table(tmp_path, "gradient", change, stats=["absmax", "zero_frac"])
    assert found.lead == "absmax"
    assert found.stats == ("absmax", "zero_frac")
    assert found.lines[0].site == WEIGHTS[5]
    assert found.lines[0].values["absmax"] == 90.0
    assert len(found.lines[0].spark) == 16
    assert "absmax" in found.worst


def test_shares_are_ordered_by_size(tmp_path: Path) -> None:
    change = setting("gradient", WEIGHTS[1], zero_frac=0.25)
    found = table(tmp_path, "gradient", change, stats=["zero_frac"])
    assert found.lines[0].site == WEIGHTS[1]
    assert found.worst == "not finite, then highest zero_frac"


def test_an_unknown_stat_names_the_known_ones(tmp_path: Path) -> None:
    make_run(tmp_path)
    with (
        open_run(tmp_path) as history,
        pytest.raises(ConfigError, match="it has clip_ratio, max, mean, min"),
    ):
        layer_table(history, "gradient", stats=["nrom"])


def test_a_table_is_of_a_step_with_its_values(tmp_path: Path) -> None:
    """Learning rates are of every step, moments of one in four."""

    def change(step: int, values: dict[Key, float]) -> None:
        values[Key("optimizer", "group0", "lr")] = 1e-3
        for site in WEIGHTS:
            for stat in ("g2_over_v_rms", "sqrt_v_over_eps"):
                values.pop(Key("optimizer", site, stat), None)
                if step % 4 == 1:
                    values[Key("optimizer", site, stat)] = 1.0 + step

    found = table(tmp_path / "run", "optimizer", change)
    assert found.step == 37
    assert {line.values["g2_over_v_rms"] for line in found.lines} == {38.0}
    with open_run(tmp_path / "run") as history:
        earlier = layer_table(history, "optimizer", step=10)
    assert earlier is not None
    assert (earlier.step, earlier.asked_step) == (9, 10)
