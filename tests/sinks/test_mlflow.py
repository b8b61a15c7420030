"""MLflow, read back with its own client."""

from pathlib import Path

import mlflow
import pytest
from mlflow.tracking import MlflowClient

from torchvitals.sinks import MLflow
from torchvitals.sinks.mlflow import metric_name

from .training import train

# MLflow's own use of sqlalchemy.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=["file", "sqlite"])
def uri(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def test_a_run_of_our_own(uri: str, tmp_path: Path) -> None:
    sink = MLflow(uri)
    losses = train(tmp_path / "run", [sink], config={"lr": 0.01, "data": {"name": "wiki"}})
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("torchvitals")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == sink.run_id
    assert run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.01", "data.name": "wiki"}
    history = client.get_metric_history(sink.run_id, "Loss/train")
    assert [metric.step for metric in history] == [1, 2, 3, 4, 5, 6]
    assert [metric.value for metric in history] == pytest.approx(losses)
    assert {"Gradients/norm_global", "Evaluation/validation/accuracy", "Optimization/lr"} <= set(
        run.data.metrics
    )
    assert len(run.data.metrics) <= 60


def test_into_the_users_run(uri: str, tmp_path: Path) -> None:
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        with mlflow.start_run() as mine:
            train(tmp_path / "run", ["mlflow"])
            mlflow.log_metric("after", 1.0)
            running = MlflowClient(uri).get_run(mine.info.run_id)
            assert running.info.status == "RUNNING"
    finally:
        mlflow.set_tracking_uri(before)
    found = MlflowClient(uri).get_run(mine.info.run_id)
    assert {"Loss/train", "after"} <= set(found.data.metrics)
    assert found.info.status == "FINISHED"
    assert MlflowClient(uri).get_experiment_by_name("torchvitals") is None


def test_a_failed_run_is_marked(uri: str, tmp_path: Path) -> None:
    sink = MLflow(uri)
    with pytest.raises(RuntimeError, match="shape"):
        train(tmp_path / "run", [sink], model=Breaks())
    assert sink.run_id is not None
    assert MlflowClient(uri).get_run(sink.run_id).info.status == "FAILED"


def test_names_are_ones_it_takes() -> None:
    name = metric_name("Gradients/per_layer/[root module]/p95 Δ")
    assert name == "Gradients/per_layer/root module/p95 Δ"
    assert metric_name("activation/fc:out[0]/mean") == "activation/fc_out0/mean"


class Breaks(__import__("torch").nn.Linear):
    """Fails at the third call."""

    def __init__(self) -> None:
        super().__init__(8, 2)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 3:
            raise RuntimeError("a wrong shape")
        return super().forward(x)
