"""A receiver of OTLP over HTTP, which decodes what it is sent."""

import gzip
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from torchvitals.record import ROOT
from torchvitals.sinks import OpenTelemetry

from .training import train


class Receiver(ThreadingHTTPServer):
    """Keeps the requests."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.status = status
        self.taken: list[ExportMetricsServiceRequest] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/metrics"


class Answers(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/metrics"
        self.server.taken.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(ExportMetricsServiceResponse().SerializeToString())

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def gauges(request: ExportMetricsServiceRequest) -> dict[tuple[str, str], float]:
    found = {}
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.gauge.data_points:
                    sites = {a.key: a.value.string_value for a in point.attributes}
                    value = point.as_double or float(point.as_int)
                    found[metric.name, sites.get("site", "")] = value
    return found


def test_gauges_arrive(receiver: Receiver, tmp_path: Path) -> None:
    losses = train(tmp_path / "run", [OpenTelemetry(receiver.url)])
    found = gauges(receiver.taken[-1])
    assert found["torchvitals.scalar", "loss"] == pytest.approx(losses[-1])
    assert found["torchvitals.step", ""] == 6
    assert found["torchvitals.gradient.norm", ROOT] > 0
    assert found["torchvitals.summary.median", "gradient_norm"] > 0
    assert len(found) <= 61
    (resource,) = receiver.taken[-1].resource_metrics
    attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert attributes["torchvitals.run"] == "run"
    assert attributes["service.name"] == "torchvitals"


def test_a_collector_that_refuses_is_told_once(
    receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 400
    train(tmp_path / "run", f"opentelemetry:{receiver.url}")
    assert receiver.taken
    (told,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "rows can't be forwarded to OpenTelemetry" in told
    assert "did not take the metrics" in told
