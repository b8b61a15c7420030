"""`Prometheus`: an endpoint on this machine that Prometheus scrapes: the newest values."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from torchvitals.record import Key, Row, RunInfo
from torchvitals.sinks.metric_names import PREFIX, family
from torchvitals.sinks.sink import Sink, need

PORT = 9464
LABELS = ("run", "site")


class Prometheus(Sink):
    """``http://127.0.0.1:9464/metrics``: gauges with the labels `run` and `site`.

    It listens on this machine only; `address` names another interface if a scraper elsewhere must
    reach it (then everybody who can reach that port can read the series). Port 0 takes a free one.
    """

    name: ClassVar[str] = "Prometheus"

    def __init__(
        self, port: int = PORT, *, address: str = "127.0.0.1", series: str | None = None
    ) -> None:
        self.port = port
        """The port asked for; once it runs, the one it listens on."""
        self.address = address
        self.series = series
        self._run = ""
        self._step = 0
        self._newest: dict[Key, float] = {}
        self._mutex = threading.Lock()
        self._gauge: Any = None
        self._server: Any = None
        self._thread: Any = None

    def open(self, info: RunInfo, folder: Path) -> None:
        """Begin to listen."""
        client = need("prometheus_client", extra="prometheus")
        self._gauge = need("prometheus_client.core", extra="prometheus").GaugeMetricFamily
        self._run = info.name
        registry = client.CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = client.start_http_server(
                self.port, addr=self.address, registry=registry
            )
        except OSError as error:
            raise OSError(
                f"port {self.port} of {self.address} can't be listened on: {error}; "
                f"Prometheus({self.port + 1}) takes another one, Prometheus(0) a free one"
            ) from None
        self.port = self._server.server_port

    def write(self, row: Row) -> None:
        """One step."""
        with self._mutex:
            self._step = max(self._step, row.step)
            self._newest.update(zip(row.header, row.values.tolist(), strict=True))

    def close(self, status: str) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def describe(self) -> list[Any]:
        """Nothing is known before the first step (prometheus_client asks)."""
        return []

    def collect(self) -> Iterator[Any]:
        """The newest values, for a scrape."""
        with self._mutex:
            step, newest = self._step, dict(self._newest)
        steps = self._gauge(f"{PREFIX}_step", "The newest step.", labels=("run",))
        steps.add_metric((self._run,), step)
        yield steps
        families: dict[str, Any] = {}
        for key, value in newest.items():
            name = family(key)
            if name not in families:
                families[name] = self._gauge(name, f"{key.kind} {key.stat}", labels=LABELS)
            families[name].add_metric((self._run, key.site), value)
        yield from families.values()
