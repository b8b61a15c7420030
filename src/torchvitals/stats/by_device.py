"""`ByDevice`: each list of tensors to the backend of the device it is on.

CPU tensors go to the C kernel, those on one GPU to Triton, and what neither can read (several
devices in one list, other accelerators) to torch's operators. Whether Triton serves is asked when
the first tensor on a GPU comes along: a process that never uses its GPU is not made to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.stats.backend import Activity, Backend, Bins, Measured, copy_by_operators
from torchvitals.stats.torch import TorchBackend

_is_cpu = attrgetter("is_cpu")


class ByDevice:
    """Looks where tensors are, and hands them on."""

    def __init__(self, cpu: Backend) -> None:
        self._cpu = cpu
        self._anywhere = TorchBackend()

    @property
    def name(self) -> str:
        """Whose measurements they are: of CPU tensors, and of others where there may be some."""
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return self._cpu.name
        return f"{self._cpu.name}+{self.on_gpu.name}"

    @cached_property
    def on_gpu(self) -> Backend:
        """Who measures tensors on a GPU."""
        from torchvitals.stats.triton.usable import trouble

        if trouble() is not None:
            return self._anywhere
        from torchvitals.stats.triton.backend import TritonBackend

        return TritonBackend()

    def fixed(
        self, tensors: Iterable[Tensor], *, ours: bool = False, layout: Any = None
    ) -> list[Tensor]:
        """The same list, prepared for tensors that are measured again and again."""
        found = list(tensors)
        if all(map(_is_cpu, found)):
            return self._cpu.fixed(found, ours=ours, layout=layout)
        return found

    def layout(self, tensors: Sequence[Tensor]) -> Any:
        """What can be prepared for lists that come anew each time with these shapes."""
        return self._cpu.layout(tensors) if all(map(_is_cpu, tensors)) else None

    def measure(
        self,
        tensors: Sequence[Tensor],
        *,
        bins: Bins | None = None,
        ends: NDArray[np.float32] | None = None,
        activity: Sequence[Activity | None] | None = None,
        layout: Any = None,
        thin: bool = False,
        phase: int | None = None,
    ) -> Measured:
        """Sums of each tensor; `bins` are added to."""
        chosen = self._of(tensors)
        if chosen is not self._cpu:
            layout = None
        self._settle(tensors, bins)
        return chosen.measure(
            tensors, bins=bins, ends=ends, activity=activity, layout=layout, thin=thin, phase=phase
        )

    def measure_update(
        self,
        new: Sequence[Tensor],
        old: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        *,
        bins: Bins | None = None,
        delta_bins: Bins | None = None,
        roll: bool = False,
        with_grads: bool = False,
        grad_bins: Bins | None = None,
    ) -> Measured:
        """Sums of `new` and of `new − old`. With `roll`, `old` becomes `new`."""
        self._settle(new, bins, delta_bins, grad_bins)
        return self._of([*new, *old, *(grad for grad in grads if grad is not None)]).measure_update(
            new, old, grads, bins=bins, delta_bins=delta_bins, roll=roll,
            with_grads=with_grads, grad_bins=grad_bins,
        )  # fmt: skip

    def copy(self, source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
        """Make `target` what `source` is."""
        if all(map(_is_cpu, source)) and all(map(_is_cpu, target)):
            self._cpu.copy(source, target)
        else:
            copy_by_operators(source, target)

    def _settle(self, tensors: Sequence[Tensor], *several: Bins | None) -> None:
        """Bring histograms to where the tensors are now: a model may move between two steps."""
        arrays = self._cpu.name == "native" and all(map(_is_cpu, tensors))
        for bins in several:
            if bins is None or bins.counts is None or not tensors:
                continue
            if arrays:
                bins.host()
            elif not isinstance(bins.counts, Tensor) or bins.counts.device != tensors[0].device:
                counts = torch.from_numpy(bins.host().astype(np.int64))
                bins.counts = counts.to(tensors[0].device)

    def _of(self, tensors: Sequence[Tensor]) -> Backend:
        if all(map(_is_cpu, tensors)):
            return self._cpu
        first = tensors[0].device
        alone = all(tensor.device == first for tensor in tensors)
        return self.on_gpu if alone and first.type == "cuda" else self._anywhere


def has_accelerator() -> bool:
    """Whether this torch could have tensors elsewhere than on the CPU. Wakes no driver."""
    version: Any = torch.version
    return bool(
        version.cuda
        or getattr(version, "hip", None)
        or getattr(version, "xpu", None)
        or torch.backends.mps.is_built()
        or torch._C._get_privateuse1_backend_name() != "privateuseone"
    )
