"""`PageProcess`: the page of a run that is under way, in a process of its own.

The training starts it and ends it, and never waits for it. If the training is killed, the page
sees that its parent is gone and ends too.
"""

from __future__ import annotations

import atexit
import html
import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

log = logging.getLogger("torchvitals")

START_S: Final = 60.0
"""How long `url` waits for the page to be there."""
END_S: Final = 5.0

_FRAME = """<iframe id="{ident}" src="{url}" width="100%" height="{height}"
 style="border: 1px solid #8884" title="torchvitals"></iframe>
<script>{{
  const here = location.hostname, frame = document.getElementById("{ident}");
  // A cookie of 127.0.0.1 is a stranger's on a page of localhost.
  if (here === "localhost") frame.src = frame.src.replace("//127.0.0.1:", "//localhost:");
}}</script>
<a href="{url}" target="_blank" rel="noopener">in a tab of its own</a>"""


class PageProcess:
    """``vitals ui`` for the folder of a run."""

    def __init__(self, run: Path) -> None:
        self._url: str | None = None
        self._said: list[str] = []
        self._known = threading.Event()
        self._closed = False
        self.folder = _folder(run)
        """The page shows the runs below it."""
        package = Path(__file__).parents[2]
        paths = [part for part in (os.environ.get("PYTHONPATH"), str(package)) if part]
        # -P: files of the user's that are called like a module of ours must not be imported.
        self._process = subprocess.Popen(
            [
                sys.executable, "-P", "-m", "torchvitals.cli.main", "ui", str(self.folder),
                "--no-browser", "--embed", "--parent", str(os.getpid()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is for the training
        )  # fmt: skip
        threading.Thread(target=self._listen, name="torchvitals-page", daemon=True).start()
        atexit.register(self.close)

    @property
    def url(self) -> str | None:
        """The address with its token, once the page is there; None when it could not start."""
        self._known.wait(START_S)
        return self._url

    def wait(self) -> None:
        """Until the page ends."""
        self._process.wait()

    def close(self) -> None:
        """End the page. Doing it twice is fine."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if self._url is None and line.startswith("http"):
                    self._url = line.strip()
                    self._known.set()
                    print(f"torchvitals: the page is at {self._url}", file=sys.stderr, flush=True)
                else:
                    self._said = [*self._said[-9:], line.strip()]
        self._known.set()
        if self._url is None and not self._closed:
            said = " ".join(self._said) or f"exit code {self._process.wait()}"
            log.warning("torchvitals: the page could not start: %s", said)


class Shown:
    """The page in a notebook's cell; elsewhere its address."""

    def __init__(self, url: str, height: int) -> None:
        self.url, self.height = url, height

    def __repr__(self) -> str:
        return f"<torchvitals page at {self.url}>"

    def _repr_html_(self) -> str:
        ident = f"torchvitals-{os.urandom(6).hex()}"
        return _FRAME.format(ident=ident, url=html.escape(self.url), height=int(self.height))


def _folder(run: Path) -> Path:
    """What to show: the run and its neighbours, unless those are everything there is."""
    above = run.absolute().parent
    return run if above in (Path.cwd(), Path.home(), Path(above.anchor)) else above
