"""Clocks, loaders and throughput in real loops."""

import copy
import io
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import torchvitals
from torchvitals.probes.clocks import PHASES

from .training import batches, loss_of, make_net, train


def watched(tmp_path, model, optimizer, **kwargs):
    return torchvitals.watch(model, optimizer, run=tmp_path / "run", **kwargs)


class Slow(nn.Module):
    """A model whose forward takes as long as it is told."""

    def __init__(self, seconds=0.0):
        super().__init__()
        self.net = make_net()
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return self.net(x)


class SlowLoader:
    """Sleeps before each batch."""

    def __init__(self, data, seconds):
        self.data, self.seconds = data, seconds

    def __iter__(self):
        for x in self.data:
            time.sleep(self.seconds)
            yield x

    def __len__(self):
        return len(self.data)


def shares(history, last=5):
    wall = history.series("clock/step/wall_s").values[-last:].sum()
    return {p: history.series(f"clock/{p}/wall_s").values[-last:].sum() / wall for p in PHASES}


def test_a_loader_that_sleeps_shows_as_data_wait(tmp_path):
    model = Slow(seconds=0.03)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(tmp_path, model, optimizer, every=1) as monitor:
        for x in monitor.data(SlowLoader(batches(8), 0.06)):
            train(model, optimizer, [x])
        found = shares(monitor.history)
        waits = monitor.history.series("clock/data/wall_s").values
        forwards = monitor.history.series("clock/forward/wall_s").values
    # Sleeps are never short, and half of them hardly ever long, however busy the machine is.
    assert waits.min() >= 0.06
    assert forwards.min() >= 0.03
    assert np.median(waits) < 0.1
    assert np.median(forwards) < 0.06
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-5)


def test_phases_add_up_to_the_wall_time_of_the_loop(tmp_path):
    # The two ends are read right after ours; on a busy machine a pause may fall between the two.
    found = [phases_and_wall(tmp_path / str(attempt)) for attempt in range(3)]
    assert any(total == pytest.approx(took, rel=0.02) for total, took in found), found


def phases_and_wall(tmp_path):
    model = Slow(seconds=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(tmp_path, model, optimizer, every=1) as monitor:
        # A step lasts from the end of the last one: told by a hook that comes after ours.
        ends = []
        optimizer.register_step_post_hook(lambda *_: ends.append(time.perf_counter()))
        train(model, optimizer, batches(25))
        took = ends[-1] - ends[4]  # by then FLOPs are counted, which takes its time between steps
        return sum(
            history_sum(monitor.history, f"clock/{phase}/wall_s", 5) for phase in PHASES
        ), took


def history_sum(history, key, after):
    steps, values = history.series(key)
    return float(np.sum(values[steps > after]))


def test_without_a_watched_loader_waiting_is_not_called_forward(tmp_path):
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(tmp_path, model, optimizer, every=1) as monitor:
        for x in SlowLoader(batches(6), 0.05):
            train(model, optimizer, [x])
        history = monitor.history
        assert history.series("clock/other/wall_s").values.min() >= 0.05
        assert np.median(history.series("clock/forward/wall_s").values) < 0.05
        assert set(history.series("clock/data/wall_s").values) == {0.0}


def test_waiting_between_monitored_steps_counts(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(tmp_path, model, optimizer, every=5) as monitor:
        for number, x in enumerate(monitor.data(batches(10)), start=1):
            train(model, optimizer, [x])
            if number == 6:
                monitor._pace.clocks.cut(4)
                time.sleep(0.05)
                monitor._pace.clocks.cut(0)
        assert monitor.history.series("clock/data/max_s").values[-1] > 0.05
        assert monitor.history.series("clock/step/max_s").values[-1] > 0.05


def test_throughput_from_the_loader_and_from_the_call(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(tmp_path, model, optimizer, every=2) as monitor:
        train(model, optimizer, batches(10))
        by_call = monitor.history.series("speed/run/samples_per_s").values
        steps = monitor.history.series("speed/run/steps_per_s").values
        np.testing.assert_allclose(by_call / steps, 16.0, rtol=1e-5)
        loader = DataLoader(TensorDataset(batches(1, size=64)[0]), batch_size=4)
        for (x,) in monitor.data(loader):
            train(model, optimizer, [x])
        by_loader = monitor.history.series("speed/run/samples_per_s").values[-3:]
        steps = monitor.history.series("speed/run/steps_per_s").values[-3:]
        np.testing.assert_allclose(by_loader / steps, 4.0, rtol=1e-5)


def test_accumulation_adds_up_and_count_overrides(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(tmp_path, model, optimizer, every=1) as monitor:
        for number in range(6):
            for x in batches(3):
                loss_of(model, x).backward()
            if number >= 4:
                monitor.count(samples=7, tokens=70)
            optimizer.step()
            optimizer.zero_grad()
        history = monitor.history
        ratio = (
            history.series("speed/run/samples_per_s").values
            / history.series("speed/run/steps_per_s").values
        )
        np.testing.assert_allclose(ratio, [48, 48, 48, 7, 7], rtol=1e-5)
        assert len(history.series("speed/run/tokens_per_s").values) == 2


def test_the_loader_is_the_loader(tmp_path):
    loader = DataLoader(TensorDataset(torch.zeros(12, 8)), batch_size=4)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(tmp_path, model, optimizer) as monitor:
        data = monitor.data(loader)
        assert len(data) == 3
        assert data.batch_size == 4
        assert [x.shape[0] for (x,) in data] == [x.shape[0] for (x,) in data] == [4, 4, 4]
        with pytest.raises(TypeError):
            len(monitor.data(iter([1])))
    assert [x.shape[0] for (x,) in data] == [4, 4, 4]  # also when nobody watches any more


def test_backward_is_torchs_own_again_after_closing(tmp_path):
    original = torch.autograd.backward
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = watched(tmp_path, model, optimizer, every=1)
    inner = torchvitals.watch(model, optimizer, run=tmp_path / "other", every=1)
    train(model, optimizer, batches(3))
    outer.close()  # not in the order in which they came
    train(model, optimizer, batches(2))
    assert inner.history.series("clock/backward/wall_s").values.min() > 0
    inner.close()
    assert torch.autograd.backward is original


def test_checkpointing_and_errors_in_backward(tmp_path):
    class Checkpointed(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.net, self.reentrant = make_net(), reentrant

        def forward(self, x):
            return checkpoint(self.net, x.requires_grad_(), use_reentrant=self.reentrant)

    for reentrant in (True, False):
        model = Checkpointed(reentrant)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torchvitals.watch(model, optimizer, run=tmp_path / f"{reentrant}", every=1) as monitor:
            loss = loss_of(model, batches(1)[0])
            loss.backward()
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
            optimizer.step()
            train(model, optimizer, batches(3))
            assert shares(monitor.history)["backward"] > 0


def test_the_model_carries_no_trace(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(tmp_path, model, optimizer, every=1):
        train(model, optimizer, batches(3))
        twin = copy.deepcopy(model)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        for module in [*model.modules(), *twin.modules()]:
            assert not module._forward_hooks
            assert not module._forward_pre_hooks
    assert b"torchvitals" not in buffer.getvalue()


def test_flops_are_counted_once_and_become_a_rate(tmp_path):
    model = nn.Linear(32, 16, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(tmp_path, model, optimizer, every=1) as monitor:
        for _ in range(5):
            model(torch.randn(8, 32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        history = monitor.history
        (event,) = history.events("flops")
        assert event.data["flops"] == 3 * 2 * 8 * 32 * 16
        rates = history.series("speed/run/flops_per_s").values
        steps = history.series("speed/run/steps_per_s").values[-len(rates) :]
        np.testing.assert_allclose(rates / steps, event.data["flops"], rtol=1e-4)


def test_clocks_and_machine_can_be_switched_off(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(tmp_path, model, optimizer, every=1, clocks=False, machine=False) as monitor:
        for x in monitor.data(batches(3)):
            train(model, optimizer, [x])
        monitor.count(samples=3)
        kinds = {key.kind for key in monitor.history.keys()}
    assert not kinds & {"clock", "speed", "machine", "noise"}


def test_the_machine_is_in_the_run(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(tmp_path, model, optimizer, every=1) as monitor:
        train(model, optimizer, batches(2))
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and not monitor._machine.latest:
            time.sleep(0.01)
        train(model, optimizer, batches(1))
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.series("machine/process/rss_bytes").values[0] > 1e7
        assert 0 < history.series("machine/system/memory_frac").values[0] < 1
