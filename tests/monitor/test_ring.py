"""Measurements cross from a device to the recorder: nobody waits, nothing is overwritten."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import torchvitals
from torchvitals.monitor import device_clock, ring
from torchvitals.monitor.ring import Crossing, Ring
from torchvitals.stats.backend import Bins, Measured

from .device import FakeDevice


@dataclass
class Raw:
    parts: list
    names: tuple
    number: object = None


def values_of(k):
    return torch.full((3, 9), float(k), dtype=torch.float64)


def test_values_are_read_after_the_mark_and_not_before():
    device = FakeDevice()
    sent = Ring(device).send(Raw([values_of(1)], ()))
    assert isinstance(sent, Crossing)
    assert not sent.arrived
    device.turn(1)  # the copy is done, the mark behind it is not passed
    assert not sent.arrived
    device.turn()
    assert sent.arrived
    assert torch.equal(sent.land().parts[0], values_of(1))


def test_what_is_sent_is_what_it_was_then():
    device = FakeDevice()
    value = torch.ones(4)
    sent = Ring(device).send(Raw([value], ()))
    value.zero_()  # the training goes on and writes into it
    device.turn()
    assert sent.land().parts[0].tolist() == [1.0] * 4


def test_one_copy_brings_everything_over_whatever_it_is():
    device = FakeDevice()
    bins = Bins(7)
    bins.counts = torch.arange(6, dtype=torch.int32).view(2, 3)
    measured = Measured(sums=values_of(2), outside=values_of(3)[:, 4])
    names = ("a", "b")
    raw = Raw(
        [([0, 1], measured), (names, bins), {"loss": torch.tensor(0.5, dtype=torch.bfloat16)}],
        names,
        [torch.tensor([True, False]), 3.0, torch.empty(0), torch.tensor(7)],
    )
    sent = Ring(device).send(raw)
    assert device.num_copies == 1
    device.turn()
    found = sent.land()
    assert found is raw
    assert found.names is names
    assert found.parts[1][0] is names
    assert measured.host().sums.tolist() == values_of(2).tolist()
    assert measured.outside.tolist() == [3.0] * 3
    assert bins.host().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert float(found.parts[2]["loss"]) == 0.5
    flags, number, nothing, last = found.number
    assert (flags.tolist(), number, nothing.numel(), int(last)) == ([True, False], 3.0, 0, 7)


def test_nothing_on_a_device_is_handed_on_as_it_is():
    device = FakeDevice()
    item = Raw([np.ones(3), 4.0, "text", None], ("x",))
    assert Ring(device).send(item) is item
    assert device.num_copies == 0


def test_a_slot_is_reused_after_its_values_were_taken_and_not_before():
    device = FakeDevice()
    slots = Ring(device)
    first = slots.send(Raw([values_of(1)], ()))
    device.turn()
    second = slots.send(Raw([values_of(2)], ()))  # the first has arrived, nobody took it
    device.turn()
    assert slots.num_slots == 2
    assert torch.equal(first.land().parts[0], values_of(1))
    third = slots.send(Raw([values_of(3)], ()))
    assert slots.num_slots == 2
    device.turn()
    assert torch.equal(second.land().parts[0], values_of(2))
    assert torch.equal(third.land().parts[0], values_of(3))


def test_a_device_that_lags_makes_the_ring_grow_and_nothing_is_lost():
    device = FakeDevice()
    slots = Ring(device)
    sent = [slots.send(Raw([values_of(k)], ())) for k in range(10)]
    assert slots.num_slots == 10
    device.turn()
    assert [float(one.land().parts[0][0, 0]) for one in sent] == list(range(10))
    for k in range(30):
        crossing = slots.send(Raw([values_of(k)], ()))
        device.turn()
        crossing.land()
    assert slots.num_slots == 10


def test_a_ring_as_large_as_it_may_be_leaves_tensors_where_they_are(monkeypatch):
    monkeypatch.setattr(ring, "MAX_SLOTS", 2)
    device = FakeDevice()
    slots = Ring(device)
    first, _, third = (slots.send(Raw([values_of(k)], ())) for k in range(3))
    assert not isinstance(third, Crossing)
    assert torch.equal(third.parts[0], values_of(2))
    device.turn()
    first.land()
    assert isinstance(slots.send(Raw([values_of(4)], ())), Crossing)


def test_a_slot_too_small_is_made_larger_and_the_memory_has_a_limit(monkeypatch):
    monkeypatch.setattr(ring, "MAX_BYTES", 4 * ring.LEAST_BYTES)
    device = FakeDevice()
    slots = Ring(device)
    large = torch.arange(ring.LEAST_BYTES // 4, dtype=torch.float32)
    for tensor in (values_of(1), large, values_of(2)):
        crossing = slots.send(Raw([tensor], ()))
        device.turn()
        assert torch.equal(crossing.land().parts[0], tensor)
    assert (slots.num_slots, slots.num_bytes) == (1, ring.LEAST_BYTES)
    twice = slots.send(Raw([large.double()], ()))
    device.turn()
    twice.land()
    assert slots.num_bytes == 2 * ring.LEAST_BYTES
    assert not isinstance(slots.send(Raw([large.repeat(8)], ())), Crossing)
    assert slots.num_bytes == 2 * ring.LEAST_BYTES


def train(tmp_path, device, steps=6):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    losses = []
    monitor = torchvitals.watch(
        model, optimizer, run=tmp_path, every=1, backend="torch", machine=False, clocks=False,
        diagnose=False, updates="exact",
    )  # fmt: skip
    for _ in range(steps):
        loss = model(torch.randn(16, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    if device is not None and not device.runs:
        assert monitor._recorder._ring.num_slots >= steps  # nothing has crossed, nobody waited
        device.turn()
        device.runs = True
    monitor.close()
    return losses


@pytest.mark.parametrize("lags", [False, True])
def test_a_run_that_crossed_a_device_is_the_same_run(tmp_path, monkeypatch, lags):
    plain = train(tmp_path / "plain", None)
    device = FakeDevice(runs=not lags)
    monkeypatch.setattr(device_clock, "this_clock", lambda: device)
    crossed = train(tmp_path / "crossed", device)
    assert torch.equal(torch.stack(plain), torch.stack(crossed))
    assert device.num_copies >= 6
    with (
        torchvitals.open_run(tmp_path / "plain") as a,
        torchvitals.open_run(tmp_path / "crossed") as b,
    ):
        keys = [key for key in a.keys() if key.stat != "overhead_s"]
        assert len(keys) > 50
        for key in keys:
            ours, theirs = a.series(key), b.series(key)
            np.testing.assert_array_equal(ours.values, theirs.values, err_msg=str(key))


def test_the_reader_waits_on_its_own_thread():
    device = FakeDevice()
    sent = Ring(device).send(Raw([values_of(5)], ()))
    found = []
    reader = threading.Thread(target=lambda: found.append(sent.land()))
    reader.start()
    assert found == []
    device.turn()
    reader.join(60)
    assert torch.equal(found[0].parts[0], values_of(5))
