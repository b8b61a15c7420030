"""`Gate`: who may ask. Stands before everything else that the server does.

Each request must name a known host (a page of another site whose name was rebound to this machine
does not), be a GET or HEAD, and carry the token: as cookie, or in the Authorization header. Each
answer says what browsers may do with it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ANY_ADDRESS: Final = "<ip>"
"""Among the allowed hosts: any numeric address. Names can be rebound, numbers can't."""

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")

NOTEBOOKS: Final = "'self' http://localhost:* http://127.0.0.1:* https://localhost:*"
"""Who may embed the page when it was started for a notebook."""

_LOCKED = """<!doctype html><html lang="en"><meta charset="utf-8"><title>torchvitals</title>
<h1>This page needs its token</h1>
<p>Open the address that <code>vitals ui</code> printed when it started: it ends with
<code>?token=…</code>. A server that was started again has a new one.</p></html>"""


def policy(frame_ancestors: str) -> str:
    """The Content-Security-Policy: this server's own files and nothing else."""
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors {frame_ancestors}"
    )


class Gate:
    """Wraps an application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        allowed_hosts: Collection[str],
        prefix: str = "",
        embed: bool = False,
    ) -> None:
        self.app = app
        self._token = token.encode()
        self._hosts = frozenset(host.lower() for host in allowed_hosts)
        self._prefix = prefix
        # Cookies are shared by all ports of a host: each server has a name of its own.
        self.cookie = "vitals_" + hashlib.sha256(self._token).hexdigest()[:12]
        self._headers = {
            "Content-Security-Policy": policy(NOTEBOOKS if embed else "'none'"),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        }
        if not embed:
            self._headers["Cross-Origin-Opener-Policy"] = "same-origin"
            self._headers["X-Frame-Options"] = "DENY"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            scope = self._without_prefix(scope)
            answer = self._refused(scope) or self.app
            await answer(scope, receive, self._with_headers(send))
        else:  # no web sockets here
            await send({"type": "websocket.close", "code": 1008})

    def _refused(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._known(hosts[0]):
            return _error(
                403,
                "this server does not answer to this host name; use localhost, or start it with "
                "vitals ui --allow-host NAME.",
            )
        if scope["method"] not in ("GET", "HEAD"):
            return _error(405, "everything here is read-only: GET and HEAD.", Allow="GET, HEAD")
        path = scope["path"]
        for_scripts = path == "/api" or path.startswith("/api/")
        if not for_scripts:
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            given = [value for name, value in query if name == "token"]
            if given and self._right(given[-1]):
                return self._welcome(query, scope["scheme"])
        if self._may_pass(headers):
            return None
        if for_scripts:
            return _error(
                401,
                "the token is missing or wrong; send the cookie of the page, or the header "
                "Authorization: Bearer TOKEN. vitals ui prints it when it starts.",
            )
        return HTMLResponse(_LOCKED, status_code=401, headers={"Cache-Control": "no-store"})

    def _known(self, host: str) -> bool:
        name = host.strip().lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") == 1:
            name = name.partition(":")[0]
        name = name.removesuffix(".")
        return name in self._hosts or (ANY_ADDRESS in self._hosts and _numeric(name))

    def _may_pass(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._right(given.strip()):
            return True
        for line in headers.getlist("cookie"):
            try:
                cookie = SimpleCookie(line).get(self.cookie)
            except CookieError:
                continue
            if cookie is not None and self._right(cookie.value):
                return True
        return False

    def _right(self, given: str) -> bool:
        return secrets.compare_digest(given.encode("utf-8", "replace"), self._token)

    def _welcome(self, query: list[tuple[str, str]], scheme: str) -> Response:
        """The cookie, and the same address without the token: it must not stay in the history."""
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        headers = {"Location": f"./?{rest}" if rest else "./", "Cache-Control": "no-store"}
        answer = Response(status_code=303, headers=headers)
        answer.set_cookie(
            self.cookie,
            self._token.decode(),
            path=f"{self._prefix}/",
            httponly=True,
            samesite="lax",
            secure=scheme == "https",
        )
        return answer

    def _without_prefix(self, scope: Scope) -> Scope:
        """Proxies hand the path over with their prefix or without it: both are right."""
        path: str = scope["path"]
        if self._prefix and (path + "/").startswith(f"{self._prefix}/"):
            rest = path[len(self._prefix) :] or "/"
            return {**scope, "path": rest, "raw_path": rest.encode()}
        return scope

    def _with_headers(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        return sending


def _numeric(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _error(status: int, text: str, **headers: str) -> Response:
    return JSONResponse({"status": status, "error": text}, status_code=status, headers=headers)
