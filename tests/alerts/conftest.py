"""Receivers that are there for a test."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from .receivers import Hook, Mailbox

with warnings.catch_warnings():
    # A library of apprise's own imports imghdr, which is deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import apprise

    apprise.Apprise().add("json://localhost")


@pytest.fixture(autouse=True)
def _nobodys_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VITALS_ALERT_URLS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    yield server
    server.close()


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    server = Mailbox()
    server.open()
    yield server
    server.close()
