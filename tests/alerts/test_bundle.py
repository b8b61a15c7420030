"""When notifications go out, by a clock that the test moves."""

from torchvitals.alerts.bundle import Bundle
from torchvitals.alerts.message import MOST, Message, together
from torchvitals.record import Severity


def opened(about: str, level: str = "error") -> Message:
    return Message(title=about, level=Severity(level), about=about)


def over(about: str) -> Message:
    return Message(title=about, about=about, is_resolved=True)


def titles(messages: list[Message]) -> list[str]:
    return [message.title for message in messages]


def test_the_first_waits_a_moment_for_its_company() -> None:
    bundle = Bundle(every_s=300, gather_s=2)
    bundle.add(opened("a", "warning"), now=10.0)
    bundle.add(opened("b"), now=11.0)
    assert bundle.due_at == 12.0
    assert titles(bundle.take(12.0)) == ["b", "a"]
    assert bundle.due_at is None


def test_then_it_is_throttled() -> None:
    bundle = Bundle(every_s=300, gather_s=2)
    bundle.add(opened("a"), now=0.0)
    bundle.take(2.0)
    bundle.add(opened("b"), now=5.0)
    bundle.add(opened("c"), now=290.0)
    assert bundle.due_at == 302.0
    assert titles(bundle.take(302.0)) == ["b", "c"]
    bundle.add(opened("d"), now=1000.0)
    assert bundle.due_at == 1002.0


def test_what_hurries_waits_for_nobody_and_takes_the_rest_along() -> None:
    bundle = Bundle(every_s=300, gather_s=2)
    bundle.add(opened("a"), now=0.0)
    bundle.take(2.0)
    bundle.add(opened("b"), now=5.0)
    bundle.add(Message(title="mine", hurries=True), now=6.0)
    bundle.add(Message(title="mine", hurries=True), now=6.0)
    assert bundle.due_at == 8.0
    assert titles(bundle.take(8.0)) == ["b", "mine", "mine"]


def test_the_same_thing_is_said_once_until_it_is_worse_or_over() -> None:
    bundle = Bundle(every_s=0, gather_s=0)
    bundle.add(opened("a", "warning"), now=0.0)
    assert titles(bundle.take(0.0)) == ["a"]
    bundle.add(opened("a", "warning"), now=1.0)
    assert bundle.due_at is None
    bundle.add(opened("a", "error"), now=2.0)
    assert titles(bundle.take(2.0)) == ["a"]
    bundle.add(over("a"), now=3.0)
    assert bundle.take(3.0)[0].is_resolved
    bundle.add(over("a"), now=4.0)
    assert bundle.due_at is None
    bundle.add(opened("a", "warning"), now=5.0)
    assert titles(bundle.take(5.0)) == ["a"]


def test_what_was_over_before_anybody_knew_is_not_told() -> None:
    bundle = Bundle(every_s=300, gather_s=2)
    bundle.add(opened("a"), now=0.0)
    bundle.add(over("a"), now=1.0)
    assert bundle.due_at is None
    assert bundle.take(2.0) == []


def test_worse_and_over_before_that_was_told() -> None:
    bundle = Bundle(every_s=0, gather_s=0)
    bundle.add(opened("a", "warning"), now=0.0)
    bundle.take(0.0)
    bundle.add(opened("a", "error"), now=1.0)
    bundle.add(over("a"), now=1.0)
    (message,) = bundle.take(1.0)
    assert message.is_resolved


def test_of_very_many_the_number_is_said() -> None:
    title, text = together("gpt", [opened(f"f{k}") for k in range(MOST + 5)])
    assert title == f"gpt: error: f0 (and {MOST + 4} more)"
    assert text.endswith("… and 5 more: vitals show gpt")
    assert f"f{MOST - 1}" in text
    assert f"f{MOST}" not in text
