"""`Pace`: the signs that are not tensors: where a step's time goes, throughput, noise scale.

Ties what happens in the loop (a batch arrives, the model is called, backward begins and ends, the
optimizer steps) to the clocks. Between monitored steps only the batches and the step's end are
seen: a call into Python costs ten microseconds when the caches are full of somebody else's data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchvitals.monitor.wall import Wall
from torchvitals.probes.backward import BackwardCatcher
from torchvitals.probes.batch import size_of
from torchvitals.probes.call import CallCatcher
from torchvitals.probes.clocks import (
    BACKWARD,
    FORWARD,
    MONITOR,
    OTHER,
    Clocks,
    cuda_event,
)
from torchvitals.probes.compiled import is_compiled
from torchvitals.probes.flops import FlopCounter
from torchvitals.probes.noise_scale import NoiseScale
from torchvitals.probes.peaks import peak_flops
from torchvitals.probes.probe import Probe
from torchvitals.stats.backend import Backend

NAME = "clocks"
"""What the wall calls all of this."""


class Pace:
    """Owns the clocks and whatever stops them."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        parameters: Sequence[Tensor],
        backend: Backend,
        wall: Wall,
        *,
        on_flops: Callable[[int], None],
    ) -> None:
        device = next((p.device for m in models for p in m.parameters()), torch.device("cpu"))
        self.clocks = Clocks(make_event=cuda_event if device.type == "cuda" else None)
        self._device = device
        self._wall = wall
        self._on_flops = on_flops
        self._noise = NoiseScale(parameters, backend) if parameters else None
        self._backward = BackwardCatcher(partial(self.clocks.cut, FORWARD), self._backward_ends)
        compiled = any(map(is_compiled, models))
        self._call = None if compiled else CallCatcher(models, self._model_called)
        self._flops: FlopCounter | None = FlopCounter(
            models, self._counted, lambda error: wall.failed("flops", error)
        )
        self._active = False
        self._steps = 0
        self._num_backward = 0
        """Backward passes of a monitored step; and of the last such, which it mostly equals."""
        self._usual_backward = 1

    def open(self) -> None:
        """Start."""
        self._backward.install()

    def close(self) -> None:
        """Leave nothing behind."""
        self._backward.remove()
        if self._call is not None:
            self._call.close()
        if self._flops is not None:
            self._flops.close()
            self._flops = None

    def switch(self, *, active: bool) -> None:
        """Whether the step that begins is monitored."""
        self._active = self._backward.on = active
        if self._call is not None:
            if active and self._wall.up(NAME):
                self._call.open()
            else:
                self._call.close()

    def end_step(self, *, again: bool, inside: float | None = None) -> None:
        """The step is over. `inside`: seconds of our own work in a monitored forward pass."""
        clocks = self.clocks
        if inside is not None:
            clocks.move(inside, FORWARD)
            clocks.cut(MONITOR)
            self._usual_backward, self._num_backward = self._num_backward, 0
        else:
            clocks.cut(OTHER)
        clocks.end_step(again=again)
        self._steps += 1
        if self._flops is not None:
            self._count_flops(self._flops)

    def parts(self) -> list[tuple[str, Probe, Any]]:
        """What the step that just ended measured."""
        found: list[tuple[str, Probe, Any]] = [(NAME, self.clocks, self.clocks.take())]
        if self._noise is not None:
            raw = self._noise.take(self._usual_backward, self.clocks.num_samples)
            if raw.first is not None:  # a run that never accumulates has no such columns
                found.append(("noise scale", self._noise, raw))
        return found

    def recent(self) -> dict[str, float]:
        """Seconds of the last step and of its waiting for data."""
        return self.clocks.last()

    def _count_flops(self, counter: FlopCounter) -> None:
        """Count the second step: the first may still build lazy layers."""
        with self._wall.around("flops"):
            if self._steps == 1:
                if not counter.open():
                    self._flops = None
                    return
            elif counter.end_step() is not None:
                self._flops = None
                return
            counter.begin_step()

    def _counted(self, flops: int) -> None:
        self.clocks.flops = float(flops)
        peak = peak_flops(self._device)
        if peak:
            self.clocks.peak_flops = float(peak)
        self._on_flops(flops)

    def _model_called(self, inputs: Any) -> None:
        self.clocks.cut(OTHER)
        if not self.clocks.fed:
            with self._wall.around(NAME):
                self.clocks.saw(*size_of(inputs))

    def _backward_ends(self) -> None:
        self.clocks.cut(BACKWARD)
        self._num_backward += 1
        if not self._active or self._usual_backward < 2:
            return
        # Accumulation: the first micro-batch is looked at, and the next call is waited for.
        if self._num_backward == 1 and self._noise is not None and self._wall.up("noise scale"):
            with self._wall.around("noise scale"):
                self._noise.look()
            self.clocks.cut(MONITOR)
        if self._call is not None and self._num_backward < self._usual_backward:
            self._call.open()
