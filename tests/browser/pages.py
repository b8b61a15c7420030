"""`Server` and `Visit`: the two ends of the wire."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Browser, ConsoleMessage, Error, Request, expect

QUIET = """() => {
    const seen = (one) => one.getBoundingClientRect().top < innerHeight;
    return !document.querySelector(".loading, [aria-busy=true]")
        && ![...document.querySelectorAll(".asleep")].some(seen);
}"""
"""In the browser: everything that can be seen is there."""

WAIT = 20_000
"""Milliseconds: a busy machine is slow, not wrong."""

TOKEN = "a-token-for-the-tests-of-the-page"


class Server:
    """`vitals ui`, started and stopped, always at the same address."""

    def __init__(self, folder: Path, *options: str, prefix: str = "") -> None:
        self._folder = folder
        self._options = [*options, *([f"--prefix={prefix}"] if prefix else [])]
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}{prefix}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        code = "from torchvitals.cli.main import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, "ui", self._folder, "--no-browser", f"--port={self.port}",
             *self._options],
            env={**os.environ, "VITALS_TOKEN": TOKEN},
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                self.ask("runs")
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
            else:
                return
        raise TimeoutError(f"no server at {self.url}")

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(20)

    def ask(self, path: str, **arguments: Any) -> Any:
        """What the API answers, as JSON."""
        query = urlencode({**arguments, "format": "json"} if arguments else {}, doseq=True)
        request = urllib.request.Request(
            f"{self.url}/api/{path}?{query}", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def id(self, name: str) -> str:
        """The id of the run of that name; a training that has just begun is waited for."""
        end = time.monotonic() + 60
        while name not in (ids := {run["name"]: run["id"] for run in self.ask("runs")["runs"]}):
            assert time.monotonic() < end, f"there is no run {name}"
            time.sleep(0.2)
        found: str = ids[name]
        return found


class Visit:
    """One browser window on the page, and everything it complained about."""

    def __init__(self, browser: Browser, server: Server) -> None:
        self.server = server
        self._browser = browser
        self.said: list[str] = []
        self.elsewhere: list[str] = []
        self.allowed: tuple[str, ...] = ()
        """Parts of complaints that a test causes on purpose."""
        self.open_window()

    def open_window(self, **options: Any) -> None:
        """A new window (another size, another colour scheme) instead of the last one."""
        size = options.pop("size", (1280, 800))
        if hasattr(self, "context"):
            self.context.close()
        viewport = {"width": size[0], "height": size[1]}
        self.context = self._browser.new_context(viewport=viewport, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT)
        self.page.on("console", self._heard)
        self.page.on("pageerror", self._broke)
        self.page.on("request", self._asked)
        self.page.goto(f"{self.server.url}/?token={TOKEN}")

    def go(self, view: str, run: str = "gpt-frozen", **settings: Any) -> None:
        """To a view, as if its address had been sent by somebody; waits until it is drawn."""
        runs = ",".join(self.server.id(name) for name in run.split(","))
        text = urlencode({"runs": runs, **settings})
        # By way of a blank page: a fragment alone does not load anything anew.
        self.page.goto("about:blank")
        self.page.goto(f"{self.server.url}/#/{view}?{text}")
        self.quiet()

    def quiet(self) -> None:
        """Wait until nothing is being loaded."""
        expect(self.page.locator(".view, .state").first).to_be_visible(timeout=WAIT)
        end = time.monotonic() + WAIT / 1000
        while not self.page.evaluate(QUIET):
            assert time.monotonic() < end, "still loading"
            self.page.wait_for_timeout(50)

    @property
    def settings(self) -> dict[str, str]:
        """What the address says."""
        found: dict[str, str] = self.page.evaluate(
            "Object.fromEntries(new URLSearchParams(location.hash.split('?')[1] ?? ''))"
        )
        return found

    def end(self) -> None:
        """Close the window; nothing may have gone wrong in it."""
        self.context.close()
        said = [text for text in self.said if not any(part in text for part in self.allowed)]
        assert not said, said
        assert not self.elsewhere, self.elsewhere

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self.said.append(f"{message.type}: {message.text}")

    def _broke(self, error: Error) -> None:
        self.said.append(f"exception: {error}")

    def _asked(self, request: Request) -> None:
        url = request.url
        if not url.startswith((self.server.url, "data:", "blob:", "about:")):
            self.elsewhere.append(url)


def number(text: str) -> float:
    """A number as the page writes it: 7.2×10⁻⁴."""
    digits = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−", "0123456789--")
    plain = text.strip().replace("\u202f", "")
    head, cross, power = plain.partition("×10")
    if cross:
        return float(head.translate(digits)) * 10.0 ** int(power.translate(digits))
    if plain.startswith("10") and plain[2:] and plain[2] in "⁻⁰¹²³⁴⁵⁶⁷⁸⁹":
        return 10.0 ** int(plain[2:].translate(digits))
    return float(plain.translate(digits))
