"""Where rows are forwarded to: the console, files and trackers. No torch."""

from torchvitals.sinks.console import Console
from torchvitals.sinks.csv_file import Csv
from torchvitals.sinks.fan import Fan
from torchvitals.sinks.json_lines import JsonLines
from torchvitals.sinks.mlflow import MLflow
from torchvitals.sinks.opentelemetry import OpenTelemetry
from torchvitals.sinks.prometheus import Prometheus
from torchvitals.sinks.sink import Sink
from torchvitals.sinks.tensorboard import TensorBoard
from torchvitals.sinks.trackio import Trackio
from torchvitals.sinks.wandb import WandB

__all__ = [
    "Console",
    "Csv",
    "Fan",
    "JsonLines",
    "MLflow",
    "OpenTelemetry",
    "Prometheus",
    "Sink",
    "TensorBoard",
    "Trackio",
    "WandB",
]
