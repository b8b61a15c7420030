"""Known exponents come out: standard parametrisation grows as theory says, μP is flat.

With Adam each weight moves by about the learning rate whatever its gradient is, and inputs are
aligned with updates, so that (W_t − W_0) x_t goes as lr · fan_in. With SGD it goes as
lr · δ · ‖x‖², where the error δ of a hidden unit is 1/√width under the standard initialisation and
1 at the readout: −1/2, +1/2, +1. What is random in x adds a part that goes as √fan_in, which pulls
exponents down a little at small widths.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchvitals.coordcheck import CoordinateTable, coordinate_check

from .examples import example

WIDTHS = [64, 128, 256, 512, 1024]
TOLERANCE = 0.15

mlp, transformer = example("mlp"), example("transformer")


def effective(table: CoordinateTable, step: int) -> dict[str, float]:
    return {one.module: one.slope for one in table.exponents(["effective"], [step])}


@pytest.fixture(scope="module")
def standard() -> CoordinateTable:
    return coordinate_check(mlp.sp, WIDTHS, mlp.batches, optimizer=mlp.adam, seeds=2)


@pytest.fixture(scope="module")
def mup() -> CoordinateTable:
    return coordinate_check(mlp.mup, WIDTHS, mlp.batches, optimizer=mlp.mup_adam, seeds=2)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_standard_mlp_under_adam_grows_with_the_width(standard: CoordinateTable, step: int) -> None:
    right = {"embed": 0.0, "hidden1": 1.0, "hidden2": 1.0, "readout": 1.0}
    assert effective(standard, step) == pytest.approx(right, abs=TOLERANCE)


def test_what_propagates_in_a_standard_mlp(standard: CoordinateTable) -> None:
    """The change of hidden1 passes on through random weights; at the readout they are aligned.

    The change of embed, which does not grow, passes on as well: that takes a little off.
    """
    assert standard.exponent("embed", "propagating").reason == "zero"
    slopes = [standard.exponent(name, "propagating", 1).slope for name in standard.modules[1:]]
    assert slopes == pytest.approx([0.0, 1.0, 1.5], abs=0.25)


def test_updates_and_inputs_are_aligned_at_every_width(standard: CoordinateTable) -> None:
    for name in ("hidden1", "hidden2", "readout"):
        assert standard.values(name, "effective_alignment", 1).min() > 0.4
        assert abs(standard.exponent(name, "effective_alignment", 1).slope) < 0.05
    # Random weights have no direction to speak of: 1/2 is √(mean s²)/max s of a square one.
    assert standard.values("hidden1", "propagating_alignment", 1)[-1] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_mup_mlp_is_flat(mup: CoordinateTable, step: int) -> None:
    assert effective(mup, step) == pytest.approx(dict.fromkeys(mup.modules, 0.0), abs=TOLERANCE)
    for name in ("hidden1", "hidden2"):
        for term in ("propagating", "change", "activation"):
            assert abs(mup.exponent(name, term, step).slope) <= TOLERANCE


def test_logits_of_mup_start_small(mup: CoordinateTable) -> None:
    """Known and wanted: 1/√width at initialisation."""
    assert mup.exponent("readout", "activation", 0).slope == pytest.approx(-0.5, abs=TOLERANCE)


def test_standard_mlp_under_sgd() -> None:
    table = coordinate_check(
        mlp.sp, WIDTHS, mlp.batches, optimizer="sgd", lr=1e-3, steps=1, seeds=3, alignment=False
    )
    right = {"embed": -0.5, "hidden1": 0.5, "hidden2": 0.5, "readout": 1.0}
    assert effective(table, 1) == pytest.approx(right, abs=TOLERANCE)


def mup_sgd(model: nn.Module) -> torch.optim.Optimizer:
    growth = model.hidden1.in_features / mlp.BASE_WIDTH
    rates = {"embed": growth, "hidden1": 1.0, "hidden2": 1.0, "readout": 1 / growth}
    return torch.optim.SGD(
        [{"params": getattr(model, name).weight, "lr": 1e-2 * by} for name, by in rates.items()]
    )


def test_mup_mlp_under_sgd_is_flat() -> None:
    table = coordinate_check(
        mlp.mup, WIDTHS, mlp.batches, optimizer=mup_sgd, steps=1, seeds=3, alignment=False
    )
    assert effective(table, 1) == pytest.approx(dict.fromkeys(table.modules, 0.0), abs=TOLERANCE)


SMALL_WIDTHS = [64, 128, 256, 512]


def is_matrix(name: str) -> bool:
    return "norm" not in name and name not in ("tokens", "positions")


@pytest.mark.parametrize("variant", ["sp", "mup"])
def test_transformer(variant: str) -> None:
    make = getattr(transformer, variant)
    table = coordinate_check(
        make, SMALL_WIDTHS, transformer.batches, optimizer=make.optimizer, steps=2, seeds=2,
        alignment=False,
    )  # fmt: skip
    grows = 1.0 if variant == "sp" else 0.0
    right = {name: grows if is_matrix(name) else 0.0 for name in table.modules}
    assert len(right) == 20
    for step in (1, 2):
        assert effective(table, step) == pytest.approx(right, abs=TOLERANCE)
    propagating = table.exponent("blocks.1.norm2", "propagating", 2).slope
    assert propagating == pytest.approx(grows, abs=TOLERANCE)
