"""`Live`: tells pages that a run has more. One look at a run serves everybody who follows it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from torchvitals.dashboard.answers.run import columns_version
from torchvitals.dashboard.answers.runs import RunList, digest
from torchvitals.dashboard.desk import Desk
from torchvitals.dashboard.question import version_of
from torchvitals.dashboard.shelf import Shelf
from torchvitals.record import RunNotFound, VitalsError

log = logging.getLogger("torchvitals")

LOOK_S: Final = 0.5
LIST_S: Final = 1.0
ALIVE_S: Final = 15.0
"""A comment is sent so often, or proxies take the connection for dead."""
MOST_FOLLOWED: Final = 20

Look = Callable[[], dict[str, Any]]


class Feed:
    """One thing that is looked at again and again while somebody listens."""

    def __init__(self, desk: Desk, look: Look, every: float, *, slow: bool = False) -> None:
        self._desk, self._look, self._every, self._slow = desk, look, every, slow
        self.state: dict[str, Any] | None = None
        self.listeners: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None

    def join(self, bell: asyncio.Event) -> None:
        """Ring this bell when the state changes."""
        self.listeners.add(bell)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def leave(self, bell: asyncio.Event) -> bool:
        """Whether nobody is left."""
        self.listeners.discard(bell)
        if not self.listeners and self._task is not None:
            self._task.cancel()
            self._task = None
        return not self.listeners

    async def _run(self) -> None:
        do = self._desk.read if self._slow else self._desk.look
        while True:
            state: dict[str, Any] | None
            try:
                state = await do(self._look)
            except Exception:  # whatever it was, the next look may succeed
                log.exception("torchvitals: looking for news failed")
                state = self.state
            if state != self.state:
                self.state = state
                for bell in self.listeners:
                    bell.set()
            await asyncio.sleep(self._every)


class Live:
    """All feeds."""

    def __init__(self, desk: Desk, runs: RunList) -> None:
        self._desk, self._runs = desk, runs
        self._feeds: dict[str, Feed] = {}
        self._bells: set[asyncio.Event] = set()
        self.closing = False

    @property
    def num_listeners(self) -> int:
        """Connections that are open."""
        return len(self._bells)

    def close(self) -> None:
        """End every stream: the server is going down."""
        self.closing = True
        for bell in self._bells:
            bell.set()

    async def stream(self, idents: list[str]) -> AsyncIterator[bytes]:
        """Messages about these runs; about the list and all running ones when there are none."""
        bell = asyncio.Event()
        self._bells.add(bell)
        joined: dict[str, Feed] = {}
        sent: dict[str, Any] = {}
        everything = not idents
        try:
            for name in idents or [""]:
                joined[name] = self._join(name, bell)
            yield b"retry: 1000\n\n"
            while not self.closing:
                try:
                    await asyncio.wait_for(bell.wait(), ALIVE_S)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                bell.clear()
                for name, feed in list(joined.items()):
                    if feed.state is not None and feed.state != sent.get(name):
                        sent[name] = feed.state
                        yield _message("run" if name else "runs", feed.state)
                if everything and "" in sent:
                    self._follow(joined, sent[""]["running"][:MOST_FOLLOWED], bell)
        finally:
            self._bells.discard(bell)
            for name in list(joined):
                self._leave(name, bell)

    def _follow(self, joined: dict[str, Feed], running: list[str], bell: asyncio.Event) -> None:
        for name in running:
            if name not in joined:
                joined[name] = self._join(name, bell)
        for name in [name for name in joined if name and name not in running]:
            del joined[name]
            self._leave(name, bell)

    def _join(self, name: str, bell: asyncio.Event) -> Feed:
        feed = self._feeds.get(name)
        if feed is None:
            if name:
                feed = Feed(self._desk, lambda: state_of(self._desk.shelf, name), LOOK_S)
            else:
                feed = Feed(self._desk, self._list_state, LIST_S, slow=True)
            self._feeds[name] = feed
        feed.join(bell)
        if feed.state is not None:
            bell.set()
        return feed

    def _leave(self, name: str, bell: asyncio.Event) -> None:
        feed = self._feeds.get(name)
        if feed is not None and feed.leave(bell):
            del self._feeds[name]

    def _list_state(self) -> dict[str, Any]:
        try:
            answer = self._runs.answer()
        except OSError as error:  # the folder went away, or can't be read now
            return {"version": "", "problem": str(error), "running": []}
        statuses = sorted((line["id"], line["status"]) for line in answer["runs"])
        running = [line["id"] for line in answer["runs"] if line["status"] == "running"]
        return {"version": digest(*(f"{i} {s}" for i, s in statuses)), "running": running}


def state_of(shelf: Shelf, ident: str) -> dict[str, Any]:
    """What a message about a run says."""
    try:
        with shelf.pulse(ident) as history:
            return {
                "run": ident,
                "version": version_of(history),
                "columns_version": columns_version(history),
                "status": history.status,
                "last_step": history.last_step,
            }
    except RunNotFound:
        return {"run": ident, "version": "", "columns_version": "", "status": "gone",
                "last_step": None}  # fmt: skip
    except VitalsError as error:
        return {"run": ident, "version": "", "columns_version": "", "status": "broken",
                "problem": str(error), "last_step": None}  # fmt: skip


def _message(event: str, data: dict[str, Any]) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()
