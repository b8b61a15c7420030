"""`OpenTelemetry`: gauges sent over OTLP/HTTP: the newest values, every few seconds."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from torchvitals.record import Row, RunInfo
from torchvitals.sinks.metric_names import PREFIX, family
from torchvitals.sinks.sink import Sink, need

EXTRA = "opentelemetry"
EXPORTER = "opentelemetry.exporter.otlp.proto.http.metric_exporter"


class OpenTelemetry(Sink):
    """To `endpoint`, or to where ``OTEL_EXPORTER_OTLP_ENDPOINT`` and its kin say.

    A gauge a stat (``torchvitals.gradient.norm``) with the attribute `site`; the run's name is the
    resource's ``torchvitals.run``. A provider of our own: what the program itself measures is left
    alone.
    """

    name: ClassVar[str] = "OpenTelemetry"

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        every_s: float = 5.0,
        timeout_s: float = 5.0,
        series: str | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.series = series
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._sent_at = 0.0
        self._exporter: Any = None
        self._reader: Any = None
        self._provider: Any = None
        self._meter: Any = None
        self._gauges: dict[str, Any] = {}
        self._quiet: _Quiet | None = None

    def open(self, info: RunInfo, folder: Path) -> None:
        """Make a provider."""
        exporters = need(EXPORTER, extra=EXTRA)
        metrics = need("opentelemetry.sdk.metrics", extra=EXTRA)
        export = need("opentelemetry.sdk.metrics.export", extra=EXTRA)
        resources = need("opentelemetry.sdk.resources", extra=EXTRA)
        self._exporter = exporters.OTLPMetricExporter(
            endpoint=self.endpoint, timeout=self._timeout_s
        )
        self._success = export.MetricExportResult.SUCCESS
        self._reader = export.InMemoryMetricReader()
        resource = resources.Resource.create({"service.name": PREFIX, "torchvitals.run": info.name})
        self._provider = metrics.MeterProvider(
            metric_readers=[self._reader], resource=resource, shutdown_on_exit=False
        )
        self._meter = self._provider.get_meter(PREFIX)
        # We say once ourselves that it fails; the exporter would say it every few seconds.
        self._quiet = _Quiet(threading.get_ident())
        logging.getLogger(EXPORTER).addFilter(self._quiet)

    def write(self, row: Row) -> None:
        """One step."""
        self._gauge(f"{PREFIX}.step").set(row.step)
        for key, value in zip(row.header, row.values.tolist(), strict=True):
            self._gauge(family(key, ".")).set(value, {"site": key.site})

    def flush(self) -> None:
        """Send, when it is time."""
        if time.monotonic() - self._sent_at >= self._every_s:
            self._send()

    def close(self, status: str) -> None:
        """Send what is left."""
        try:
            self._send()
        finally:
            self._provider.shutdown()
            self._exporter.shutdown()
            if self._quiet is not None:
                logging.getLogger(EXPORTER).removeFilter(self._quiet)

    def _gauge(self, name: str) -> Any:
        if name not in self._gauges:
            self._gauges[name] = self._meter.create_gauge(name)
        return self._gauges[name]

    def _send(self) -> None:
        self._sent_at = time.monotonic()
        found = self._reader.get_metrics_data()
        if found is not None and self._exporter.export(found) is not self._success:
            where = self.endpoint or "the endpoint of OTEL_EXPORTER_OTLP_ENDPOINT"
            raise ConnectionError(f"the collector at {where} did not take the metrics")


class _Quiet(logging.Filter):
    """Drops what one thread says."""

    def __init__(self, thread: int) -> None:
        super().__init__()
        self._thread = thread

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread
