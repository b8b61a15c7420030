"""The workloads are what PERFORMANCE figures say they are, and the harness counts what it times."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import nn

import overhead
from kernel import ENOUGH, judge, ratio
from overhead import (
    EVERY_10,
    EVERYTHING,
    Result,
    Samples,
    Segment,
    Variant,
    compared,
    summarise,
    verdict,
)
from peers import TMM_FULL, NotInstalled, need
from workloads import WORKLOADS, Observer, Training, Workload, labelled, shapes, size

SIZES = {
    "W1": (10.7e6, 39),
    "W2": (11.2e6, 62),
    "W3": (0.99e6, 120),
    "W4": (124.4e6, 148),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_workload_has_the_stated_size(name: str) -> None:
    parameters, tensors = SIZES[name]
    with torch.device("meta"):
        found = size(WORKLOADS[name].model())
    assert found[0] == pytest.approx(parameters, rel=0.01)
    assert found[1] == tensors
    assert len(shapes(name)) == tensors


# W4 is 2 GB with its optimizer: counted above, not run here.
@pytest.mark.parametrize("name", ["W1", "W2", "W3"])
def test_one_step_moves_every_parameter_and_drops_the_gradients(name: str) -> None:
    training = WORKLOADS[name].make(seed=0)
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    assert math.isfinite(training.step().item())
    for (label, now), then in zip(training.model.named_parameters(), before, strict=True):
        assert not torch.equal(now, then), label
        assert now.grad is None


def test_the_same_seed_gives_the_same_training() -> None:
    first, second, other = (WORKLOADS["W3"].make(seed) for seed in (3, 3, 4))
    losses = [first.step().item() for _ in range(3)]
    assert losses == [second.step().item() for _ in range(3)]
    assert losses != [other.step().item() for _ in range(3)]


class FakePeer(Observer):
    """Counts its calls and says what share of the steps it kept."""

    made: list[FakePeer] = []  # noqa: RUF012

    def __init__(self, measured: float = 1.0) -> None:
        self.calls = {"attach": 0, "before": 0, "backward": 0, "step": 0, "close": 0}
        self.measured = measured
        self.own_s = 0.0
        FakePeer.made.append(self)

    def attach(self, training: Training) -> None:
        self.calls["attach"] += 1

    def before_forward(self) -> None:
        self.calls["before"] += 1

    def after_backward(self) -> None:
        self.calls["backward"] += 1

    def after_step(self, loss: torch.Tensor) -> None:
        self.calls["step"] += 1
        self.own_s += 0.5

    def close(self) -> None:
        self.calls["close"] += 1


class Absent(Observer):
    def attach(self, training: Training) -> None:
        need("a_module_nobody_has", "nobody")


TINY = Workload(
    "W1", "tiny", lambda: nn.Sequential(nn.Linear(4, 3)), labelled((2, 4), 3),
    nn.functional.cross_entropy, segment=2,
)  # fmt: skip


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakePeer]:
    monkeypatch.setattr(overhead, "OPENING_S", 0.0)
    FakePeer.made.clear()
    return FakePeer.made


def run(*chosen: Variant, rounds: int = 3) -> dict[str, Samples]:
    return overhead.measure(TINY, chosen, rounds=rounds, pairs=2, settle=1, dice=random.Random(0))


def test_every_turn_attaches_times_and_closes(made: list[FakePeer]) -> None:
    samples = run(Variant("fake", FakePeer))["fake"]
    assert len(samples.bare_s) == len(samples.watched_s) == 3 * 2
    assert min(samples.bare_s) > 0
    assert len(made) == 3
    # Warm-up, then two segments of one untimed and two timed steps.
    steps = overhead.WARM_UP + 2 * (1 + 2)
    assert all(
        peer.calls == {"attach": 1, "before": steps, "backward": steps, "step": steps, "close": 1}
        for peer in made
    )


def test_a_turn_begins_when_the_run_is_open(
    made: list[FakePeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "OPENING_S", 0.2)
    run(Variant("fake", FakePeer), rounds=1)
    assert made[0].calls["step"] > overhead.WARM_UP + 2 * (1 + 2)


def test_own_time_is_what_a_timed_step_adds(made: list[FakePeer]) -> None:
    samples = run(Variant("fake", FakePeer))
    assert summarise("fake", samples["fake"]).own_ms == pytest.approx(500)


def test_every_10_is_timed_in_whole_tens(made: list[FakePeer]) -> None:
    run(Variant("ten", FakePeer, every=10), rounds=1)
    assert made[0].calls["step"] == overhead.WARM_UP + 1 + 10


def test_a_slow_variant_takes_one_short_pair(made: list[FakePeer]) -> None:
    samples = run(Variant("slow", FakePeer, slow=True), rounds=1)["slow"]
    assert len(samples.bare_s) == 1
    assert made[0].calls["step"] == overhead.WARM_UP + 1 + 1


def test_a_missing_peer_is_named_and_the_others_go_on(made: list[FakePeer]) -> None:
    samples = run(Variant("absent", Absent), Variant("fake", FakePeer))
    assert "nobody is not installed" in samples["absent"].missing
    assert samples["fake"].bare_s
    table = overhead.text_table([summarise(name, found) for name, found in samples.items()])
    assert "nobody is not installed" in table
    with pytest.raises(NotInstalled):
        need("a_module_nobody_has", "nobody")


def test_a_variant_that_raises_is_closed_and_heard(made: list[FakePeer]) -> None:
    class Broken(FakePeer):
        def after_backward(self) -> None:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        run(Variant("broken", Broken))
    assert made[0].calls["close"] == 1


def test_paired_differences_cancel_drift() -> None:
    bare = [1.0, 2.0, 3.0, 4.0, 5.0]
    result = summarise("x", Samples(bare_s=bare, watched_s=[b + 0.1 for b in bare],
                                    cpu_s=[0.2] * 5, own_s=[0.05] * 5, measured=[1.0]))  # fmt: skip
    assert result.added_ms == pytest.approx(100)
    assert result.added_percent == pytest.approx(100 * 0.1 / 3)
    assert result.iqr_ms == pytest.approx((100, 100))


@pytest.mark.parametrize(
    ("value", "interval", "measured", "expected"),
    [
        (2.0, (1.5, 2.5), 1.0, "pass"),
        (4.0, (3.5, 4.5), 1.0, "FAIL"),
        (2.9, (2.5, 3.5), 1.0, "unclear (pass)"),
        (3.1, (2.5, 3.5), 1.0, "unclear (FAIL)"),
        (1.0, (0.9, 1.1), 0.5, "void: 50 % of the steps measured"),
        (math.nan, (math.nan, math.nan), math.nan, "not measured"),
    ],
)
def test_verdicts(
    value: float, interval: tuple[float, float], measured: float, expected: str
) -> None:
    assert verdict(value, interval, 3.0, measured) == expected


def test_limits_and_the_ratio_to_the_peer() -> None:
    results = {
        EVERYTHING: Result(EVERYTHING, 8, 500.0, 10.0, (9, 11), 2.0, (1.8, 2.2), measured=1.0),
        EVERY_10: Result(EVERY_10, 8, 500.0, 5.0, (4, 6), 1.0, (0.8, 1.2), measured=1.0),
        TMM_FULL: Result(TMM_FULL, 8, 500.0, 200.0, (190, 210), 40.0, (38, 42)),
    }
    overhead.judge("W1", results)
    assert results[EVERYTHING].of_peer == pytest.approx(0.05)
    assert results[EVERYTHING].verdicts == ["pass", "pass"]
    assert results[EVERY_10].verdicts == ["FAIL"]
    assert results[TMM_FULL].verdicts == []


def test_without_the_peer_its_limit_is_not_measured() -> None:
    results = {EVERYTHING: Result(EVERYTHING, 8, 500.0, 10.0, (9, 11), 2.0, (1.8, 2.2))}
    overhead.judge("W1", results)
    assert results[EVERYTHING].verdicts == ["pass", "not measured"]


class Writer(Observer):
    """Has a thread that works now and then, in any step: 3 ms for each one it watched."""

    def __init__(self, clock: Clock) -> None:
        self.background_s = 0.0
        self.clock = clock
        self.due = 0

    def after_step(self, _loss: torch.Tensor) -> None:
        self.due += 1

    def work(self) -> None:
        """Hold up the step under way, if there is enough to do."""
        if self.due < 7:
            return
        took, self.due = 0.003 * self.due, 0
        self.background_s += took
        self.clock.now += overhead.BACKGROUND * took


class Clock:
    """Steps take 0.1 s, watched ones 0.11."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    process_time = perf_counter


class Clocked(Training):
    """A training that takes its time from the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(nn.Linear(1, 1), [(torch.zeros(1, 1), torch.zeros(1, 1))], nn.MSELoss())
        self.clock = clock
        self.beside: Writer | None = None

    def step(self) -> torch.Tensor:
        self.clock.now += 0.11 if type(self.observer) is Writer else 0.1
        if self.beside is not None:
            self.beside.work()
        self.observer.after_step(torch.zeros(()))
        return torch.zeros(())


def test_what_a_writer_does_counts_wherever_it_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(overhead, "time", clock)
    bare, watched = Clocked(clock), Clocked(clock)
    writer = Writer(clock)
    bare.beside = watched.beside = writer
    samples = Samples()
    variant = Variant("writes", lambda: writer)
    overhead.turn(
        variant, bare, watched, samples, steps=4, pairs=6, settle=1, dice=random.Random(0)
    )
    added = [w - b for w, b in zip(samples.watched_s, samples.bare_s, strict=True)]
    # 10 ms in the step, and 1.2 times the 3 ms beside it.
    want = 0.010 + overhead.BACKGROUND * 0.003
    assert added == pytest.approx([want] * 6, rel=0.1)
    assert samples.background_s == pytest.approx([overhead.BACKGROUND * 0.003] * 6, rel=0.2)


def test_a_measured_step_is_compared_with_the_usual_ones() -> None:
    def of(steps: list[float], looked: list[bool]) -> Segment:
        return Segment(steps, looked, sum(steps) / len(steps), 0.0, 0.0)

    bare = of([1.0, 1.0, 5.0, 1.0], [True] * 4)
    # One step of five that has nothing to do with it, in either.
    watched = of([1.1, 7.0, 1.1, 1.1, 2.0], [False, False, False, False, True])
    without, watching = compared(bare, watched)
    assert without == 1.0
    assert watching == pytest.approx((4 * 1.1 + 2.0) / 5)
    # Where every step is measured it is the mean that counts.
    assert compared(bare, of([3.0, 2.0], [True, True])) == (2.0, 2.5)


def test_preempted_rounds_are_left_out_and_too_few_give_no_verdict() -> None:
    found = ratio([2.0, math.nan, 3.0], [1.0, 1.0, 1.0])
    assert (found["median"], found["rounds"]) == (2.5, 2)
    assert judge(found, 9.0) == "too busy"
    assert judge({**found, "rounds": ENOUGH}, 9.0) == "pass"
    assert judge({**found, "rounds": ENOUGH}, 2.0) == "FAIL"
    assert judge(found, None) == ""


def test_the_conclusion_claims_nothing_that_was_not_judged() -> None:
    assert overhead.conclusion([]).startswith("no limit was judged")
    assert overhead.conclusion([("a", "pass")]) == "all 1 limits judged hold"
    text = overhead.conclusion([("a", "pass"), ("b", "unclear (pass)"), ("c", "FAIL")])
    assert text.splitlines() == [
        "2 of 3 limits not shown to hold:", "  b, unclear (pass)", "  c, FAIL"
    ]  # fmt: skip
