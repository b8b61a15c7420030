"""The server, and trainings, in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.cli.processes import VITALS, environment
from tests.dashboard.asking import BEARER, TOKEN

TRAINING = """
import os, sys, time
import torch
import torchvitals

path, ui = sys.argv[1], sys.argv[2] == "ui"
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
end = time.monotonic() + 120
with torchvitals.watch(model, optimizer, run=path, every=1, ui=ui) as monitor:
    print("begun", flush=True)
    while time.monotonic() < end and not os.path.exists(f"{path}/stop"):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.log(loss=loss)
        time.sleep(0.01)
print("ended", flush=True)
"""


class Server:
    """``vitals ui``, started."""

    def __init__(self, folder: Path, *arguments: str, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [str(VITALS), "ui", str(folder), "--no-browser", "--port", str(port),
             "--token", TOKEN, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )  # fmt: skip
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http"), self.process.communicate()
        self.base = self.url.partition("/?")[0]
        self.port = httpx.URL(self.url).port or 0

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.base, headers=BEARER, timeout=30)

    def stop(self, how: int = signal.SIGINT) -> tuple[int, str]:
        """Exit code and what it said."""
        self.process.send_signal(how)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextmanager
def training(path: Path, ui: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A real training that runs meanwhile, until there is a file ``stop`` in its run."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(path), "ui" if ui else ""],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n", process.communicate()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Listener:
    """Messages of a stream, as they come."""

    def __init__(self, server: Server, **arguments: Any) -> None:
        self.messages: list[tuple[float, str, dict[str, Any]]] = []
        self.lines: list[str] = []
        self.ended = threading.Event()
        self._server, self._arguments = server, arguments
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        event = ""
        try:
            with (
                self._server.client() as client,
                client.stream("GET", "/api/live", params=self._arguments) as answer,
            ):
                for line in answer.iter_lines():
                    self.lines.append(line)
                    name, _, value = line.partition(": ")
                    if name == "event":
                        event = value
                    elif name == "data":
                        self.messages.append((time.monotonic(), event, json.loads(value)))
        except httpx.HTTPError:
            pass
        self.ended.set()

    def wait(self, wanted: Any, seconds: float = 90) -> tuple[float, str, dict[str, Any]]:
        """The first message for which `wanted(event, data)` is true."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            for message in list(self.messages):
                if wanted(message[1], message[2]):
                    return message
            time.sleep(0.02)
        raise AssertionError(f"no such message in {seconds} s: {self.messages[-5:]}")


def gone(pid: int, seconds: float = 60) -> bool:
    """Whether a process ends in that time (a zombie has not ended properly)."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.05)
    return False


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in found.read_text().split()]
