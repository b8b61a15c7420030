"""`vitals ui`, `watch(ui=True)` and `monitor.show()` as a user meets them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.cli.processes import VITALS, environment, vitals
from tests.dashboard.asking import BEARER, TOKEN, Api
from tests.dashboard.processes import Server, children, gone, training
from tests.views.made_runs import make_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs" / "a")
    return tmp_path / "runs"


def test_the_address_opens_the_page(folder: Path) -> None:
    with Server(folder) as server:
        assert server.url == f"http://127.0.0.1:{server.port}/?token={TOKEN}"
        with httpx.Client(follow_redirects=True) as browser:
            page = browser.get(server.url)
            assert page.status_code in (200, 503)  # 503: the page is not built here
            assert str(page.url) == f"http://127.0.0.1:{server.port}/"
            assert len(browser.get(f"{server.base}/api/runs").json()["runs"]) == 1
        code, said = server.stop()
        assert code == 0
        assert said == "The page is there until Ctrl-C.\n"


def test_only_this_machine_is_listened_to(folder: Path) -> None:
    with Server(folder) as server:
        listening = Path("/proc/net/tcp").read_text().splitlines()[1:]
        mine = [line.split()[1] for line in listening if line.split()[3] == "0A"]
        assert f"0100007F:{server.port:04X}" in mine
        assert f"00000000:{server.port:04X}" not in mine


@pytest.mark.parametrize(
    "path",
    ["/../../../../etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd", "/./../runs/a/run.vitals"],
)
def test_paths_that_no_client_tidied_up(folder: Path, path: str) -> None:
    with Server(folder) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
            )
            answer = b""
            while more := raw.recv(65536):
                answer += more
        assert answer.startswith(b"HTTP/1.1 404")
        assert b"root:" not in answer
        assert b"SQLite" not in answer


def test_the_next_free_port_is_taken(folder: Path) -> None:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(VITALS), "ui", str(folder), "--no-browser"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(VITALS_TOKEN=TOKEN),
        )

    both = [start(), start()]
    try:
        urls = [httpx.URL(one.stdout.readline().strip()) for one in both if one.stdout]
        assert urls[0].port != urls[1].port
        assert all((url.port or 0) >= 8765 for url in urls)
        for url in urls:
            assert httpx.get(f"http://127.0.0.1:{url.port}/api/runs", headers=BEARER).is_success
    finally:
        for one in both:
            one.kill()
            one.communicate()


def test_a_new_token_each_time(folder: Path) -> None:
    tokens = set()
    for _ in range(2):
        process = subprocess.Popen(
            [str(VITALS), "ui", str(folder), "--no-browser", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert process.stdout is not None
        tokens.add(process.stdout.readline().strip().partition("token=")[2])
        process.kill()
        process.communicate()
    assert len(tokens) == 2
    assert all(len(token) >= 32 for token in tokens)


def test_wrong_calls_say_what_to_do(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, text in (
            ((str(folder), "--port", port), f"port {port} is taken; choose another one"),
            ((str(folder / "nope"),), "there is no folder"),
            ((str(folder), "--token", "short"), "a token has at least 16"),
            ((str(folder), "--token", "sixteen;letters;and more"), "a token has at least 16"),
            ((str(folder), "--host", "no.such.host.invalid"), "there is no host"),
            ((str(folder), "--prefix", "/a/../b"), "prefix must be a path"),
        ):
            done = vitals("ui", "--no-browser", *arguments)
            assert done.returncode == 2, done.stderr
            assert text in done.stderr
            assert "Traceback" not in done.stderr


def test_without_the_extra_it_says_what_to_install(folder: Path) -> None:
    code = f"""
import sys
sys.modules["uvicorn"] = None
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "starlette":
            raise ModuleNotFoundError("No module named 'starlette'", name="starlette")
sys.meta_path.insert(0, Without())
from torchvitals.cli.main import main
sys.argv = ["vitals", "ui", {str(folder)!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'torchvitals[ui]'" in done.stderr


def test_listening_to_others_is_warned_of(folder: Path) -> None:
    with Server(folder, "--host", "0.0.0.0") as server:
        assert server.url.startswith("http://127.0.0.1:")
        with server.client() as client:
            assert client.get("/api/runs", headers={"Host": "192.0.2.1"}).status_code == 200
            assert client.get("/api/runs", headers={"Host": "evil.example"}).status_code == 403
        _, said = server.stop()
    assert "everybody who can reach this machine and has the token" in said


def test_below_a_prefix(folder: Path) -> None:
    with Server(folder, "--prefix", "/proxy/1", "--allow-host", "hub.example.org") as server:
        assert server.base.endswith("/proxy/1")
        with server.client() as client:
            assert len(Api(client).ids()) == 1
            answer = client.get("/api/runs", headers={"Host": "hub.example.org"})
            assert answer.is_success


def page_of(process: subprocess.Popen[str]) -> httpx.URL:
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("torchvitals: the page is at http://127.0.0.1:"), line
    return httpx.URL(line.split()[-1])


def test_watch_shows_its_run_and_the_page_ends_with_it(tmp_path: Path) -> None:
    with training(tmp_path / "runs" / "net", ui=True) as process:
        url = page_of(process)
        (child,) = children(process.pid)
        with httpx.Client(base_url=f"http://127.0.0.1:{url.port}") as client:
            assert client.get("/", params={"token": url.params["token"]}).status_code == 303
            (run,) = client.get("/api/runs").json()["runs"]
            assert (run["name"], run["status"]) == ("net", "running")
        (tmp_path / "runs" / "net" / "stop").touch()
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out.endswith("ended\n")
        assert gone(child)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_page_does_not_outlive_its_training(tmp_path: Path, how: signal.Signals) -> None:
    with training(tmp_path / "runs" / "net", ui=True) as process:
        page_of(process)
        (child,) = children(process.pid)
        process.send_signal(how)
        process.wait(30)
        assert gone(child)


def test_a_page_that_dies_leaves_the_training_alone(tmp_path: Path) -> None:
    with training(tmp_path / "runs" / "net", ui=True) as process:
        page_of(process)
        os.kill(children(process.pid)[0], signal.SIGKILL)
        (tmp_path / "runs" / "net" / "stop").touch()
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out.endswith("ended\n")


def test_show_in_a_notebook(tmp_path: Path) -> None:
    import torch

    import torchvitals

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "runs" / "cell") as monitor:
        shown = monitor.show(height=500)
        assert shown is not None
        assert shown.url in repr(shown)
        frame = shown._repr_html_()
        assert 'height="500"' in frame
        assert f'src="{shown.url}"' in frame
        again = monitor.show()
        assert again is not None
        assert again.url == shown.url
        answer = httpx.get(shown.url)
        assert answer.status_code == 303
        assert "frame-ancestors 'self' http://localhost:*" in str(answer.headers)
    with pytest.raises(httpx.ConnectError):
        httpx.get(shown.url)


def test_the_demo_on_a_terminal_shows_its_page_until_ctrl_c(tmp_path: Path) -> None:
    master, slave = os.openpty()
    process = subprocess.Popen(
        [str(VITALS), "demo", "--fast", "--steps", "12", "--run", "runs/demo"],
        cwd=tmp_path, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        env=environment(TERM="dumb", DISPLAY="", WAYLAND_DISPLAY=""),
    )  # fmt: skip
    os.close(slave)
    seen = b""
    try:
        while b"until Ctrl-C." not in seen:
            seen += os.read(master, 65536)
        seen = seen.replace(b"\r\n", b"")  # the terminal is narrower than the address
        url, _, ids = (
            re.findall(rb"page with both runs is at (http://\S+)", seen)[-1]
            .decode()
            .partition("#/overview?runs=")
        )
        with httpx.Client(follow_redirects=True) as browser:
            browser.get(url)
            runs = browser.get(httpx.URL(url).join("/api/runs")).json()["runs"]
            assert sorted((run["name"], run["status"], run["last_step"]) for run in runs) == [
                ("demo", "finished", 12),
                ("demo/fixed", "finished", 12),
            ]
            assert set(ids.split(",")) == {run["id"] for run in runs}
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)
    finally:
        process.kill()
        process.wait()
        os.close(master)
