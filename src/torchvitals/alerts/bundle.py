"""`Bundle`: gathers messages, so that few notifications are sent.

The first message waits a moment for others that come with it; then at most one notification goes
out every `every_s` seconds, with everything that came in between. What was over before anybody was
told is not told at all.
"""

from __future__ import annotations

from torchvitals.alerts.message import Message
from torchvitals.record import Severity

GATHER_S = 2.0
"""A fault seldom comes alone."""


class Bundle:
    """What is to be sent, and when. Times are the caller's clock."""

    def __init__(self, every_s: float, gather_s: float = GATHER_S) -> None:
        self._every_s = every_s
        self._gather_s = gather_s
        self._waiting: dict[str, Message] = {}
        self._number = 0
        self._sent_at: float | None = None
        self._told: dict[str, Severity] = {}
        """What somebody was told of, and as how bad."""
        self.due_at: float | None = None
        """When to send; None while there is nothing to say."""

    def add(self, message: Message, now: float) -> None:
        """One more thing to say."""
        about = message.about
        if message.is_resolved:
            if self._waiting.pop(about, None) is not None and about not in self._told:
                self._forget_due()
                return
            if about not in self._told:
                return
        elif about and about in self._told and message.level.rank <= self._told[about].rank:
            return  # told already, and no worse now
        if not about:
            self._number += 1
            about = f"#{self._number}"
        self._waiting[about] = message
        due = now + self._gather_s
        if not message.hurries and self._sent_at is not None:
            due = max(due, self._sent_at + self._every_s)
        self.due_at = due if self.due_at is None else min(self.due_at, due)

    def take(self, now: float) -> list[Message]:
        """Everything there is to say, the worst first; it counts as told."""
        found, self._waiting = self._waiting, {}
        self._sent_at, self.due_at = now, None
        for about, message in found.items():
            if message.is_resolved:
                self._told.pop(about, None)
            elif message.about:
                self._told[about] = message.level
        return sorted(found.values(), key=lambda m: (m.is_resolved, -m.level.rank))

    def _forget_due(self) -> None:
        if not self._waiting:
            self.due_at = None
