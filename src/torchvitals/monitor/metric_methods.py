"""The methods that take metrics of the user's own: the same on `Monitor` and `ModuleMonitor`."""

from __future__ import annotations

from torchvitals.monitor import metrics as m


class TakesMetrics:
    """Adds `add_…_metric` to a class that has `_metrics`."""

    _metrics: m.Metrics

    def _metric_added(self) -> None:
        """Another metric is there."""

    def _add(
        self, kind: str, name: str, function: m.Function, regex: str, aggregation: m.Function | None
    ) -> None:
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
