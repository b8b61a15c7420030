"""The recorder's inbox: who is woken up, and when."""

from __future__ import annotations

import threading

from torchvitals.monitor import inbox
from torchvitals.monitor.inbox import Inbox


def awake(box: Inbox[int]) -> bool:
    return box._wake.is_set()


def test_what_can_wait_wakes_nobody() -> None:
    box: Inbox[int] = Inbox()
    for number in range(inbox.MUCH - 1):
        box.put(number, waits=True)
    assert not awake(box)
    assert list(box.take()) == list(range(inbox.MUCH - 1))


def test_much_of_it_wakes_the_reader() -> None:
    box: Inbox[int] = Inbox()
    for number in range(inbox.MUCH):
        box.put(number, waits=True)
    assert awake(box)


def test_what_cannot_wait_wakes_the_reader_who_takes_all_in_order() -> None:
    box: Inbox[int] = Inbox()
    got: list[int] = []

    def read() -> None:
        box.wait(60.0)
        got.extend(box.take())

    box.put(1, waits=True)
    reader = threading.Thread(target=read)
    reader.start()
    box.put(2)
    reader.join(30.0)
    assert not reader.is_alive()
    assert got == [1, 2]
    assert len(box) == 0


def test_what_comes_while_taking_is_taken_too() -> None:
    box: Inbox[int] = Inbox()
    box.put(3)
    got = []
    for number in box.take():
        got.append(number)
        if number:
            box.put(number - 1)
    assert got == [3, 2, 1, 0]
