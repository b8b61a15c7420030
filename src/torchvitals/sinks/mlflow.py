"""`MLflow`: metrics of a run on a tracking server, in a file store or a database."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, ClassVar

from torchvitals.record import Row, RunInfo
from torchvitals.sinks.layout import shown, tag
from torchvitals.sinks.sink import Sink, need

MOST = 1000
"""Metrics a request may carry."""
MOST_PARAMS = 100
PARAM_CHARACTERS = 500
_NOT_A_NAME = re.compile(r"[^\w.\-/ ]+")


class MLflow(Sink):
    """Into the run that ``mlflow.start_run()`` began before `watch()`, or into one of our own.

    `uri` is the tracking URI (``sqlite:///mlflow.db``, ``http://…``); by default MLflow's own.
    """

    name: ClassVar[str] = "MLflow"
    patience_s: ClassVar[float] = 20.0

    def __init__(
        self,
        uri: str | None = None,
        *,
        experiment: str = "torchvitals",
        series: str | None = None,
    ) -> None:
        self.uri = uri
        self.series = series
        self.run_id: str | None = None
        """The run that is written to."""
        self._experiment = experiment
        self._entities: Any = None
        self._client: Any = None
        self._guest = False

    def notice(self) -> None:
        """Take the user's run, if there is one; MLflow knows it on this thread only."""
        mlflow: Any = sys.modules.get("mlflow")
        active = mlflow.active_run() if mlflow is not None and self.uri is None else None
        if active is not None:
            self.run_id, self._guest = active.info.run_id, True
            self.uri = mlflow.get_tracking_uri()

    def open(self, info: RunInfo, folder: Path) -> None:
        """Begin a run, unless there is one."""
        self._entities = need("mlflow.entities", extra="mlflow")
        self._client = need("mlflow.tracking", extra="mlflow").MlflowClient(tracking_uri=self.uri)
        if self.run_id is None:
            known = self._client.get_experiment_by_name(self._experiment)
            number = (
                known.experiment_id
                if known is not None
                else self._client.create_experiment(self._experiment)
            )
            run = self._client.create_run(number, run_name=info.name)
            self.run_id = run.info.run_id
            params = list(_flat(info.config))[:MOST_PARAMS]
            self._client.log_batch(
                self.run_id,
                params=[self._entities.Param(name, text) for name, text in params],
            )

    def write(self, row: Row) -> None:
        """One step, one request."""
        when = int(row.time * 1000)
        metrics = [
            self._entities.Metric(metric_name(tag(key)), shown(key, value), when, row.step)
            for key, value in zip(row.header, row.values.tolist(), strict=True)
        ]
        for at in range(0, len(metrics), MOST):
            self._client.log_batch(self.run_id, metrics=metrics[at : at + MOST])

    def close(self, status: str) -> None:
        """End the run, if it is ours."""
        if not self._guest:
            ended = "FINISHED" if status == "finished" else "FAILED"
            self._client.set_terminated(self.run_id, ended)


def metric_name(name: str) -> str:
    """A name MLflow takes: ``[root module]`` becomes ``root module``."""
    return _NOT_A_NAME.sub("_", name.replace("[", "").replace("]", ""))[:250]


def _flat(config: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for name, value in config.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append((metric_name(f"{prefix}{name}"), str(value)[:PARAM_CHARACTERS]))
    return found
