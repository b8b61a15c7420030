"""A folder with runs, and a client of its server in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.dashboard.asking import TOKEN, Api
from tests.views.paced_runs import make_paced
from torchvitals.dashboard.app import create_app


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to be copied."""
    path = tmp_path_factory.mktemp("made") / "gpt"
    make_paced(path, num_steps=120, total_steps=200)
    return path


@pytest.fixture
def folder(tmp_path: Path, made: Path) -> Path:
    """``runs`` with one run, `gpt`."""
    shutil.copytree(made, tmp_path / "runs" / "gpt")
    return tmp_path / "runs"


@pytest.fixture
def serving() -> Iterator[Callable[..., TestClient]]:
    """`serving(folder, prefix=…)`: a client without a token."""
    opened: list[TestClient] = []

    def open_client(folder: Path, **settings: object) -> TestClient:
        app = create_app(folder, token=TOKEN, **settings)  # type: ignore[arg-type]
        client = TestClient(app, base_url="http://localhost:8765", follow_redirects=False)
        client.__enter__()
        opened.append(client)
        return client

    yield open_client
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture
def api(serving: Callable[..., TestClient], folder: Path) -> Api:
    """The API of `folder`, with the token."""
    return Api(serving(folder))
