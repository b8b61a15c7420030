"""Each way in which local servers of this sort were broken into before, tried."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.dashboard.asking import BEARER, TOKEN, Api
from tests.views.made_runs import make_run
from torchvitals.dashboard import files
from torchvitals.dashboard.gate import ANY_ADDRESS, LOCAL_HOSTS

Serving = Callable[..., TestClient]

EVERYWHERE = ("/", "/index.html", "/assets/x.js", "/api/runs", "/api/live", "/api/nonsense")


@pytest.fixture
def client(serving: Serving, folder: Path) -> TestClient:
    return serving(folder)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer ☃".encode()},
        {"Cookie": f"vitals_000000000000={TOKEN}"},
        {"Cookie": "; ;=;;vitals="},
    ],
)
def test_without_the_token_nothing_is_answered(client: TestClient, headers: dict[str, str]) -> None:
    for path in EVERYWHERE:
        answer = client.get(path, headers=headers)
        assert answer.status_code == 401
        assert "gpt" not in answer.text
        assert TOKEN not in answer.text


def test_the_token_becomes_a_cookie(client: TestClient) -> None:
    answer = client.get("/", params={"token": TOKEN, "run": "a b"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "./?run=a+b"
    cookie = answer.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=lax", "Path=/"):
        assert part in cookie
    assert re.match(r"vitals_[0-9a-f]{12}=", cookie)
    assert answer.headers["cache-control"] == "no-store"
    assert client.get("/api/runs").status_code == 200  # the client keeps cookies
    assert client.get("/", params={"token": "wrong"}).status_code in (200, 503)


def test_a_wrong_token_gets_no_cookie(client: TestClient) -> None:
    answer = client.get("/", params={"token": TOKEN[:-1]})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_the_api_takes_no_token_from_the_address(client: TestClient) -> None:
    """Addresses end up in logs and histories."""
    assert client.get("/api/runs", params={"token": TOKEN}).status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.1.7:8765",
        "localhost@evil.example", "", "0.0.0.0", "evil.example:8765", "127.1",
    ],
)  # fmt: skip
def test_rebound_host_names_are_refused(client: TestClient, host: str) -> None:
    for path in EVERYWHERE:
        answer = client.get(path, headers={**BEARER, "Host": host})
        assert answer.status_code == 403
        assert "gpt" not in answer.text


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:8765", "localhost."]
)
def test_this_machine_by_its_names(client: TestClient, host: str) -> None:
    assert client.get("/api/runs", headers={**BEARER, "Host": host}).status_code == 200


def test_more_hosts_are_allowed_by_name(serving: Serving, folder: Path) -> None:
    client = serving(folder, allowed_hosts={*LOCAL_HOSTS, "hub.example.org", ANY_ADDRESS})
    for host, status in (("hub.example.org", 200), ("10.1.2.3:80", 200), ("evil.example", 403)):
        answer = client.get("/api/runs", headers={**BEARER, "Host": host})
        assert answer.status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO"])
def test_nothing_can_be_changed(client: TestClient, method: str) -> None:
    for path in EVERYWHERE:
        answer = client.request(method, path, headers=BEARER)
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD"


def test_web_sockets_are_refused(client: TestClient) -> None:
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/live", headers=BEARER):
        pass


@pytest.mark.parametrize("path", [*EVERYWHERE, "/api/runs/nope", "/api/runs?wrong=1"])
@pytest.mark.parametrize("headers", [BEARER, {}])
def test_headers_are_on_every_answer(
    client: TestClient, path: str, headers: dict[str, str]
) -> None:
    if path == "/api/live" and headers:
        return  # a stream: see test_live
    answer = client.get(path, headers={**headers, "Origin": "http://evil.example"})
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["x-frame-options"] == "DENY"
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "server" not in answer.headers


def test_a_failure_inside_has_the_headers_too(
    serving: Serving, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvitals.dashboard.answers.runs import RunList

    def fail(_self: RunList) -> None:
        raise RuntimeError("a secret of the server's")

    monkeypatch.setattr(RunList, "answer", fail)
    client = serving(folder)
    quiet = TestClient(client.app, base_url="http://localhost", raise_server_exceptions=False)
    answer = quiet.get("/api/runs", headers=BEARER)
    assert answer.status_code == 500
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "secret" not in answer.text


def test_frames_are_allowed_only_when_asked_for(serving: Serving, folder: Path) -> None:
    policy = serving(folder, embed=True).get("/").headers["content-security-policy"]
    assert "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*" in policy


@pytest.mark.parametrize(
    "name",
    [
        "../secret.txt", "..%2fsecret.txt", "%2e%2e/secret.txt", "%2e%2e%2fsecret.txt",
        "..\\secret.txt", "..%5csecret.txt", "assets/../../secret.txt", "/etc/passwd",
        "%2fetc%2fpasswd", "assets/link.txt", "secret.txt%00.js", "run.vitals", "gpt/run.vitals",
        "page.py", "....//secret.txt", "%252e%252e/secret.txt",
    ],
)  # fmt: skip
def test_files_outside_the_page_are_not_served(
    serving: Serving, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    static = tmp_path / "static"
    (static / "assets").mkdir(parents=True)
    (static / "index.html").write_text("<!doctype html>the page")
    (static / "page.py").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    (static / "assets" / "link.txt").symlink_to(tmp_path / "secret.txt")
    monkeypatch.setattr(files.Files.__init__, "__defaults__", (static,))
    client = serving(folder)
    assert "the page" in client.get("/", headers=BEARER).text
    answer = client.get(f"/{name}", headers=BEARER)
    assert "secret" not in answer.text
    assert "root:" not in answer.text
    # A client that tidies the address up asks for something else: the page itself at most.
    assert answer.status_code == 404 or "the page" in answer.text


@pytest.mark.parametrize(
    "ident",
    [
        "gpt",
        "..",
        "../gpt",
        "..%2fgpt",
        "%2e%2e",
        "outside",
        "../outside",
        "/tmp",
        "a" * 5000,
        "☃",
        "%00",
    ],
)
def test_ids_are_not_paths(serving: Serving, folder: Path, tmp_path: Path, ident: str) -> None:
    make_run(tmp_path / "outside")
    client = serving(folder)
    for below in ("", "/series?key=loss", "/findings"):
        answer = client.get(f"/api/runs/{ident}{below}", headers=BEARER)
        assert answer.status_code in (404, 400) or answer.json().get("folder") == str(folder)
        assert "columns" not in answer.json()


def test_queries_are_not_run(api: Api) -> None:
    """Neither as Python, nor as an expression that takes for ever, nor as SQL."""
    run = api.run()
    for text in (
        "__import__('os').system('id')",
        "(a+)+$",
        "'; DROP TABLE rows; --",
        "{{1234*5678}}",
    ):
        assert "7006652" not in api.error(f"{run}/series", 404, key=text)
        api.error(f"{run}/matrix", 404, kind=text, stat="rms")
        api.error(f"{run}/matrix", 404, kind="gradient", stat="rms", under=text)
        api.error(f"{run}/histograms", 404, kind="gradient", site=text)
    assert api.json(run)["last_step"] == 120


def test_nothing_makes_the_server_fetch(client: TestClient, api: Api) -> None:
    """No address, argument or header is taken for a place to connect to; there is no webhook."""
    run = api.run()
    with socket.create_server(("127.0.0.1", 0)) as bait:
        bait.settimeout(0.5)
        url = f"http://127.0.0.1:{bait.getsockname()[1]}/"
        names = ("url", "webhook", "callback", "target", "next", "run", "key", "site", "under", "x")
        headers = dict.fromkeys(("Referer", "Origin", "X-Forwarded-Host", "Forwarded"), url)
        for path in (f"/{url}", f"/api/{url}", f"/api/runs/{url}", f"/api/{run}/series",
                     f"/api/{run}/matrix", f"/api/{run}/events", "/api/runs"):  # fmt: skip
            client.get(path, headers={**BEARER, **headers})
            for name in names:
                client.get(path, params={name: url, "token": url}, headers={**BEARER, **headers})
                client.post(path, json={name: url}, headers=BEARER)
        with pytest.raises(TimeoutError):
            bait.accept()


def test_headers_of_proxies_are_not_believed(client: TestClient) -> None:
    for name in ("X-Forwarded-Host", "X-Forwarded-Prefix", "X-Forwarded-Proto", "Forwarded"):
        answer = client.get("/", params={"token": TOKEN}, headers={name: "evil.example"})
        assert answer.headers["location"] == "./"
        assert "evil" not in str(answer.headers)
        assert "Path=/;" in answer.headers["set-cookie"]


@pytest.mark.parametrize("prefix", ["/proxy/8765", "proxy/8765/"])
def test_below_a_prefix(serving: Serving, folder: Path, prefix: str) -> None:
    client = serving(folder, prefix=prefix)
    # Proxies hand the path over with or without their prefix.
    for path in ("/proxy/8765/api/runs", "/api/runs"):
        assert client.get(path, headers=BEARER).status_code == 200
    answer = client.get("/proxy/8765/", params={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    assert "Path=/proxy/8765/;" in answer.headers["set-cookie"]
    assert client.get("/proxy/8765/api/runs").status_code == 200
    assert client.get("/proxy/87650/api/runs", headers=BEARER).status_code == 404


@pytest.mark.parametrize("prefix", ["/a/../b", "/a b", "/a?b", "/a;Domain=evil", "/a\r\nX: y"])
def test_odd_prefixes_are_refused(serving: Serving, folder: Path, prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix must be a path"):
        serving(folder, prefix=prefix)


def test_a_page_that_is_not_built_says_how(
    serving: Serving, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.Files.__init__, "__defaults__", (tmp_path / "nothing",))
    answer = serving(folder).get("/", headers=BEARER)
    assert answer.status_code == 503
    assert "make page" in answer.text


def test_the_page_is_served_as_built(
    serving: Serving, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "static" / "assets").mkdir(parents=True)
    (tmp_path / "static" / "index.html").write_text("one")
    script = "let a = 1; " * 1000
    (tmp_path / "static" / "assets" / "index-abc.js").write_text(script)
    monkeypatch.setattr(files.Files.__init__, "__defaults__", (tmp_path / "static",))
    client = serving(folder)
    page = client.get("/", headers=BEARER)
    assert (page.text, page.headers["cache-control"]) == ("one", "no-cache")
    asset = client.get("/assets/index-abc.js", headers=BEARER)
    assert asset.text == script
    assert asset.headers["content-encoding"] == "gzip"
    assert asset.headers["content-type"].startswith("text/javascript")
    assert "immutable" in asset.headers["cache-control"]
    (tmp_path / "static" / "index.html").write_text("two")
    assert client.get("/", headers=BEARER).text == "two"
