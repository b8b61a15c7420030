"""The endpoint, scraped and parsed by Prometheus' own parser."""

import logging
import socket
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from torchvitals.record import ROOT, Key, Row
from torchvitals.sinks import Prometheus
from torchvitals.sinks.fan import Fan

from .training import info, row, train


def scrape(port: int) -> dict[tuple[str, str], float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, sample.labels.get("site", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels["run"] == "gpt"
    }


def until(condition, timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_the_newest_values_are_served() -> None:
    sink = Prometheus(0)
    fan = Fan([sink], info(), Path())
    until(lambda: sink.port)
    keys = (Key.scalar("loss"), Key("gradient", ROOT, "norm"), Key("speed", "run", "steps_per_s"))
    fan.rows([Row(3, 0.0, keys, np.array([0.5, np.nan, 7.0], dtype=np.float32))])
    fan.rows([row(4, loss=0.25)])
    for _ in range(3):
        fan.rows([row(5, loss=0.25)])
        fan.tick()
    until(lambda: scrape(sink.port).get(("torchvitals_step", "")) == 4)
    found = scrape(sink.port)
    assert found["torchvitals_scalar", "loss"] == 0.25
    assert np.isnan(found["torchvitals_gradient_norm", ROOT])
    assert found["torchvitals_speed_steps_per_s", "run"] == 7.0
    fan.close("finished")
    with pytest.raises(URLError):
        scrape(sink.port)


def test_it_listens_on_this_machine_only() -> None:
    sink = Prometheus(0)
    sink.open(info(), Path())
    try:
        assert sink._server.server_address[0] == "127.0.0.1"
    finally:
        sink.close("finished")


def test_a_port_in_use_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        train(tmp_path / "run", f"prometheus:{port}")
    (told,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert f"port {port} of 127.0.0.1 can't be listened on" in told
    assert "Prometheus(0) a free one" in told
