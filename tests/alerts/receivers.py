"""Somebody to tell: a real SMTP server and a real HTTP server on this machine."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from email import message_from_bytes
from email.message import Message as Mail
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller

TOKEN = "s3cr3t-t0ken-of-the-hook"


class Hook(ThreadingHTTPServer):
    """Keeps what was posted; `status` is what it answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.status = 200
        self.asked = 0
        self.taken: list[dict[str, Any]] = []
        self.arrived = threading.Condition()
        self._thread = threading.Thread(target=self.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"json://someone:{TOKEN}@127.0.0.1:{self.server_port}/hooks/{TOKEN}"

    def until(self, num: int, timeout_s: float = 30.0) -> list[dict[str, Any]]:
        """What was taken, as soon as there are that many."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.taken) >= num, timeout_s), self.taken
            return list(self.taken)

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Answers(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        hook = self.server
        with hook.arrived:
            hook.asked += 1
            if hook.status == 200:
                hook.taken.append(json.loads(body))
            hook.arrived.notify_all()
        self.send_response(hook.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


class Mailbox:
    """An SMTP server."""

    def __init__(self) -> None:
        self.mails: list[Mail] = []
        self.recipients: list[list[str]] = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port)

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        self.recipients.append(envelope.rcpt_tos)
        self.mails.append(message_from_bytes(envelope.content))
        return "250 OK"

    def open(self) -> None:
        self._controller.start()

    def close(self) -> None:
        self._controller.stop()


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def text_of(mail: Mail) -> str:
    """The words of a mail."""
    parts = [part for part in mail.walk() if part.get_content_type().startswith("text/")]
    return "\n".join(part.get_payload(decode=True).decode() for part in parts)
