"""`create_app`: all addresses, and what answers each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from torchvitals.dashboard.answers import events, histograms, matrix, run, series
from torchvitals.dashboard.answers.runs import RunList
from torchvitals.dashboard.asked import Asked
from torchvitals.dashboard.desk import Desk, answer, etag
from torchvitals.dashboard.files import Files
from torchvitals.dashboard.gate import LOCAL_HOSTS, Gate
from torchvitals.dashboard.live import MOST_FOLLOWED, Live
from torchvitals.dashboard.question import Maker, json_body
from torchvitals.dashboard.shelf import Shelf
from torchvitals.record import ConfigError, RunNotFound, StoreError, UnknownKey

MOST_STREAMS: Final = 100

ABOUT_A_RUN: Final[dict[str, tuple[Maker, tuple[str, ...]]]] = {
    "": (run.run, ()),
    "/series": (series.series, series.SERIES_ARGUMENTS),
    "/overview": (series.overview, series.OVERVIEW_ARGUMENTS),
    "/matrix": (matrix.matrix, matrix.MATRIX_ARGUMENTS),
    "/profile": (matrix.profile, matrix.PROFILE_ARGUMENTS),
    "/histograms": (histograms.histograms, histograms.ARGUMENTS),
    "/findings": (events.findings, ()),
    "/events": (events.events, events.EVENT_ARGUMENTS),
    "/attention": (events.attention, events.ATTENTION_ARGUMENTS),
}
"""Below ``api/runs/ID``: who answers, and with which arguments."""


def create_app(
    root: str | os.PathLike[str],
    *,
    token: str,
    allowed_hosts: Collection[str] = LOCAL_HOSTS,
    prefix: str = "",
    embed: bool = False,
) -> Page:
    """The server of the runs below `root`, as an ASGI application.

    Args:
        root: the folder; nothing outside of it can be asked for.
        token: what a browser must show once, and a script with every request.
        allowed_hosts: names in the Host header that are answered (`gate.ANY_ADDRESS`: numbers too).
        prefix: the path below which a proxy shows this server, such as ``/proxy/8765``.
        embed: whether notebooks on this machine may show the page in a frame.
    """
    if not token:
        raise ConfigError("the page needs a token; leave it to vitals ui to make one.")
    desk = Desk(Shelf(Path(root)))
    runs = RunList(desk.shelf)
    live = Live(desk, runs)
    files = Files()

    async def list_runs(request: Request) -> Response:
        Asked(request.query_params.multi_items(), ())
        found = await desk.read(runs.answer)
        tag = etag(found["version"])
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers={"ETag": tag})
        return answer(request, json_body(found), tag)

    async def follow(request: Request) -> Response:
        idents = Asked(request.query_params.multi_items(), ("run",)).several("run", MOST_FOLLOWED)
        await desk.look(lambda: [desk.shelf.place(ident) for ident in idents])
        if live.num_listeners >= MOST_STREAMS:
            raise HTTPException(503, "too many pages are open; close some.")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(
            live.stream(idents), media_type="text/event-stream", headers=headers
        )

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        live.close()
        desk.close()

    app = Starlette(
        routes=[
            Route("/api/runs", list_runs),
            *(
                Route(f"/api/runs/{{run}}{below}", desk.about_run(make, names))
                for below, (make, names) in ABOUT_A_RUN.items()
            ),
            Route("/api/live", follow),
            Route("/api/{rest:path}", _nothing),
            Route("/", files.answer),
            Route("/{name:path}", files.answer),
        ],
        exception_handlers={
            HTTPException: _told,
            ConfigError: _said(400),
            UnknownKey: _said(404),
            RunNotFound: _said(404),
            StoreError: _said(422),
            Exception: _surprise,
        },
        lifespan=lifespan,
    )
    return Page(
        app,
        live,
        token=token,
        allowed_hosts=allowed_hosts,
        prefix=normal_prefix(prefix),
        embed=embed,
    )


class Page(Gate):
    """The application behind its gate."""

    def __init__(self, app: Starlette, live: Live, **settings: Any) -> None:
        super().__init__(app, **settings)
        self.live = live
        """To be closed before the server waits for its connections."""


def normal_prefix(prefix: str) -> str:
    """With a slash before and none behind; empty for none."""
    parts = [part for part in prefix.split("/") if part]
    if any(part in (".", "..") for part in parts) or any(sign in prefix for sign in "?#;\\ \r\n"):
        raise ConfigError(f"prefix must be a path such as /proxy/8765, got {prefix!r}")
    return "".join(f"/{part}" for part in parts)


async def _nothing(_request: Request) -> Response:
    raise HTTPException(404, "there is no such address; docs/api.md lists those there are.")


async def _told(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail)


def _said(status: int):  # type: ignore[no-untyped-def]  # Starlette's own type is as long as this
    async def handler(_request: Request, error: Exception) -> Response:
        return _error(status, str(error))

    return handler


async def _surprise(_request: Request, error: Exception) -> Response:
    return _error(500, f"{type(error).__name__}: this should not happen; the terminal says more.")


def _error(status: int, text: str) -> Response:
    return JSONResponse(
        {"status": status, "error": text},
        status_code=status,
        headers={"Cache-Control": "no-store"},
    )
