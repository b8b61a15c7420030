"""The methods that take metrics of the user's own: the same on `Monitor` and `ModuleMonitor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchvitals.monitor import metrics as m
from torchvitals.probes import activations
from torchvitals.record import ROOT, ConfigError
from torchvitals.stats import named

if TYPE_CHECKING:
    from torchvitals.monitor.probe_set import Probes


class TakesMetrics:
    """Adds `add_…_metric` to a class that has `_metrics`."""

    _metrics: m.Metrics
    _probes: Probes | None = None
    """What measures by itself, under the same keys as metrics; None where nothing does."""

    def _metric_added(self) -> None:
        """Another metric is there."""

    def _add(
        self, kind: str, name: str, function: m.Function, regex: str, aggregation: m.Function | None
    ) -> None:
        if self._probes is not None and callable(function):
            own = aggregation is not None or not named.is_statistic(function, name)
            if own and name in columns_of(self._probes, kind):
                what = kind.replace("_", " ").capitalize()
                raise ConfigError(
                    f"{what} metric {name}: watch() measures a {name} of its own and stores it "
                    "under that name; give this one another name"
                )
        self._metrics.add(kind, name, function, regex, aggregation)
        self._metric_added()

    def add_activation_metric(
        self,
        metric_name: str,
        metric_fn: m.Function,
        metric_regex: str = ".*",
        metric_aggregation_fn: m.Function | None = None,
    ) -> None:
        """A function of what modules put out: ``add_activation_metric("rms", stats.rms)``.

        It returns a tensor of any shape, or a number. Values of several calls and micro-batches are
        averaged over their elements, or joined and given to `metric_aggregation_fn`, which returns
        a number, or a dict of them by the suffixes of their names.
        """
        self._add(m.ACTIVATION, metric_name, metric_fn, metric_regex, metric_aggregation_fn)

    def add_activation_difference_metric(
        self,
        metric_name: str,
        metric_fn: m.Function,
        metric_regex: str = ".*",
        metric_aggregation_fn: m.Function | None = None,
    ) -> None:
        """A function of a module's output and that of the same module of the reference."""
        self._add(
            m.ACTIVATION_DIFFERENCE, metric_name, metric_fn, metric_regex, metric_aggregation_fn
        )

    def add_parameter_metric(
        self, metric_name: str, metric_fn: m.Function, metric_regex: str = ".*"
    ) -> None:
        """A function of a parameter."""
        self._add(m.PARAMETER, metric_name, metric_fn, metric_regex, None)

    def add_parameter_difference_metric(
        self, metric_name: str, metric_fn: m.Function, metric_regex: str = ".*"
    ) -> None:
        """A function of a parameter and that of the reference."""
        self._add(m.PARAMETER_DIFFERENCE, metric_name, metric_fn, metric_regex, None)

    def add_gradient_metric(
        self, metric_name: str, metric_fn: m.Function, metric_regex: str = ".*"
    ) -> None:
        """A function of a gradient."""
        self._add(m.GRADIENT, metric_name, metric_fn, metric_regex, None)


def columns_of(probes: Probes, kind: str) -> set[str]:
    """What the probes call the columns of that kind, at modules and parameters."""
    keys = (key for _, probe in probes.in_order for key in probe.header)
    found = {key.stat for key in keys if key.kind == kind and key.site != ROOT}
    if kind == m.ACTIVATION and probes.activations is not None:
        found |= {*activations.COLUMNS}  # which sites there are is known once they were called
    return found
