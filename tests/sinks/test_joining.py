"""Rows of a step become one."""

from torchvitals.record import Key
from torchvitals.sinks.joining import Joining

from .training import row


def values(found: list) -> list[tuple[int, dict[str, float]]]:
    return [
        (r.step, {str(k): v for k, v in zip(r.header, r.values.tolist(), strict=True)})
        for r in found
    ]


def test_what_was_measured_and_what_was_logged_come_as_one_row() -> None:
    joining = Joining()
    joining.add(row(1, norm=3.0))
    assert joining.tick() == []
    joining.add(row(1, loss=2.0))
    joining.add(row(2, norm=4.0))
    assert joining.tick() == []
    assert values(joining.tick()) == [(1, {"norm": 3.0, "loss": 2.0})]
    assert values(joining.rest()) == [(2, {"norm": 4.0})]
    assert joining.rest() == []


def test_a_step_waits_a_tick_after_the_next_one_was_heard_of() -> None:
    """With slow steps, a step's numbers arrive just after the next step's measurements."""
    joining = Joining()
    joining.add(row(1, norm=3.0))
    joining.tick()
    joining.tick()
    joining.add(row(2, norm=4.0))
    assert joining.tick() == []
    joining.add(row(1, loss=2.0))
    assert values(joining.tick()) == [(1, {"norm": 3.0, "loss": 2.0})]


def test_steps_come_in_order_and_late_numbers_by_themselves() -> None:
    joining = Joining()
    for step in (1, 2, 3, 10, 20):
        joining.add(row(step, loss=float(step)))
    joining.add(row(10, norm=1.0))
    joining.tick()
    assert [r.step for r in joining.tick()] == [1, 2, 3, 10]
    joining.add(row(3, late=1.0))
    (late,) = joining.tick()
    assert (late.step, late.header) == (3, (Key.scalar("late"),))
