"""`Post`: the thread that sends. Nobody waits for it; what can't be sent is told once."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from torchvitals.alerts.bundle import GATHER_S, Bundle
from torchvitals.alerts.message import Message, together
from torchvitals.alerts.quiet import quiet
from torchvitals.record import Severity

log = logging.getLogger("torchvitals")

WAITING = 1000
"""Messages that may wait; of more, the newest are kept."""
RETRY_S = 5.0
TYPES = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.ERROR: "failure"}


class Post:
    """Sends to every address, from the background."""

    def __init__(
        self, urls: Sequence[str], run: str, every_s: float, gather_s: float = GATHER_S
    ) -> None:
        self._urls = tuple(urls)
        self._run_name = run
        self._bundle = Bundle(every_s, gather_s)
        self._arrived: deque[Message] = deque(maxlen=WAITING)
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._services: list[tuple[str, Any]] = []
        self._told: set[str] = set()
        self._num_lost = 0
        self._thread = threading.Thread(target=self._run, name="torchvitals alerts", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, message: Message) -> None:
        """Hand a message over. Never blocks."""
        self._arrived.append(message)
        self._wake.set()

    def close(self, timeout_s: float) -> None:
        """Send what is left."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning(
                "torchvitals: the last alerts could not be sent within %.0f s; the run itself has "
                "all of them as events.",
                timeout_s,
            )
        elif self._num_lost:
            log.warning(
                "torchvitals: %d notifications could not be sent; the run itself has what they "
                "said as events.",
                self._num_lost,
            )

    def _run(self) -> None:
        try:
            with quiet():
                self._begin()
                self._loop()
        except Exception as error:  # its text may hold an address
            self._tell("", f"sending failed ({type(error).__name__})")

    def _begin(self) -> None:
        try:
            apprise: Any = import_module("apprise")
        except ImportError:
            self._tell("", "apprise is not installed: pip install 'torchvitals[alerts]'")
            return
        # One after the other, on this thread: what it logs is kept unsaid.
        asset = apprise.AppriseAsset(async_mode=False, app_id="torchvitals")
        for number, url in enumerate(self._urls, start=1):
            service = apprise.Apprise(asset=asset)
            if service.add(url):
                self._services.append((f"{url.partition('://')[0]}, address {number}", service))
            else:
                self._tell(f"{number}", f"address {number} of {len(self._urls)} is not understood")

    def _loop(self) -> None:
        while True:
            closing = self._closing.is_set()
            now = time.monotonic()
            while self._arrived:
                self._bundle.add(self._arrived.popleft(), now)
            due = self._bundle.due_at
            if due is not None and (closing or now >= due):
                self._send(self._bundle.take(now))
            elif closing:
                return
            else:
                self._wake.wait(None if due is None else due - now)
                self._wake.clear()

    def _send(self, messages: list[Message]) -> None:
        title, text = together(self._run_name, messages)
        unresolved = [message.level for message in messages if not message.is_resolved]
        kind = TYPES[max(unresolved, key=lambda level: level.rank)] if unresolved else "success"
        for name, service in self._services:
            arguments = {"title": title, "body": text, "notify_type": kind}
            if self._sent(service, arguments):
                continue
            self._closing.wait(RETRY_S)
            if not self._sent(service, arguments):
                self._num_lost += 1
                self._tell(name, f"{name} did not take one; it is tried again with the next")

    def _sent(self, service: Any, arguments: dict[str, str]) -> bool:
        try:
            return bool(service.notify(**arguments))
        except Exception:  # its text may hold the address
            return False

    def _tell(self, about: str, why: str) -> None:
        if about not in self._told:
            self._told.add(about)
            log.warning(
                "torchvitals: alerts can't be sent: %s. Training goes on; they are kept as events "
                "of the run.",
                why,
            )
