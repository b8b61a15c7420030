"""The clocks by a clock that is ours to turn."""

import numpy as np
import pytest

from torchvitals.probes.clocks import (
    BACKWARD,
    DATA,
    FORWARD,
    HEADER,
    MONITOR,
    OPTIMIZER,
    OTHER,
    PHASES,
    Clocks,
)
from torchvitals.probes.probe import Notes
from torchvitals.record import Key, is_missing


class Time:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def spend(self, clocks, phase, seconds):
        self.now += seconds
        clocks.cut(phase)


def step(time, clocks, *, again=False, data=1.0, forward=2.0, backward=3.0, samples=0, tokens=0):
    time.spend(clocks, DATA, data)
    clocks.saw(samples, tokens)
    time.spend(clocks, FORWARD, forward)
    time.spend(clocks, BACKWARD, backward)
    time.spend(clocks, OTHER, 0.5)
    time.spend(clocks, OPTIMIZER, 0.25)
    time.spend(clocks, MONITOR, 0.125)
    clocks.end_step(again=again)


def row(clocks):
    values = clocks.values([clocks.take()], Notes.of(1, 0))[0]
    return {str(key): float(v) for key, v in zip(HEADER, values, strict=True) if not is_missing(v)}


def test_phases_add_up_to_the_step():
    time = Time()
    clocks = Clocks(clock=time)
    step(time, clocks)
    clocks.take()
    step(time, clocks)
    found = row(clocks)
    expected = {"data": 1.0, "forward": 2.0, "backward": 3.0, "other": 0.5, "optimizer": 0.25,
                "monitor": 0.125}  # fmt: skip
    assert {phase: found[f"clock/{phase}/wall_s"] for phase in PHASES} == expected
    assert found["clock/step/wall_s"] == sum(expected.values()) == found["clock/step/mean_s"]


def test_steps_between_rows_count():
    time = Time()
    clocks = Clocks(clock=time)
    step(time, clocks)
    clocks.take()
    for wait in (1.0, 5.0, 0.0):
        step(time, clocks, data=wait, samples=8, tokens=80)
    found = row(clocks)
    total = 3 * 5.875 + 6.0
    assert found["clock/step/mean_s"] == pytest.approx(total / 3)
    assert found["clock/step/max_s"] == pytest.approx(10.875)
    assert found["clock/data/mean_s"] == pytest.approx(2.0)
    assert found["clock/data/max_s"] == 5.0
    assert found["speed/run/steps_per_s"] == pytest.approx(3 / total)
    assert found["speed/run/samples_per_s"] == pytest.approx(24 / total)
    assert found["speed/run/tokens_per_s"] == pytest.approx(240 / total)


def test_the_first_step_has_no_length():
    time = Time()
    clocks = Clocks(clock=time)
    step(time, clocks, samples=8)
    assert row(clocks) == {}


def test_what_is_not_known_is_missing_and_a_step_nobody_looked_into_is_like_the_last():
    time = Time()
    clocks = Clocks(clock=time)
    step(time, clocks)
    clocks.take()
    step(time, clocks)
    found = row(clocks)
    assert not {f"speed/run/{stat}" for stat in ("samples_per_s", "tokens_per_s", "mfu")} & {*found}
    step(time, clocks, samples=8)
    step(time, clocks)
    assert row(clocks)["speed/run/samples_per_s"] == pytest.approx(16 / (2 * 6.875))


def test_given_numbers_win_over_seen_ones():
    time = Time()
    clocks = Clocks(clock=time)
    step(time, clocks)
    clocks.take()
    clocks.given(100, 7)
    step(time, clocks, samples=8, tokens=80)
    found = row(clocks)
    assert found["speed/run/samples_per_s"] == pytest.approx(100 / 6.875)
    assert found["speed/run/tokens_per_s"] == pytest.approx(7 / 6.875)


def test_flops_and_mfu():
    time = Time()
    clocks = Clocks(clock=time)
    step(time, clocks)
    clocks.take()
    clocks.flops, clocks.peak_flops = 6.875e9, 4e9
    step(time, clocks)
    found = row(clocks)
    assert found["speed/run/flops_per_s"] == pytest.approx(1e9)
    assert found["speed/run/mfu"] == pytest.approx(0.25)


def test_our_work_inside_a_phase_is_moved():
    time = Time()
    clocks = Clocks(clock=time)
    step(time, clocks)
    clocks.take()
    clocks.move(0.5, FORWARD)
    step(time, clocks)
    found = row(clocks)
    assert found["clock/forward/wall_s"] == 1.5
    assert found["clock/monitor/wall_s"] == 0.625


class Event:
    """A device's event: the device is slower than the host, and nobody may wait for it here."""

    synchronized = 0

    def __init__(self, time):
        self.at = 10 * time.now

    def synchronize(self):
        Event.synchronized += 1

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)


def test_a_device_is_timed_by_its_events_and_only_on_monitored_steps():
    time, made = Time(), []

    def make():
        made.append(Event(time))
        return made[-1]

    clocks = Clocks(clock=time, make_event=make)
    step(time, clocks)
    assert not made
    step(time, clocks, again=True)
    assert len(made) == 1
    clocks.take()
    step(time, clocks)
    assert len(made) == 1 + len(PHASES)
    assert Event.synchronized == 0
    found = row(clocks)
    assert Event.synchronized == 1
    assert found["clock/backward/wall_s"] == pytest.approx(30.0)
    assert found["clock/step/wall_s"] == pytest.approx(68.75)
    assert found["clock/step/mean_s"] == pytest.approx(6.875)


def test_several_steps_at_once():
    time = Time()
    clocks = Clocks(clock=time)
    raws = []
    for _ in range(3):
        step(time, clocks)
        raws.append(clocks.take())
    table = clocks.values(raws, Notes.of(3, 0))
    assert table.shape == (3, len(HEADER))
    assert is_missing(table[0]).all()
    np.testing.assert_array_equal(table[1], table[2])
    assert Key("clock", "step", "wall_s") == HEADER[0]
