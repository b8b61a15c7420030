"""`Stepwise`: what a monitor does around an optimizer's step, called by the optimizer's hooks."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torchvitals.monitor.frames import caller, running
from torchvitals.monitor.handing import Handing
from torchvitals.monitor.untraced import untraced
from torchvitals.probes.clocks import MONITOR, OPTIMIZER, OTHER
from torchvitals.probes.stepping import Roster, Stepping

if TYPE_CHECKING:
    from torchvitals.stats.backend import Backend

log = logging.getLogger("torchvitals")


class Stepwise(Handing):
    """The part of a monitor that measures before and after a step."""

    _active: bool
    _backend: Backend
    _cut: Callable[[int], None]
    _depth: list[int]
    _optimizers: list[Optimizer]
    _outer: list[FrameType | None]
    """The step() each optimizer is in; a step that raised leaves its frame behind."""
    _pid: int
    _riding: bool
    """The gradients of the step under way are measured together with the weights' change."""
    _step_handles: dict[int, list[RemovableHandle]]
    _stepping: list[bool]
    """Whether each optimizer was called since its scaler was."""

    def _finish_step(self) -> None:
        """The step is over: hand on what was measured, and turn to the next one."""
        raise NotImplementedError

    def _pre_hook(self, number: int) -> Callable[..., Any]:
        def before_step(_optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
            self._forget_failed()
            if self._outer[number] is not None:
                # A subclass that calls super().step() comes here twice.
                self._depth[number] += 1
                return None
            self._outer[number], self._depth[number] = caller(), 1
            self._stepping[number] = True
            if self._steps.again(number):
                self._finish_step()
            if not self._active:
                return None
            self._cut(OTHER)
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            if closure is None:
                self._before_step(number, gradients=True)
                return None
            self._before_step(number, gradients=False)
            return self._with_closure(number, closure, args, kwargs)

        return before_step

    def _forget_failed(self) -> None:
        """A step() that raised has left its frame behind: what it looked at is not this step's."""
        for number, frame in enumerate(self._outer):
            if frame is not None and not running(frame):
                self._outer[number] = None
                if self._probes.gradients is not None:
                    self._probes.gradients.forget()

    def _with_closure(
        self, number: int, closure: Callable[[], Any], args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """The arguments with a closure that lets us see the gradients it makes."""

        def seen() -> Any:
            if self._probes.gradients is not None:
                # Of several calls the last one counts; clipping inside it is seen (Lightning).
                self._probes.gradients.forget()
            loss = closure()
            if self._metrics:
                with self._wall.around("metrics"):
                    self._looking.at_gradients()
            step = self._rosters[number].before(self._steps.current)
            self._see_gradients(step)
            self._see_wiring(number, step, again=True)
            return loss

        if len(args) > 1:
            return (args[0], seen, *args[2:]), kwargs
        return args, {**kwargs, "closure": seen}

    def _before_step(self, number: int, *, gradients: bool) -> None:
        begun = time.perf_counter()
        roster = self._rosters[number]
        step = roster.before(self._steps.current)
        updates = self._probes.updates
        if gradients and self._metrics:
            with self._wall.around("metrics"):
                self._looking.at_gradients()
        clips = self.guard is not None and self.guard.clips
        self._riding = gradients and roster.quiet and not clips and self._can_ride(step)
        if gradients and not self._riding:
            self._see_gradients(step)
        if gradients:
            self._see_wiring(number, step)
        if self._probes.scaler is not None:
            self._probes.scaler.steps(self._optimizers[number])
        if updates is not None and self._wall.up("updates"):
            with self._wall.around("updates"):
                updates.before_step(step)
        self._spent += time.perf_counter() - begun
        self._cut(MONITOR)

    def _can_ride(self, step: Stepping) -> bool:
        """Whether the gradients can be measured in one pass with the weights' change."""
        gradients, updates = self._probes.gradients, self._probes.updates
        return (
            gradients is not None
            and updates is not None
            and self._wall.up("gradients")
            and self._wall.up("updates")
            and gradients.rides(step)
            and updates.carries(step)
        )

    def _see_gradients(self, step: Stepping) -> None:
        probe = self._probes.gradients
        if probe is not None and self._wall.up("gradients"):
            with self._wall.around("gradients"):
                probe.before_step(step)

    def _see_wiring(self, number: int, step: Stepping, *, again: bool = False) -> None:
        probe = self._probes.wiring
        if probe is not None and self._wall.up(probe.name):
            with self._wall.around(probe.name):
                if again:
                    probe.forget()
                probe.before_step(number, step)

    def _scaler_begins(self, scaler: GradScaler, number: int) -> None:
        self._stepping[number] = False
        if self._active and self._probes.scaler is not None and self._wall.up("scaler"):
            with self._wall.around("scaler"):
                self._probes.scaler.begins(scaler)

    def _scaler_ends(self, number: int) -> None:
        """A step that the scaler skipped is a step: what follows belongs to the next one."""
        if self._stepping[number] or self._closed:
            return
        if self._steps.again(number):
            self._finish_step()
        if self._active:
            begun = time.perf_counter()
            self._cut(OTHER)
            step = self._rosters[number].before(self._steps.current)
            self._see_gradients(step)
            self._see_wiring(number, step)
            if self._probes.scaler is not None:
                self._probes.scaler.skipped()
            self._spent += time.perf_counter() - begun
            self._cut(MONITOR)
        if self._steps.stepped(number):
            self._finish_step()

    def _post_hook(self, number: int) -> Callable[..., None]:
        def after_step(_optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            self._depth[number] -= 1
            if self._depth[number] > 0:
                return
            self._outer[number] = None
            if self._active:
                self._cut(OPTIMIZER)
                self._after_step(number)
            if self._steps.stepped(number):
                self._finish_step()

        return after_step

    def _after_step(self, number: int) -> None:
        begun = time.perf_counter()
        step = self._rosters[number].after(self._steps.current)
        again = self._steps.monitored(step.number + 1)
        updates, state = self._probes.updates, self._probes.optimizer_state
        if state is not None and self._wall.up("optimizer state"):
            with self._wall.around("optimizer state"):
                state.after_step(number, step)
        if updates is not None and self._wall.up("updates"):
            with self._wall.around("updates"):
                riding = self._probes.gradients if self._riding else None
                updates.after_step(step, again=again, gradients=riding)
        self._spent += time.perf_counter() - begun

    def _before_clip(self, parameters: list[Tensor]) -> list[int] | None:
        probe = self._probes.gradients
        if not self._active or probe is None or not self._wall.up("gradients"):
            return None
        begun = time.perf_counter()
        self._forget_failed()
        lines = None
        with self._wall.around("gradients"):
            lines = probe.before_clip(parameters)
        self._spent += time.perf_counter() - begun
        return lines

    def _after_clip(self, lines: list[int], limit: float, norm: Any) -> None:
        probe = self._probes.gradients
        if probe is not None:
            with self._wall.around("gradients"):
                probe.clipped(lines, limit, norm)

    def _adopt(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """An optimizer made anew for parameters of ours takes the old one's place."""
        if self._closed or any(optimizer is one for one in self._optimizers):
            return
        if os.getpid() != self._pid:
            return
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for number, old in enumerate(self._optimizers):
            mine = {id(p) for group in old.param_groups for p in group["params"]}
            if held & mine:
                self._optimizers[number] = optimizer
                self._rosters[number] = Roster(optimizer, self._backend)
                if self._probes.optimizer_state is not None:
                    self._probes.optimizer_state.adopt(number, optimizer)
                for handle in self._step_handles.pop(number):
                    handle.remove()
                self._hook_before(number, optimizer)
                self._hook_after(number, optimizer)
                text = (
                    f"another {type(optimizer).__name__} steps the parameters of optimizer "
                    f"{number}; it is watched from now on"
                )
                if self.guard is not None:
                    text += ", but the guard does not judge it"
                    log.warning("torchvitals: %s", text)
                self.event("optimizer_replaced", text)
                return

    def _hook_before(self, number: int, optimizer: Optimizer) -> None:
        # A compiled step() must not be traced through us; it calls us between two graphs.
        handle = optimizer.register_step_pre_hook(untraced(self._pre_hook(number)))
        self._step_handles.setdefault(number, []).append(handle)

    def _hook_after(self, number: int, optimizer: Optimizer) -> None:
        handle = optimizer.register_step_post_hook(untraced(self._post_hook(number)))
        self._step_handles.setdefault(number, []).append(handle)


def adopt_for(monitor: weakref.ref[Stepwise], *step: Any) -> None:
    """Torch's hook of all optimizers, that does not keep the monitor alive."""
    found = monitor()
    if found is not None:
        found._adopt(*step)
