"""In every situation: the same losses, nothing read on the training thread, no hook left."""

import pytest
import torch

import torchvitals
from tests.situations.hooks import hooks_of
from tests.situations.reads import Reads
from tests.situations.trainings import SITUATIONS
from torchvitals.monitor.monitor import _open_monitors

# torch's own, when it loads its compiler and when it compiles a layer by itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

WATCH = {"every": 1, "updates": "exact", "histograms": "full", "machine": False}


def watched(training, path, **settings):
    """Train with the monitor, which is closed at the end."""
    monitors = []

    def watch(model, optimizer, **more):
        made = torchvitals.watch(model, optimizer, run=path, **{**WATCH, **settings, **more})
        monitors.append(made)
        return made

    result = training(watch)
    steps = monitors[-1].step_number
    for monitor in monitors:
        monitor.close()
    return result, steps


def bare(training):
    return training(lambda *_, **__: None)


@pytest.fixture(autouse=True)
def alone():
    """torch.compile warns of global hooks: monitors that a test left open have some."""
    for monitor in list(_open_monitors):
        monitor.close()


@pytest.mark.parametrize("situation", SITUATIONS)
def test_losses_are_bit_identical_and_no_hook_stays(tmp_path, situation):
    # Fused with an operator of ours, a layer's last bit may be another one.
    off = 1e-6 if situation == "layers compiled by themselves" else 0.0
    for number, training in enumerate(SITUATIONS[situation]):
        expected = bare(training)
        found, steps = watched(training, tmp_path / str(number))
        assert steps >= len(set(expected.losses)) / 3
        torch.testing.assert_close(
            torch.tensor(found.losses), torch.tensor(expected.losses), rtol=off, atol=off,
            equal_nan=True,
        )  # fmt: skip
        for a, b in zip(found.model.parameters(), expected.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=off, atol=off, equal_nan=True)
        assert hooks_of(*found[1:]) == hooks_of(*expected[1:])


@pytest.mark.parametrize("situation", SITUATIONS)
def test_nothing_is_read_on_the_training_thread(tmp_path, situation):
    for number, training in enumerate(SITUATIONS[situation]):
        reads = Reads()

        def looked_at(watch, training=training, reads=reads):
            """From after `watch()` to before `close()`."""

            def watch_first(*args, **kwargs):
                reads.__exit__()
                monitor = watch(*args, **kwargs)
                reads.__enter__()
                return monitor

            with reads:
                return training(watch_first)

        watched(looked_at, tmp_path / str(number), backend="torch")
        assert reads.places == []


def test_a_read_would_be_seen(tmp_path, monkeypatch):
    from torchvitals.monitor.monitor import Monitor

    original = Monitor._finish_step

    def reading(self):
        self._outcome = float(torch.ones(1))
        original(self)

    reading.__code__ = reading.__code__.replace(co_filename="/src/torchvitals/monitor/monitor.py")
    monkeypatch.setattr(Monitor, "_finish_step", reading)
    with pytest.raises(AssertionError, match="__float__"):
        test_nothing_is_read_on_the_training_thread(tmp_path, "one process, float32")
