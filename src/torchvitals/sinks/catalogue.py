"""`make_sinks`: what ``watch(sinks=…)`` was given becomes sinks.

A name (``"tensorboard"``), a name with its first option (``"tensorboard:logs/a"``), or an object
with `write(row)`. Names that are not ours are looked for among the installed plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchvitals.record import ConfigError
from torchvitals.record.plugins import SINKS, leave_out, plugin, plugin_names
from torchvitals.sinks.choice import pattern
from torchvitals.sinks.console import Console
from torchvitals.sinks.csv_file import Csv
from torchvitals.sinks.json_lines import JsonLines
from torchvitals.sinks.mlflow import MLflow
from torchvitals.sinks.opentelemetry import OpenTelemetry
from torchvitals.sinks.prometheus import Prometheus
from torchvitals.sinks.sink import Sink
from torchvitals.sinks.tensorboard import TensorBoard
from torchvitals.sinks.trackio import Trackio
from torchvitals.sinks.wandb import WandB

KNOWN: dict[str, Callable[..., Sink]] = {
    "console": Console,
    "csv": Csv,
    "jsonl": JsonLines,
    "mlflow": MLflow,
    "opentelemetry": OpenTelemetry,
    "prometheus": Prometheus,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WandB,
}
NUMBERS = frozenset({"console", "prometheus"})
"""Sinks whose first option is a whole number."""

Given = str | Sink | Any


def make_sinks(given: Given | Sequence[Given] | None) -> list[Sink]:
    """The sinks; ConfigError for what is none. Broken plugins are told once and left out."""
    if given is None:
        return []
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    made = [_named(one) if isinstance(one, str) else _object(one) for one in listed]
    found = [sink for sink in made if sink is not None]
    for sink in found:
        pattern(getattr(sink, "series", None))  # a wrong one speaks up now
    return found


def _object(given: Any) -> Sink:
    if isinstance(given, type) or not callable(getattr(given, "write", None)):
        raise ConfigError(
            f"a sink is a name or an object with write(row), got {given!r}; names are "
            f"{', '.join(sorted(KNOWN))}"
        )
    sink: Sink = given
    return sink


def _named(text: str) -> Sink | None:
    name, _, option = text.partition(":")
    if name not in KNOWN:
        return _plugged(name, option)
    if not option:
        return KNOWN[name]()
    if name not in NUMBERS:
        return KNOWN[name](option)
    if not option.isdigit():
        raise ConfigError(f"{name}:… takes a whole number, got {option!r}")
    return KNOWN[name](int(option))


def _plugged(name: str, option: str) -> Sink | None:
    offered = plugin_names(SINKS)
    if name not in offered:
        raise ConfigError(
            f"there is no sink named {name!r}; known are {', '.join(sorted([*KNOWN, *offered]))}"
        )
    found = plugin(SINKS, name)
    if found is None:
        return None
    try:
        return _object(found.thing(*([option] if option else [])))
    except Exception as error:  # somebody else's code
        leave_out(SINKS, name, found.package, f"{type(error).__name__}: {error}")
        return None
