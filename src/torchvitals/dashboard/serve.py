"""`serve`: the process. Finds a port, says where the page is, runs until Ctrl-C."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn

from torchvitals.dashboard.app import create_app, normal_prefix
from torchvitals.dashboard.gate import ANY_ADDRESS, LOCAL_HOSTS
from torchvitals.record import ConfigError

FIRST_PORT: Final = 8765
TRIES: Final = 100
SHORTEST_TOKEN: Final = 16
PARENT_S: Final = 0.5
POLITE: Final = 5
"""Beside a training that started it, the page takes what the training leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to serve; what `vitals ui` takes."""

    folder: Path
    host: str = "127.0.0.1"
    port: int | None = None
    """None: the first free one from `FIRST_PORT` on; 0: any."""
    token: str | None = None
    """None: a new one."""
    prefix: str = ""
    allow_hosts: tuple[str, ...] = ()
    embed: bool = False
    parent: int | None = None
    """End when this process has ended."""


def serve(settings: Settings, on_ready: Callable[[str], None]) -> None:
    """Serve until told to stop; `on_ready` gets the address with its token."""
    if not settings.folder.is_dir():
        raise ConfigError(
            f"there is no folder {settings.folder}; give the folder your runs are in."
        )
    token = settings.token if settings.token is not None else secrets.token_urlsafe(24)
    check_token(token)
    app = create_app(
        settings.folder,
        token=token,
        allowed_hosts=allowed_hosts(settings.host, settings.allow_hosts),
        prefix=settings.prefix,
        embed=settings.embed,
    )
    with bind(settings.host, settings.port) as listener:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,  # addresses may hold names of layers; nobody reads them
            server_header=False,
            proxy_headers=False,  # what a client says about itself is not believed
            # The same server whatever else is installed: a faster parser knows no limit of headers.
            http="h11",
            loop="asyncio",
            ws="none",
            timeout_graceful_shutdown=2,
            timeout_keep_alive=30,
            h11_max_incomplete_event_size=64 << 10,
        )
        logging.getLogger("uvicorn.error").addFilter(is_worth_saying)
        server = _Server(config, app.live.close)
        if settings.parent is not None:
            _follow(settings.parent, server)
            if hasattr(os, "nice"):
                os.nice(POLITE)
        on_ready(address(settings, listener.getsockname()[1], token))
        with suppress(KeyboardInterrupt):  # uvicorn raises it again once everything is closed
            server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends open streams before it waits for connections to end."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)


def bind(host: str, port: int | None) -> socket.socket:
    """A listening socket: at that port, or at the first free one."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"there is no host {host!r} here ({error}); try 127.0.0.1.") from None
    wanted = [port] if port is not None else list(range(FIRST_PORT, FIRST_PORT + TRIES))
    for number in wanted:
        listener = socket.socket(family, socket.SOCK_STREAM)
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((place[0], number, *place[2:]))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE and port is None:
                continue
            raise ConfigError(_no_port(host, number, error)) from None
        listener.setblocking(False)
        return listener
    raise ConfigError(
        f"ports {wanted[0]} to {wanted[-1]} are all taken; choose one with --port (0: any)."
    )


def _no_port(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken; choose another one, or leave --port out."
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights; choose one above 1023."
    return f"can't listen at {host}, port {port}: {error.strerror or error}."


def is_worth_saying(record: logging.LogRecord) -> bool:
    """Not that an answer was given up at the end: who pressed Ctrl-C does not want it any more."""
    error = record.exc_info[1] if record.exc_info else None
    given_up = str(record.msg).startswith("Cancel %s running task")
    return not given_up and not isinstance(error, asyncio.CancelledError)


def check_token(token: str) -> None:
    """ConfigError unless it is long, and fits into a URL and a cookie."""
    fits = token.isascii() and all(sign.isalnum() or sign in "-_." for sign in token)
    if len(token) < SHORTEST_TOKEN or not fits:
        raise ConfigError(
            f"a token has at least {SHORTEST_TOKEN} letters, digits, '-', '_' or '.'; leave it out "
            "to get a new one."
        )


def is_local(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def allowed_hosts(host: str, more: Collection[str] = ()) -> set[str]:
    """Names a browser may know this server by."""
    names = {*LOCAL_HOSTS, *more}
    if not is_local(host):
        # Reached by the machine's name, or by one of its numbers.
        names |= {host, socket.gethostname(), ANY_ADDRESS}
    return names


def address(settings: Settings, port: int, token: str) -> str:
    """The address to open in a browser on this machine."""
    host = settings.host
    if host in ("0.0.0.0", "::", ""):
        host = "127.0.0.1" if host != "::" else "::1"
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}{normal_prefix(settings.prefix)}/?token={token}"


def _follow(parent: int, server: uvicorn.Server) -> None:
    """Stop the server when that process, which started it, has ended."""

    def wait() -> None:
        while not server.should_exit:
            if os.getppid() != parent:
                server.should_exit = True
            time.sleep(PARENT_S)

    threading.Thread(target=wait, name="vitals-parent", daemon=True).start()


def open_browser(url: str) -> None:
    """Open the page where there is a screen; never fails."""
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return
    import webbrowser

    with suppress(Exception):
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
