"""Alerts arrive at real receivers: an SMTP server and an HTTP server."""

import logging
import socket
import time
from pathlib import Path

import pytest

import torchvitals
from torchvitals.alerts import Alerts
from torchvitals.record import Event

from .receivers import Hook, Mailbox, text_of
from .training import finding, found, training


def test_a_finding_arrives_by_http(hook: Hook, tmp_path: Path) -> None:
    with training(tmp_path / "gpt", Alerts(hook.url, gather_s=0)) as (monitor, _):
        found(monitor)
        (taken,) = hook.until(1)
    assert taken["title"] == ("gpt: error: dead_units in blocks.2.mlp, blocks.3.mlp since step 120")
    assert taken["type"] == "failure"
    assert taken["message"].splitlines() == [
        "Most units never fire.",
        "· 91 % of its units are dead, healthy is below 10 %",
        "Do: lower lr from 0.003 to 0.0003",
    ]


def test_a_finding_arrives_by_mail(mailbox: Mailbox, tmp_path: Path) -> None:
    url = (
        f"mailto://127.0.0.1:{mailbox.port}?smtp=127.0.0.1&mode=insecure"
        "&from=vitals@example.com&to=me@example.com&format=text"
    )
    with training(tmp_path / "gpt", Alerts([url], gather_s=0)) as (monitor, _):
        found(monitor, severity="warning")
    (mail,) = mailbox.mails
    assert mailbox.recipients == [["me@example.com"]]
    assert "warning: dead_units in blocks.2.mlp" in str(mail["Subject"])
    assert "Do: lower lr from 0.003 to 0.0003" in text_of(mail)


def test_everybody_is_told(hook: Hook, mailbox: Mailbox, tmp_path: Path) -> None:
    mail = f"mailto://127.0.0.1:{mailbox.port}?mode=insecure&from=a@example.com&to=b@example.com"
    with training(tmp_path / "gpt", Alerts(f"{hook.url} {mail}", gather_s=0)) as (monitor, _):
        found(monitor)
    assert len(hook.taken) == len(mailbox.mails) == 1


def test_what_comes_together_goes_in_one_and_what_is_over_is_said(
    hook: Hook, tmp_path: Path
) -> None:
    with training(tmp_path / "gpt", Alerts(hook.url, gather_s=0, every_s=3600)) as (monitor, _):
        found(monitor, name="first")
        hook.until(1)
        found(monitor, name="second", severity="warning")
        found(monitor, name="third")
        found(monitor, name="third", state="updated")
        found(monitor, name="first", state="resolved", resolved_step=300)
        found(monitor, name="fourth")
        found(monitor, name="fourth", state="resolved")
    first, rest = hook.taken  # the second one at the end: an hour has not passed
    assert "first" in first["title"]
    assert rest["title"].endswith("third in blocks.2.mlp, blocks.3.mlp since step 120 (and 2 more)")
    parts = rest["message"].split("\n\n")
    assert parts[0].startswith("error: third")
    assert parts[1].startswith("warning: second")
    assert parts[2] == "resolved: first in blocks.2.mlp, blocks.3.mlp: over since step 300"
    assert "fourth" not in rest["message"]


def test_only_from_the_level_upwards(hook: Hook, tmp_path: Path) -> None:
    with training(tmp_path / "gpt", Alerts(hook.url, level="error", gather_s=0)) as (monitor, _):
        found(monitor, name="slow", severity="warning")
        found(monitor, name="slow", severity="info")
        found(monitor, name="slow", severity="error", state="updated")
    (taken,) = hook.taken
    assert "error: slow" in taken["title"]


def test_the_guard_and_the_end_are_told_when_asked_for(hook: Hook, tmp_path: Path) -> None:
    asked = Alerts(hook.url, guard=True, end="always", gather_s=0)
    with training(tmp_path / "a", asked) as (monitor, _):
        monitor.event("guard", "step 7 skipped: norm 812 is above 40")
    assert "guard at step 1: step 7 skipped" in hook.taken[0]["message"] + hook.taken[0]["title"]
    assert "the run finished" in str(hook.taken[-1])
    hook.taken.clear()
    with training(tmp_path / "b", Alerts(hook.url, gather_s=0)) as (monitor, _):
        monitor.event("guard", "step 7 skipped")
    assert hook.taken == []


def fail(path: Path, alerts: Alerts) -> None:
    with training(path, alerts):
        raise RuntimeError("out of memory")


def test_a_run_that_failed_is_told(hook: Hook, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        fail(tmp_path / "gpt", Alerts(hook.url, level="error", gather_s=0))
    (taken,) = hook.taken
    assert taken["title"] == "gpt: error: the run failed"
    assert taken["message"] == "RuntimeError: out of memory"


def test_an_alert_of_ones_own(hook: Hook, tmp_path: Path) -> None:
    with training(tmp_path / "gpt", Alerts(hook.url, level="error", gather_s=0)) as (monitor, _):
        monitor.alert("Checkpoint is there", "at /data/1000.pt")
        (taken,) = hook.until(1)
        with pytest.raises(torchvitals.VitalsError, match="level must be one of info, warning"):
            monitor.alert("x", level="loud")
    assert taken["title"] == "gpt: info: Checkpoint is there"
    assert taken["message"] == "at /data/1000.pt"
    (event,) = torchvitals.open_run(tmp_path / "gpt").events("alert")
    assert event.text == "Checkpoint is there: at /data/1000.pt"
    assert event.data["level"] == "info"


def test_one_that_refuses_is_told_once_and_training_goes_on(
    hook: Hook, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook.status = 500
    with training(tmp_path / "gpt", Alerts(hook.url, gather_s=0, every_s=0)) as (monitor, step):
        for name in ("a", "b", "c"):
            found(monitor, name=name)
            step()
    assert hook.asked >= 2
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len([text for text in told if "alerts can't be sent" in text]) == 1
    assert "json, address 1" in told[0]
    assert "could not be sent" in told[-1]
    assert torchvitals.open_run(tmp_path / "gpt").series("loss").steps.tolist() == [1, 2, 3, 4]


class SpeaksAtTheEnd:
    """A listener that comes to its conclusion when the run closes, as a diagnosis does."""

    name = "diagnosis"

    def __init__(self, monitor: torchvitals.Monitor) -> None:
        self._monitor = monitor

    def rows(self, rows: object) -> None:
        pass

    def event(self, event: object) -> None:
        pass

    def tick(self) -> None:
        pass

    def close(self, status: str) -> None:
        one = finding("at_the_end")
        data = {"id": one.name, "state": "opened", "finding": one.to_json()}
        self._monitor._recorder.put(Event(1, time.time(), "finding", "at the end", data))


def test_what_is_found_at_the_very_end_is_told_too(hook: Hook, tmp_path: Path) -> None:
    alerts = Alerts(hook.url, gather_s=0)
    with training(tmp_path / "gpt", alerts, sinks="jsonl") as (monitor, _):
        monitor._recorder.listen(SpeaksAtTheEnd(monitor))
    (taken,) = hook.taken
    assert "at_the_end" in taken["title"]
    assert '"event": "finding"' in (tmp_path / "gpt" / "rows.jsonl").read_text()
    assert len(torchvitals.open_run(tmp_path / "gpt").events("finding")) == 1


class Hangs:
    """A service that takes the connection and says nothing."""

    def __enter__(self) -> str:
        self._server = socket.create_server(("127.0.0.1", 0))
        return f"json://127.0.0.1:{self._server.getsockname()[1]}/?cto=0.5&rto=0.5"

    def __exit__(self, *_error: object) -> None:
        self._server.close()


def test_one_that_hangs_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Hangs() as url, training(tmp_path / "gpt", Alerts(url, gather_s=0)) as (monitor, step):
        found(monitor)
        step()
    assert torchvitals.open_run(tmp_path / "gpt").status == "finished"
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert told
    assert any("sent" in text for text in told)
