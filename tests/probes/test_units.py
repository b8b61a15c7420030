"""Counters of units: in trays that grow, over two windows, beside a plain count."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchvitals.probes import units
from torchvitals.probes.units import DEAD_SHARE, MIN_STEPS, WINDOW, UnitCounters
from torchvitals.stats.backend import Backend, choose_backend

SIZES = [3, 700, 64, 5000, 1, 300, 9000, 20]
"""More than the first trays hold."""


@pytest.fixture(params=["native", "torch"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return choose_backend(request.param)


def test_layers_in_several_trays(backend: Backend) -> None:
    counters = UnitCounters()
    generator = torch.Generator().manual_seed(0)
    seen: list[list[torch.Tensor]] = []
    # A unit is dead where its threshold is out of reach.
    thresholds = [torch.rand(size, generator=generator) * 4 - 1 for size in SIZES]
    for step in range(1, 2 * WINDOW + MIN_STEPS + 1):
        # The last two layers are called from the third step on.
        outputs = [
            (torch.rand(64, size, generator=generator) - threshold).relu()
            for size, threshold in zip(SIZES, thresholds, strict=True)
        ][: None if step > 2 else -2]
        seen.append(outputs)
        activity = [counters.of(k, out, 0.0, str(k)) for k, out in enumerate(outputs)]
        looks = counters.looks_at(a for a in activity if a is not None)
        backend.measure(outputs, activity=activity)
        counters.look(looks)
        found = counters.snapshot()
        assert (found is None) == (step % MIN_STEPS != 0)
        if found is None:
            continue
        lines, shares = found.shares()
        begin = max(0, (step - 1) // WINDOW - 1) * WINDOW
        for line, (dead, _) in zip(lines, shares.T, strict=True):
            calls = [outs[line] for outs in seen[begin:step] if line < len(outs)]
            active = torch.cat(calls).gt(0).sum(0)
            expected = (active < DEAD_SHARE * 64 * len(calls)).double().mean()
            assert dead == pytest.approx(float(expected)), (step, line)
        assert sorted(lines) == list(range(len(SIZES)))


def test_counters_keep_their_places_while_trays_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "FIRST_TRAY", 8)
    counters = UnitCounters()
    layers = [counters.of(k, torch.ones(4, 5), 0.0, str(k)) for k in range(9)]
    places = [layer.counts.data_ptr() for layer in layers if layer is not None]
    for number, layer in enumerate(layers):
        assert layer is not None
        assert layer.counts.eq(0).all()
        layer.counts.fill_(number + 1)
    assert len(set(places)) == len(layers)
    state = counters.state_dict()["layers"]
    for number in range(len(layers)):
        kept = state[str(number)]["counts"]
        np.testing.assert_array_equal(kept, [[number + 1] * 5, [0] * 5])
