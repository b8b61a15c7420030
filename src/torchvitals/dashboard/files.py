"""The page's own files: those in the package's ``static`` folder, by name, and nothing else."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from torchvitals.dashboard.built import STATIC

MEDIA: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".ico": "image/x-icon",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_TEXTS: Final = frozenset({".css", ".html", ".js", ".json", ".svg", ".txt"})

_NOT_BUILT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>torchvitals</title>
<h1>The page is not built</h1>
<p>This is a source checkout, and its page was not built yet. In its folder:</p>
<pre>make page</pre>
<p>builds it (Node comes from PyPI, nothing else is needed); then load this address again.
Packages that are installed with pip contain the page.
The <a href="api/runs">API</a> works without it.</p></html>"""


@dataclass(frozen=True, slots=True)
class _File:
    changed: int
    data: bytes
    zipped: bytes | None
    media: str
    forever: bool


class Files:
    """Serves a folder that was listed before: a name is looked up, never joined to a path."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._folder = folder
        self._names: dict[str, Path] = {}
        self._read: dict[str, _File] = {}
        self._list()

    async def answer(self, request: Request) -> Response:
        """A file; the page itself at the root."""
        name = request.path_params.get("name") or "index.html"
        if name == "index.html" or name not in self._names:
            self._list()  # a new build has new names
        path = self._names.get(name)
        if path is None and name == "index.html":
            return HTMLResponse(_NOT_BUILT, status_code=503)
        if path is None:
            return JSONResponse({"status": 404, "error": "there is nothing here."}, status_code=404)
        file = self._file(name, path)
        headers = {
            "Vary": "Accept-Encoding",
            "Cache-Control": "public, max-age=31536000, immutable" if file.forever else "no-cache",
        }
        data = file.data
        if file.zipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
            data, headers["Content-Encoding"] = file.zipped, "gzip"
        return Response(data, media_type=file.media, headers=headers)

    def _list(self) -> None:
        found = self._folder.rglob("*") if self._folder.is_dir() else ()
        self._names = {
            path.relative_to(self._folder).as_posix(): path
            for path in found
            if path.suffix in MEDIA and path.is_file() and not path.is_symlink()
        }

    def _file(self, name: str, path: Path) -> _File:
        changed = path.stat().st_mtime_ns
        known = self._read.get(name)
        if known is None or known.changed != changed:
            data = path.read_bytes()
            # The names of assets hold a hash of what is in them.
            self._read[name] = known = _File(
                changed,
                data,
                gzip.compress(data, mtime=0) if path.suffix in _TEXTS else None,
                MEDIA[path.suffix],
                forever=name.startswith("assets/"),
            )
        return known
