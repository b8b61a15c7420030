"""Addresses come from the user's settings, and are written nowhere."""

import copy
import logging
import os
import pickle
import sys
from pathlib import Path

import pytest

import torchvitals
from torchvitals.alerts import Alerts
from torchvitals.alerts.urls import find_urls, redacted
from torchvitals.record import ConfigError

from .receivers import TOKEN, Hook
from .training import found, training


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def leak(where: str, url: str, path: Path) -> None:
    """A run that fails with the address in every place it could come from."""
    alerts = {"argument": Alerts(url, gather_s=0), "level": "warning"}[where]
    config = {"alert_url": url, "all": [url], url: 1}
    with training(path, alerts, config=config, sinks=["jsonl", "tensorboard"]) as (monitor, _):
        found(monitor)
        monitor.alert("mine", f"see {url}")
        raise RuntimeError(f"could not reach {url}")


@pytest.mark.parametrize("where", ["argument", "level"])
@pytest.mark.parametrize("status", [200, 500, None])
def test_no_address_ends_up_anywhere(
    where: str,
    status: int | None,
    hook: Hook,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Sent, refused, and not to be reached; with everything logged that libraries log."""
    url = hook.url if status is not None else f"jsons://me:{TOKEN}@127.0.0.1:9/{TOKEN}"
    hook.status = status or 200
    monkeypatch.setattr(sys, "orig_argv", [*sys.orig_argv, "--alerts", url])
    monkeypatch.setenv("VITALS_ALERT_URLS", url if where == "level" else "")
    caplog.set_level(1)
    with pytest.raises(RuntimeError):
        leak(where, url, tmp_path / "run")
    assert hook.asked or status is None
    stored = files(tmp_path / "run")
    assert len(stored) >= 3
    for name, data in stored.items():
        assert TOKEN.encode() not in data, name
    history = torchvitals.open_run(tmp_path / "run")
    shown = str(history.info.to_json()) + str(history.events())
    assert TOKEN not in shown
    assert "[alert URL]" in shown
    assert history.info.watch["alerts"] == "warning"
    for record in caplog.records:
        assert TOKEN not in record.getMessage(), record.name
        assert TOKEN not in str(record.exc_info)
    printed = capfd.readouterr()
    assert TOKEN not in printed.out + printed.err


def test_logging_of_others_is_left_alone(
    hook: Hook, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with training(tmp_path / "run", Alerts(hook.url, gather_s=0)) as (monitor, _):
        found(monitor)
        hook.until(1)
        logging.getLogger("urllib3.connectionpool").debug("of the user's own")
        logging.getLogger("apprise").info("of the user's own")
    assert [r.getMessage() for r in caplog.records].count("of the user's own") == 2
    assert logging.getLogger("apprise").filters == []


def test_an_alerts_object_shows_and_gives_away_nothing() -> None:
    alerts = Alerts(f"json://{TOKEN}@host")
    assert repr(alerts) == "<torchvitals.Alerts from warning, 1 addresses>"
    assert TOKEN not in str(alerts)
    with pytest.raises(TypeError, match="passwords"):
        pickle.dumps(alerts)
    with pytest.raises(TypeError, match="passwords"):
        copy.deepcopy(alerts)


@pytest.mark.parametrize("given", [f"slack://{TOKEN}", ["json://a", 3], 7])
def test_errors_do_not_show_it(given: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised, training(tmp_path / "run", given):
        pass
    assert TOKEN not in str(raised.value)
    assert "alerts must be a level" in str(raised.value)


def test_where_addresses_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "project" / "src"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert find_urls(None) == ()
    user = Path(os.environ["XDG_CONFIG_HOME"]) / "torchvitals" / "config.toml"
    user.parent.mkdir(parents=True)
    user.write_text('[alerts]\nurls = ["json://user"]\n')
    assert find_urls(None) == ("json://user",)
    (tmp_path / "project" / "pyproject.toml").write_text(
        '[tool.torchvitals.alerts]\nurls = "json://project"\n'
    )
    assert find_urls(None) == ("json://project",)
    monkeypatch.setenv("VITALS_ALERT_URLS", "json://a, slack://b/c,d  mailto://x@y\nxml://z")
    assert find_urls(None) == ("json://a", "slack://b/c,d", "mailto://x@y", "xml://z")
    assert find_urls(["json://mine", "json://mine"]) == ("json://mine",)


def test_a_broken_settings_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f'[tool\nurls = "json://{TOKEN}"')
    assert find_urls(None) == ()
    (record,) = caplog.records
    assert "is not read for alert URLs" in record.getMessage()
    assert TOKEN not in record.getMessage()


def test_nobody_to_tell_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with training(tmp_path / "run", "error") as (monitor, _):
        found(monitor)
        monitor.alert("mine")
    (told,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "nobody to tell: set VITALS_ALERT_URLS" in told


def test_an_address_that_is_none_is_told_by_its_number(
    hook: Hook, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with training(tmp_path / "run", Alerts([f"nonsense://{TOKEN}", hook.url], gather_s=0)) as (
        monitor,
        _,
    ):
        found(monitor)
    assert len(hook.taken) == 1
    (told,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "address 1 of 2 is not understood" in told
    assert TOKEN not in caplog.text


def test_without_the_package_the_pip_line_is_told(
    hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with training(tmp_path / "run", Alerts(hook.url, gather_s=0)) as (monitor, _):
        found(monitor)
    (told,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "pip install 'torchvitals[alerts]'" in told


def test_redacting_reaches_into_lists_and_dicts() -> None:
    value = {"a": ["x json://t y", ("json://t",)], "json://t": 3, "n": None}
    assert redacted(value, ["json://t"]) == {
        "a": ["x [alert URL] y", ("[alert URL]",)],
        "[alert URL]": 3,
        "n": None,
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"level": "loud"}, "level must be one of info, warning, error, got 'loud'"),
        ({"every_s": -1}, "can't be negative"),
        ({"end": "never"}, "end must be 'failed', 'always' or False"),
    ],
)
def test_arguments_are_checked(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Alerts(**options)
