"""`Talk`: what the user says to a monitor, and asks of it, while the training runs.

The half of `Monitor` that hangs on no hook: numbers, evaluations, samples, epochs, events, the
loader, the reference model. `monitor.py` has the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn
from torch.optim import Optimizer

from torchvitals.alerts.alerts import severity
from torchvitals.diagnosis import Diagnosis, diagnose
from torchvitals.monitor.arguments import whole
from torchvitals.monitor.loader import WatchedLoader, fetched
from torchvitals.monitor.metric_methods import TakesMetrics
from torchvitals.monitor.page import PageProcess, Shown
from torchvitals.monitor.reference import run_quietly
from torchvitals.monitor.scalars import as_number, has_no_value, together
from torchvitals.probes.clocks import Clocks
from torchvitals.record import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from torchvitals.guard import Guard
    from torchvitals.monitor.logbook import Logbook
    from torchvitals.monitor.pace import Pace
    from torchvitals.monitor.probe_set import Probes
    from torchvitals.monitor.steps import Steps
    from torchvitals.rules.thresholds import Thresholds
    from torchvitals.store.history import History

Batch = TypeVar("Batch")


class Talk(TakesMetrics):
    """The user's side of a monitor."""

    reference_module: nn.Module | None
    guard: Guard | None
    _closed: bool
    _stored: bool
    _last_measured: int
    _last_metrics: dict[str, float]
    _logbook: Logbook
    _optimizers: list[Optimizer]
    _pace: Pace | None
    _probes: Probes
    _steps: Steps
    _thresholds: Thresholds | None = None
    _page: PageProcess | None = None
    path: Path

    @property
    def history(self) -> History:
        """What was stored so far."""
        raise NotImplementedError

    def show(self, height: int = 800) -> Shown | None:
        """The page of this run, for the last line of a notebook's cell.

        Starts it when it is not there yet. It ends with the run; `vitals ui` shows finished ones.
        """
        self._open_page()
        url = None if self._page is None else self._page.url
        return None if url is None else Shown(url, height)

    def _open_page(self) -> None:
        if self._page is None and self._stored and not self._closed:
            self._page = PageProcess(self.path)

    def _close_page(self) -> None:
        if self._page is not None:
            self._page.close()

    def log(self, *given: Mapping[str, Any], step: int | None = None, **numbers: Any) -> None:
        """Store numbers of the user's own: ``monitor.log(loss=loss, accuracy=0.9)``.

        Or as one dict: ``monitor.log({"train/loss": loss})``. Python numbers and one-element
        tensors; a tensor on a device is read later, without waiting for it. NaN and Inf are stored
        as what they are. Several values of a name in one step become their mean. `step` overrides
        the step they belong to.
        """
        if self._closed:
            return
        if given:
            numbers = together(given, numbers)
        if step is not None:
            step = whole("step", step, 0)
        if numbers:
            midway = len(self._optimizers) > 1 and any(
                map(self._steps.again, range(len(self._optimizers)))
            )
            self._logbook.log(numbers, step, self._probes, midway=midway)
            loss = numbers.get("loss")
            if self.guard is not None and step is None and not (loss is None or has_no_value(loss)):
                self.guard.tell_loss(as_number("loss", loss), late=True)

    def log_eval(self, split: str = "val", *, count: float | None = None, **numbers: Any) -> None:
        """Store the results of an evaluation: ``monitor.log_eval("val", loss=2.1, accuracy=0.4)``.

        With several processes each calls it with the means over its own shard and `count`, the
        number of samples in it; stored is the exact mean over all of them.
        """
        if not self._closed:
            inputs = self._probes.inputs
            mode = None if inputs is None else inputs.take_mode()
            self._logbook.evaluate(split, numbers, count, mode)

    def log_samples(
        self, losses: Any, category: Any, weight: Any = None, *, split: str = "train"
    ) -> None:
        """Losses of single samples (``reduction="none"``) by category.

        `category` is one label, or one for each sample; `weight` their lengths or numbers of
        labels. Means Σ w·l / Σ w are stored every `samples_every` steps, at the end of an epoch,
        and for other splits than "train" at their `log_eval()`.
        """
        if not self._closed:
            self._logbook.samples(split, losses, category, weight)

    def report_samples(self) -> None:
        """Store the means by category now. With several processes all must call it."""
        if not self._closed:
            self._logbook.report()

    def count(self, *, samples: int = 0, tokens: int = 0) -> None:
        """Say how much is in this step, where it can't be told from the batch."""
        if self._pace is not None and not self._closed:
            self._pace.clocks.given(samples, tokens)

    def data(self, loader: Iterable[Batch], *, epochs: int | None = None) -> WatchedLoader[Batch]:
        """The loader with its waiting on the clock: ``for batch in monitor.data(loader)``.

        Each pass over it is an epoch; `epochs`: how many there will be, for the time left.
        """
        return WatchedLoader(
            loader,
            self._pace.clocks if self._pace is not None else Clocks(),
            begin=lambda: self.epoch(of=epochs),
            end=self._end_epoch,
        )

    def fetch(self, get: Callable[[], Batch]) -> Batch:
        """A batch from `get()`, with the waiting on the clock, where `data()` can't be put.

        ``batch = monitor.fetch(lambda: next(batches))``
        """
        if self._pace is None or self._closed:
            return get()
        return fetched(self._pace.clocks, get)

    def epoch(self, number: int | None = None, *, of: int | None = None) -> None:
        """An epoch begins (and the last one ends: means of what was logged in it are stored)."""
        if not self._closed:
            self._logbook.epoch(number, of)
            if self._probes.inputs is not None:
                self._probes.inputs.begin_epoch()
            self._look_for_evaluation()

    def run_reference(self, *args: Any, **kwargs: Any) -> Any:
        """Call the reference model on these inputs, moved to its device and dtype, in eval mode."""
        if self.reference_module is None:
            raise ConfigError(
                'Set the reference module first: watch(…, reference="init") keeps a copy of the '
                "model as it is now"
            )
        return run_quietly(self.reference_module, args, kwargs)

    def get_step_metrics(self) -> dict[str, float]:
        """Metrics of your own and the summary of the last monitored step, flat: for `wandb.log`.

        Every other column is in `monitor.history`.
        """
        row = self.history.row(self._last_measured) if self._stored else {}
        summary = {str(key): value for key, value in row.items() if key.kind == "summary"}
        return {**summary, **self._last_metrics}

    def diagnose(self, *, at: int | None = None) -> Diagnosis:
        """All rules over what was stored so far; with `at`, as it looked after that step."""
        return diagnose(self.history, thresholds=self._thresholds, at=at)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs for a resumed run to be the one that was never interrupted.

        Tensors, numbers and texts: for `torch.save` and for torch.distributed.checkpoint alike.
        Findings and series are in the run's file and need not be kept here.
        """
        self._settle()
        probes = {
            name: probe.state_dict()
            for name, probe in self._probes.in_order
            if hasattr(probe, "state_dict")
        }
        state: dict[str, Any] = {"version": 1, "step": self._steps.done, "probes": probes}
        if self.guard is not None:
            state["guard"] = self.guard.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; before the first step of this process.

        Use it with ``watch(…, resume=True)`` on the run the checkpoint is of: steps that the run
        has beyond the checkpoint are made again and replace the old ones.
        """
        if not isinstance(state, Mapping) or state.get("version") != 1:
            raise ConfigError(
                "this is no state of a monitor: give what monitor.state_dict() returned"
            )
        if self._steps.has_stepped:
            raise ConfigError(
                "load_state_dict() must come before the first step; this monitor has made "
                f"{self._steps.done} already"
            )
        self._steps.resume(int(state["step"]))
        for name, probe in self._probes.in_order:
            if hasattr(probe, "load_state_dict") and name in state["probes"]:
                probe.load_state_dict(state["probes"][name])
        if self.guard is not None and "guard" in state:
            self.guard.load_state_dict(state["guard"])
        self._restarted()

    def _settle(self) -> None:
        """Wait until what was measured is counted."""
        raise NotImplementedError

    def _restarted(self) -> None:
        """The step under way is another one."""
        raise NotImplementedError

    def _end_epoch(self) -> None:
        if not self._closed:
            self._logbook.end_epoch()
            self._look_for_evaluation()

    def _look_for_evaluation(self) -> None:
        """An evaluation may come now: see in which mode the model is then."""
        raise NotImplementedError

    def alert(self, title: str, text: str = "", level: str = "info") -> None:
        """Tell those whom `watch(alerts=…)` names, whatever its level; also an event of the run.

        `level` is "info", "warning" or "error". With several processes only rank 0 tells.
        """
        chosen = severity(level)
        if not self._closed:
            whole = f"{title}: {text}" if text else title
            self._logbook.event(
                "alert", whole, {"title": title, "text": text, "level": chosen.value}
            )

    def event(self, kind: str, text: str, **data: Any) -> None:
        """Note something that happened now: a checkpoint, a changed setting."""
        if not self._closed:
            self._logbook.event(kind, text, data)
