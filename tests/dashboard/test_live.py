"""Live messages of real trainings, over a real connection; restarts of the server."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import httpx
import pytest

from tests.cli.told_writer import ToldWriter
from tests.dashboard.asking import Api
from tests.dashboard.processes import Listener, Server, training
from tests.views.made_runs import make_run


def test_a_training_is_followed_while_it_runs(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    with Server(folder) as server, server.client() as client:
        everything = Listener(server)
        everything.wait(lambda event, _data: event == "runs")
        with training(folder / "net") as process:
            api = Api(client)
            everything.wait(lambda _event, data: data.get("running"))
            ident = api.ids()["net"]
            # Without a run named, those that are running are followed too.
            everything.wait(lambda event, data: event == "run" and data["run"] == ident)
            live = Listener(server, run=ident)
            first = live.wait(lambda _event, data: (data["last_step"] or 0) >= 5)[2]
            assert first["status"] == "running"
            live.wait(lambda _event, data: (data["last_step"] or 0) > first["last_step"] + 5)
            key = "gradient/[root module]/norm"
            known = live.messages[-1][2]["last_step"]
            got = api.frame(f"runs/{ident}/series", key=key, points=5000)
            assert got.arrays["0.steps"][-1] >= known - 1  # the machine's samples are ahead
            process.send_signal(signal.SIGKILL)
            process.wait()
            live.wait(lambda _event, data: data["status"] == "died")
        versions = [message[2]["version"] for message in live.messages]
        assert len(set(versions)) == len(versions), "a message without news"


def test_what_is_committed_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    with ToldWriter(folder / "told", 100) as writer:
        writer.tell(3)
        with Server(folder) as server, server.client() as client:
            ident = Api(client).ids()["told"]
            live = Listener(server, run=ident)
            assert live.wait(lambda *_: True)[2]["last_step"] == 3
            assert live.lines[0] == "retry: 1000"
            for count in range(4, 9):
                writer.tell(1)
                live.wait(lambda _event, data, count=count: data["last_step"] == count)
            writer.tell("finished")
            live.wait(lambda _event, data: data["status"] == "finished")


def test_a_page_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    with ToldWriter(folder / "told", 100) as writer:
        writer.tell(3)
        with Server(folder) as server, server.client() as client:
            ident = Api(client).ids()["told"]
            live = Listener(server, run=ident)
            before = live.wait(lambda *_: True)[2]
            code, said = server.stop()
            assert code == 0, said
            assert live.ended.wait(10)
        writer.tell(2)
        with Server(folder, port=server.port) as server:
            # The same address, token and id: an EventSource that comes back catches up.
            after = Listener(server, run=ident).wait(lambda *_: True)[2]
            assert after["last_step"] == 5
            assert after["version"] != before["version"]


def test_a_finished_run_is_the_same_tomorrow(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "done")
    answers = []
    for _ in range(2):
        with Server(tmp_path / "runs") as server, server.client() as client:
            run = Api(client).run("done")
            asked = [f"/api/{run}", f"/api/{run}/overview", f"/api/{run}/series?key=loss"]
            answers.append([client.get(path).content for path in asked])
    assert answers[0] == answers[1]


def test_two_runs_on_one_stream(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / "runs" / name)
    with Server(tmp_path / "runs") as server, server.client() as client:
        ids = Api(client).ids()
        live = Listener(server, run=list(ids.values()))
        for ident in ids.values():
            live.wait(lambda _event, data, ident=ident: data["run"] == ident)
        unknown = client.get("/api/live", params={"run": "nope"})
        assert unknown.status_code == 404


def test_a_run_that_comes_and_goes_is_told(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a")
    with Server(tmp_path / "runs") as server, server.client() as client:
        live = Listener(server)
        first = live.wait(lambda event, _data: event == "runs")[2]
        make_run(tmp_path / "runs" / "b")
        live.wait(lambda _e, data: data["version"] != first["version"])
        assert sorted(Api(client).ids()) == ["a", "b"]
        shutil.rmtree(tmp_path / "runs" / "b")
        live.messages.clear()
        live.wait(lambda _e, data: data["version"] == first["version"])
        assert sorted(Api(client).ids()) == ["a"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_server_ends_though_pages_are_open(tmp_path: Path, how: signal.Signals) -> None:
    make_run(tmp_path / "runs" / "a")
    with Server(tmp_path / "runs") as server:
        live = Listener(server)
        live.wait(lambda *_: True)
        code, said = server.stop(how)
        assert code in (0, -signal.SIGTERM)
        assert "Traceback" not in said
        assert "ERROR" not in said
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.base)
