"""What `watch(sinks=…)` takes."""

from pathlib import Path

import pytest

from torchvitals.record import ConfigError
from torchvitals.sinks import Console, JsonLines, MLflow, Prometheus, TensorBoard
from torchvitals.sinks.catalogue import KNOWN, make_sinks

from .training import train


def test_names_names_with_options_and_objects() -> None:
    given = ["tensorboard", "tensorboard:logs/a:b", "mlflow:sqlite:///x.db", JsonLines("x.jsonl")]
    board, other, tracked, lines = make_sinks(given)
    assert isinstance(board, TensorBoard)
    assert board.folder is None
    assert isinstance(other, TensorBoard)
    assert other.folder == Path("logs/a:b")
    assert isinstance(tracked, MLflow)
    assert tracked.uri == "sqlite:///x.db"
    assert lines is given[3]
    (console,) = make_sinks("console:50")
    assert isinstance(console, Console)
    (prometheus,) = make_sinks(["prometheus:9999"])
    assert isinstance(prometheus, Prometheus)
    assert prometheus.port == 9999
    assert make_sinks(None) == []


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_name_makes_a_sink_without_its_package(name: str) -> None:
    (sink,) = make_sinks(name)
    assert isinstance(sink.name, str)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("tensorbord", "there is no sink named 'tensorbord'; known are console, csv, jsonl"),
        ("console:often", "console:… takes a whole number, got 'often'"),
        (3, "an object with write\\(row\\), got 3"),
        (TensorBoard, "an object with write"),
        ("console:0", "every must be at least 1"),
    ],
)
def test_what_is_no_sink_is_refused_before_anything_is_made(
    given: object, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        train(tmp_path / "run", given)
    assert not (tmp_path / "run").exists()
