"""`Desk`: one request, one answer. Reads happen on a few threads, each answer is made once.

An answer belongs to a version of its run. It is kept for whoever asks the same (bounded), and two
that ask for the same at the same time wait for the same reading.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from torchvitals import __version__
from torchvitals.dashboard.asked import Asked
from torchvitals.dashboard.question import Body, Maker, Question, version_of
from torchvitals.dashboard.shelf import Shelf

THREADS: Final = 4
KEPT_BYTES: Final = 24 << 20
T = TypeVar("T")


class Desk:
    """Answers questions about the runs on a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._readers = ThreadPoolExecutor(THREADS, "vitals-read")
        self._lookers = ThreadPoolExecutor(1, "vitals-look")
        self._kept: OrderedDict[tuple[str, ...], Body] = OrderedDict()
        self._kept_bytes = 0
        self._made: dict[tuple[str, ...], asyncio.Future[Body]] = {}

    def close(self) -> None:
        """Wait for the threads; call it when nothing is asked any more."""
        for pool in (self._readers, self._lookers):
            pool.shutdown(wait=True, cancel_futures=True)
        self.shelf.close()

    async def read(self, work: Callable[[], T]) -> T:
        """Do something slow on another thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def look(self, work: Callable[[], T]) -> T:
        """Do something quick that must not wait behind what is slow."""
        return await asyncio.get_running_loop().run_in_executor(self._lookers, work)

    def about_run(
        self, make: Maker, names: Sequence[str]
    ) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint ``…/{run}/…`` that is answered by `make`; `names`: of its arguments."""

        async def endpoint(request: Request) -> Response:
            run: str = request.path_params["run"]
            asked = Asked(request.query_params.multi_items(), names)
            version = await self.look(lambda: self._version(run))
            tag = etag(version)
            if tag in _tags(request):
                return Response(status_code=304, headers={"ETag": tag, **CACHING})
            place = (run, version, request.url.path, str(request.query_params))

            def work() -> Body:
                with self.shelf.reading(run) as history:
                    return make(Question(run, version, history, asked))

            return answer(request, await self._once(place, work), tag)

        return endpoint

    def _version(self, run: str) -> str:
        with self.shelf.pulse(run) as history:
            return version_of(history)

    async def _once(self, place: tuple[str, ...], work: Callable[[], Body]) -> Body:
        kept = self._kept.get(place)
        if kept is not None:
            self._kept.move_to_end(place)
            return kept
        coming = self._made.get(place)
        if coming is None:
            coming = self._made[place] = asyncio.ensure_future(self.read(work))
            coming.add_done_callback(lambda _: self._made.pop(place, None))
        # One who goes away must not take the answer from the others.
        body = await asyncio.shield(coming)
        if place not in self._kept:
            self._kept[place] = body
            self._kept_bytes += body.size
            while self._kept_bytes > KEPT_BYTES:
                self._kept_bytes -= self._kept.popitem(last=False)[1].size
        return body


CACHING: Final = {"Cache-Control": "private, no-cache", "Vary": "Accept-Encoding, Cookie"}
"""Browsers keep an answer and ask whether it still holds."""


def etag(version: str) -> str:
    """Of an address at that version of its run."""
    return f'W/"{__version__}-{version}"'


def answer(request: Request, body: Body, tag: str | None = None) -> Response:
    """The response; compressed if the browser takes it."""
    headers = dict(CACHING)
    if tag is not None:
        headers["ETag"] = tag
    data = body.data
    if body.zipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        data = body.zipped
    return Response(data, media_type=body.media, headers=headers)


def _tags(request: Request) -> list[str]:
    return [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
