"""Ways to the page: below a proxy's path, through a tunnel, in a notebook's frame."""

from __future__ import annotations

import http.server
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.browser.pages import TOKEN, Server, Visit

PREFIX = "/user/me/proxy/8765"


def copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def tunnel(port: int) -> Iterator[int]:
    """What `ssh -L` does: another port of this machine leads to that one."""

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as far:
                back = threading.Thread(target=copy, args=(far, self.request))
                back.start()
                copy(self.request, far)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forward) as near:
        threading.Thread(target=near.serve_forever, daemon=True).start()
        yield near.server_address[1]
        near.shutdown()


def test_below_a_path(folder: Path, built: None, browser: Browser) -> None:
    server = Server(folder, prefix=PREFIX)
    server.start()
    visit = Visit(browser, server)  # nothing may be asked outside of the path
    visit.go("findings", "gpt-hot")
    expect(visit.page.get_by_role("article", name="LR too high")).to_be_visible()
    visit.page.get_by_role("link", name="Layers").click()
    visit.quiet()
    expect(visit.page.locator("canvas.heat-canvas")).to_be_visible()
    visit.end()
    server.stop()


def test_through_a_tunnel(server: Server, browser: Browser) -> None:
    with tunnel(server.port) as port:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://localhost:{port}/?token={TOKEN}#/overview?runs={server.id('gpt-live')}")
        expect(page.locator(".live")).to_be_visible()
        before = page.locator(".head-facts .figure").inner_text()
        expect(page.locator(".head-facts .figure")).not_to_have_text(before)
        context.close()


def test_in_a_frame_of_a_notebook(folder: Path, built: None, browser: Browser) -> None:
    page_of = Server(folder, "--embed")
    page_of.start()

    class Notebook(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            frame = f'<iframe src="{page_of.url}/?token={TOKEN}" width=1000 height=600></iframe>'
            self.wfile.write(frame.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Notebook) as notebook:
        threading.Thread(target=notebook.serve_forever, daemon=True).start()
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{notebook.server_port}/")
        inside = page.frame_locator("iframe")
        expect(inside.locator(".view-title")).to_be_visible()
        context.close()
        notebook.shutdown()
    page_of.stop()
