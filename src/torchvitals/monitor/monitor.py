"""`Monitor`: what `watch()` returns. Ties the optimizer's hooks to the probes and the recorder.

On a step that is not monitored the hooks compare one flag and return. On a monitored one the
probes measure, and the packet goes to the recorder's thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from types import FrameType, TracebackType

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from torchvitals.diagnosis import Diagnostician
from torchvitals.diagnosis.telling import message
from torchvitals.guard import Guard
from torchvitals.monitor.changes import Changes
from torchvitals.monitor.frames import in_a_step
from torchvitals.monitor.gathering import Gathering
from torchvitals.monitor.handing import HISTOGRAMS_S
from torchvitals.monitor.lag import Lag
from torchvitals.monitor.logbook import Logbook
from torchvitals.monitor.looking import Looking
from torchvitals.monitor.pace import Pace
from torchvitals.monitor.plugged import Plugged
from torchvitals.monitor.probe_set import Probes
from torchvitals.monitor.ranks import Ranks
from torchvitals.monitor.recorder import Columns, Recorder
from torchvitals.monitor.replicas import Replicas
from torchvitals.monitor.ring import this_ring
from torchvitals.monitor.steps import Steps
from torchvitals.monitor.stepwise import Stepwise, adopt_for
from torchvitals.monitor.untraced import untraced
from torchvitals.monitor.wall import Wall
from torchvitals.probes.machine import MachineSampler
from torchvitals.probes.stepping import Roster, Stepping
from torchvitals.probes.tree import Tree
from torchvitals.record import ConfigError, Event, Finding, StopTraining, StoreError
from torchvitals.stats.backend import Backend
from torchvitals.stats.clipping import ClipCatcher
from torchvitals.stats.scaler_calls import ScalerCatcher
from torchvitals.store.history import History, open_run
from torchvitals.store.writer import RunWriter

log = logging.getLogger("torchvitals")


class Monitor(Stepwise):
    """Watches a training until it is closed: by `close()`, the end of the `with`, or exit."""

    def __init__(  # noqa: PLR0915  one line for each of its parts
        self,
        *,
        path: Path,
        writer: RunWriter | None,
        optimizers: list[Optimizer],
        backend: Backend,
        steps: Steps,
        num_parameters: int,
        make_probes: Callable[[Callable[[str, Exception], None], Callable[[], None]], Probes],
        models: Sequence[nn.Module],
        parameters: Sequence[Tensor],
        ranks: Ranks,
        clocks: bool,
        machine: bool,
        samples_every: int,
        replicas_every: int | None,
        next_epoch: int,
        names: Mapping[nn.Module, str],
        named_parameters: Mapping[str, Tensor],
        reference: nn.Module | None,
        changes: Changes,
        guard: Guard | None = None,
        make_diagnostician: Callable[[Callable[[Event], None]], Diagnostician] | None = None,
    ) -> None:
        self.path = path
        """The run's folder."""
        self.guard = guard
        """Judges each step before it is made, if one was asked for."""
        self.overhead_s = 0.0
        """Seconds spent in the monitor on the training thread so far."""
        self._optimizers, self._backend, self._changes = optimizers, backend, changes
        self._steps = steps
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._histograms_at = 0.0
        self._last_measured = steps.current
        self._closed = self._stopped = False
        self._spent = 0.0
        self._riding = False
        self._depth = [0] * len(optimizers)
        self._outer: list[FrameType | None] = [None] * len(optimizers)
        self._rosters = [Roster(optimizer, backend) for optimizer in optimizers]
        self._handles: list[RemovableHandle] = []
        self._step_handles: dict[int, list[RemovableHandle]] = {}
        self._adoption: RemovableHandle | None = None
        self._history: History | None = None
        self._wall = Wall(self._note_failure)
        self._stored = writer is not None
        self._recorder = Recorder(writer, self._wall, num_parameters)
        self._diagnostician: Diagnostician | None = None
        if make_diagnostician is not None:
            self._diagnostician = make_diagnostician(self._recorder.put)
            self._recorder.listen(self._diagnostician)
        self._probes = make_probes(self._wall.failed, self.note_not_seen)
        self._ranks = ranks
        self._gathering: Gathering | None = None
        self._lag = Lag(None)
        if ranks.world_size > 1:
            self._gathering = Gathering(ranks, named_parameters.values(), names)
            self._lag = Lag.agreed(ranks, this_ring())
        self._replicas = Replicas(named_parameters, replicas_every, models)
        self._plugged = Plugged({})
        self._looking = Looking(backend, looks=lambda: self._active, on_trouble=self._note_trouble)
        self._metrics = self._looking.metrics
        self._looking.watch(names, named_parameters)
        self.reference_module = reference
        """The model that difference metrics compare with."""
        self._last_metrics: dict[str, float] = {}
        self._columns = Columns()
        if reference is not None:
            self._watch_reference(reference)
        self._logbook = Logbook(
            self._recorder, steps, ranks, samples_every=samples_every, next_epoch=next_epoch
        )
        self._pace: Pace | None = None
        if clocks:
            self._pace = Pace(models, parameters, backend, self._wall, on_flops=self._note_flops)
        self._cut = self._pace.clocks.cut if self._pace is not None else _no_clock
        self._machine: MachineSampler | None = None
        if machine:
            self._machine = MachineSampler(self._sampled, folder=path if self._stored else None)
        self._catcher: ClipCatcher | None = None
        self._scalers: ScalerCatcher | None = None
        self._stepping = [False] * len(optimizers)
        self._active = steps.monitored(steps.current)
        self._attach(models, named_parameters)

    def _watch_reference(self, reference: nn.Module) -> None:
        twin = Tree({"": reference})
        self._looking.watch(
            {site.module: site.name for site in twin.modules},
            {site.name: site.parameter for site in twin.parameters},
            is_reference=True,
        )

    @property
    def step_number(self) -> int:
        """The last finished step."""
        return self._steps.done

    @property
    def last_step_skipped(self) -> bool:
        """Whether the guard, or a GradScaler seen by it, skipped the last step."""
        return self.guard is not None and self.guard.last_step_skipped

    @property
    def closed(self) -> bool:
        """Whether watching has ended."""
        return self._closed

    @property
    def history(self) -> History:
        """What was stored so far, to be read while the run goes on."""
        if not self._ranks.is_writer:
            raise StoreError(
                f"this is rank {self._ranks.rank}; the run is written, and can be read, by rank 0"
            )
        if not self._stored:
            raise StoreError(
                f"this run is not stored: {self.path} could not be written when it began"
            )
        self.flush()
        if self._history is None:
            self._history = open_run(self.path)
        return self._history

    @property
    def findings(self) -> list[Finding]:
        """What the diagnosis beside the training has found so far and is not over, worst first."""
        return self._diagnostician.findings if self._diagnostician is not None else []

    def step(self) -> None:
        """End a step by hand. Only for a model watched without an optimizer."""
        if self._optimizers:
            raise ConfigError(
                "step() is for models watched without an optimizer; here a step ends with "
                "optimizer.step()"
            )
        if self._closed:
            return
        if self._active:
            begun = time.perf_counter()
            gradients = self._probes.gradients
            if gradients is not None and self._wall.up("gradients"):
                parameters = gradients.parameters
                step = Stepping(self._steps.current, parameters, [p.grad for p in parameters])
                with self._wall.around("gradients"):
                    gradients.before_step(step)
                self._see_wiring(0, step)
            self._spent += time.perf_counter() - begun
        self._finish_step()

    def flush(self) -> None:
        """Wait until everything measured so far is in the file."""
        if (
            threading.get_ident() == self._thread and self._gathering is None
        ):  # nobody else may touch what is being counted
            self._hand_over_histograms(time.time())
        self._recorder.flush()

    def close(self, status: str = "finished") -> None:
        """Remove every hook, write what is left, mark the run. Calling it again does nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        self._active = False
        self._logbook.close(failed=status != "finished")
        if self._machine is not None:
            self._machine.close()
        if self._pace is not None:
            self._pace.close()
        self._looking.close()
        with self._wall.around("probes"):
            self._plugged.close()
        for handle in (*self._handles, *chain(*self._step_handles.values())):
            handle.remove()
        if self._adoption is not None and not in_a_step():
            self._adoption.remove()
        self._handles.clear()
        if self._scalers is not None:
            self._scalers.remove()
        if self.guard is not None:
            self.guard.detach()
        self._outer = [None] * len(self._optimizers)
        if self._catcher is not None:
            self._catcher.remove()
        for seer in self._probes.seers:
            seer.close()
        if self._probes.activations is not None:
            self._probes.activations.leave()
        self._close_histograms(status)
        if self._history is not None:
            # A reader holds the log beside the file open; without one a single file is left.
            self._history.close()
        self._closed = True
        self._recorder.close(status)
        self._ranks.close()
        self._close_page()
        _open_monitors.discard(self)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.close()
            return
        self.event("error", f"{type(error).__name__}: {error}")
        self.close("failed")

    def __repr__(self) -> str:
        state = "closed" if self._closed else "watching"
        return f"<torchvitals.Monitor {state} {self.path} at step {self._steps.done}>"

    def _attach(self, models: Sequence[nn.Module], named: Mapping[str, Tensor]) -> None:
        for number, optimizer in enumerate(self._optimizers):
            self._hook_before(number, optimizer)
        if self.guard is not None:
            # Between ours: gradients are measured before it takes them away, updates after it
            # has given them back.
            self.guard.count_steps_by(lambda: self._steps.current)
            self.guard.listen(self._note_guard)
            names = {id(tensor): name for name, tensor in named.items()}
            self.guard.attach(self._optimizers, models, names=names)
        for number, optimizer in enumerate(self._optimizers):
            self._hook_after(number, optimizer)
        if self._optimizers and not in_a_step():
            # A method that is gone with its monitor: torch holds this hook for good.
            adopt = untraced(partial(adopt_for, weakref.ref(self)))
            self._adoption = register_optimizer_step_pre_hook(adopt)
        if self._probes.gradients is not None:
            self._catcher = ClipCatcher(self._before_clip, self._after_clip)
            with self._wall.around("clipping"):
                self._catcher.install()
        if self._optimizers:
            self._scalers = ScalerCatcher(self._optimizers, self._scaler_begins, self._scaler_ends)
            self._scalers.install()
        if self._pace is not None:
            self._pace.open()
        if self._machine is not None:
            self._machine.start()
        self._switch()
        _open_monitors.add(self)

    def _switch(self) -> None:
        """See activations for the length of a monitored step, and only then."""
        if self._pace is not None:
            self._pace.switch(active=self._active)
        if self._metrics:
            self._switch_metrics()
        if self._active and self._probes.activations is not None:
            step = self._steps.current
            self._probes.activations.begin(step, exact=self._steps.exact(step))
        for seer in self._probes.seers:
            if self._active and self._wall.up(seer.name):
                seer.open()
            else:
                seer.close()
        if self._last_measured == self._steps.done or self._logbook.evaluation_due:
            self._look_for_evaluation()

    def _look_for_evaluation(self) -> None:
        inputs = self._probes.inputs
        if inputs is not None and not self._active and self._wall.up(inputs.name):
            inputs.look_once()

    def _metric_added(self) -> None:
        if not self._closed:
            self._switch_metrics()

    def _switch_metrics(self) -> None:
        self._looking.book.step = self._steps.current
        if self._active:
            self._looking.open()
        else:
            self._looking.close()

    def _finish_step(self) -> None:
        step = self._steps.current
        again = self._steps.monitored(step + 1)
        if not self._active and not again and self._gathering is None and self._steps.has_stepped:
            self._pass_step()
            return
        packet = None
        if self._active:
            packet = self._packet(time.perf_counter(), again=again)
        elif self._pace is not None:
            self._pace.end_step(again=again)
        if self._gathering is not None and self._steps.monitored(step):
            # Asked of the step's number alone, so that all ranks come here together.
            packet = self._gather(self._gathering, packet)
        if packet is not None:
            self._recorder.put(packet)
            self._last_measured = packet.step
            with self._wall.around("changes"):
                self._look_for_changes()
            if self._gathering is None and packet.time - self._histograms_at >= HISTOGRAMS_S:
                self._hand_over_histograms(packet.time)
        first = not self._steps.has_stepped
        self._steps.advance()
        if first and self._machine is not None and self._machine.latest:
            self._sampled(self._machine.latest)
        self._logbook.end_step()
        self._active = again and not self._recorder.behind
        self._switch()
        self._end_if_asked()

    def _pass_step(self) -> None:
        """The end of a step that is not measured, with another such one to come: most steps."""
        if self._pace is not None:
            self._pace.end_step(again=False)
        self._steps.advance()
        self._logbook.end_step()
        if self._logbook.evaluation_due:
            self._look_for_evaluation()
        if self._diagnostician is not None:
            self._end_if_asked()

    @property
    def _stop_reason(self) -> Finding | None:
        return self._diagnostician.stop if self._diagnostician is not None else None

    def _end_if_asked(self) -> None:
        """Raise on the training thread what `stop_on` asked for, once."""
        found = self._stop_reason
        # With several ranks all learn of it in the same exchange: none is left waiting.
        asked = found is not None if self._gathering is None else self._gathering.stops
        if asked and not self._stopped:
            self._stopped = True
            text = message(found) if found is not None else "rank 0 ended the training: stop_on"
            raise StopTraining(text, found)

    def _settle(self) -> None:
        self._recorder.flush()

    def _restarted(self) -> None:
        self._last_measured = self._steps.done
        self._active = self._steps.monitored(self._steps.current)
        self._switch()


def _no_clock(_phase: int) -> None:
    """Clocks are off."""


_open_monitors: weakref.WeakSet[Monitor] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close what is still open when the interpreter ends: failed if an exception ended it."""
    # The interpreter leaves the exception it died of here.
    error = getattr(sys, "last_value", None)
    failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
    for monitor in list(_open_monitors):
        monitor.close("failed" if failed else "finished")
