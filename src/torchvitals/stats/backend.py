"""The interface of the backends, and which one serves.

A backend measures a list of tensors at once. What it returns may still be on the device;
`Measured.host()` brings it over and is called off the training thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.record import ConfigError, Counts

SAMPLE_STRIDE = 7
"""Histogram sample: one group of 32 neighbours in 7, a little more than an eighth."""

PART_STRIDE = 17
"""Where only a part of a tensor is read: one group of 32 neighbours, two cache lines, in 17."""

PART_FROM = 1 << 16
"""Tensors of at least this many elements are read in part: of less a part would tell too little."""

SMALL = 4096
"""Tensors up to this many elements always get their full histogram."""


@dataclass(slots=True)
class Measured:
    """The sums of a list of tensors, one line each. Arrays, or tensors not yet on the host."""

    sums: Any
    """(n, 9), see `stats.sums`."""
    delta_sums: Any = None
    """The sums of new − old."""
    dots: Any = None
    """(n, 3): Σ Δ·g, Σ Δ², Σ g² over the blocks looked at for the cosine of Δ and g."""
    grad_sums: Any = None
    """The sums of the gradients, where they were asked for."""
    outside: Any = None
    """(n,) elements at or beyond the given ends."""
    finite: bool | None = None
    """Whether all values are; None where that is not known at once."""

    def host(self) -> Measured:
        """The same with numpy arrays. Waits for the device: never call it while training waits."""
        if isinstance(self.sums, Tensor):
            for name in self.__slots__:
                value = getattr(self, name)
                if isinstance(value, Tensor):
                    setattr(self, name, value.cpu().numpy().astype(np.float64))
        return self


class Bins:
    """Histograms of a list of tensors, added up over all calls they are handed to."""

    __slots__ = ("counts", "place", "placed", "stride")

    def __init__(self, stride: int) -> None:
        self.stride = stride
        """One group of 32 neighbours in `stride` is counted; 1 takes every element."""
        self.counts: Any = None
        """(n, NUM_BINS), made by the first call."""
        self.place = 0
        """Where `placed` is, for the C kernel."""
        self.placed: Any = None

    def host(self) -> Counts:
        """The counts as a numpy array. Waits for the device."""
        if isinstance(self.counts, Tensor):
            self.counts = self.counts.cpu().numpy().astype(np.uint32)
        found: Counts = self.counts
        return found


@dataclass(slots=True)
class Activity:
    """Counters of how often each unit of a layer was active, in a sample of its rows.

    The tensor is outer × `units` × `inner`; of its outer · inner rows one in `step` is looked at.
    """

    units: int
    inner: int
    step: int
    floor: float
    """A unit is active where |x| > floor."""
    counts: Tensor
    """int32 of length `units`, on the tensor's device."""
    line: int = 0
    """Whose counters they are; for the caller's own use."""
    rows: int = 0
    """How many rows are looked at."""
    totals: Tensor | None = None
    """float32 of length `units`, beside `counts`: Σ |x| of each unit; None where nobody asks."""

    @property
    def totals_address(self) -> int:
        """Where the totals are; 0: nowhere."""
        return 0 if self.totals is None else self.totals.data_ptr()


class Backend(Protocol):
    """Measures lists of tensors; all of one call live on devices this backend can read."""

    @property
    def name(self) -> str:
        """Which one it is."""

    def fixed(
        self, tensors: Iterable[Tensor], *, ours: bool = False, layout: Any = None
    ) -> list[Tensor]:
        """The same list, prepared for tensors that are measured again and again.

        `ours`: buffers of the monitor's own, which never move. `layout`: what `layout()` made of
        a list of the same shapes.
        """

    def layout(self, tensors: Sequence[Tensor]) -> Any:
        """What can be prepared for lists that come anew each time with these shapes.

        None, or something with `fits(tensors)`: whether a list that is measured next has them.
        """

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
        """Sums of each tensor; `bins` are added to.

        `phase`: of tensors of `PART_FROM` elements and more only a part is read: one group of 32
        neighbours in `PART_STRIDE`, from this one on. There are no histograms of parts.
        `thin`: only counts, the sum and the sum of squares are asked for; where that is cheaper,
        minima, maxima and zeros are not looked at.
        `layout`: what `layout()` made of a list of the same shapes. `ends`: (low, high) of each
        tensor, to count what lies at or beyond them; (−inf, inf) for tensors without ends.
        `activity`: counters of active units to add to.
        """

    def copy(self, source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
        """Make `target` what `source` is."""

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
        """Sums of `new` and of `new − old` in one pass. With `roll`, `old` becomes `new`.

        `with_grads` gives the sums of the gradients that are there too, from the same pass where
        it can be; `grad_bins` are added to.
        """


def copy_by_operators(source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
    """Copy a list of tensors with torch's operators, whatever they are."""
    with torch.no_grad():
        torch._foreach_copy_(list(target), [tensor.detach() for tensor in source])


def choose_backend(name: str = "auto") -> Backend:
    """The backend of that name; "auto" takes the best there is for each list of tensors.

    That is the C kernel for CPU tensors where it was built, Triton for those on a GPU where it
    runs, and torch's operators otherwise. The variable TORCHVITALS_BACKEND overrides "auto".
    """
    if name == "auto":
        name = os.environ.get("TORCHVITALS_BACKEND", "auto")
    if name not in {"auto", *MAKERS}:
        raise ConfigError(f"backend must be 'auto', 'native', 'triton' or 'torch', got {name!r}")
    if name != "auto":
        return MAKERS[name]()
    from torchvitals.stats.by_device import ByDevice, has_accelerator
    from torchvitals.stats.native.library import kernel

    on_cpu = _torch() if kernel() is None else _native()
    return ByDevice(on_cpu) if has_accelerator() else on_cpu


def _torch() -> Backend:
    from torchvitals.stats.torch import TorchBackend

    return TorchBackend()


def _native() -> Backend:
    from torchvitals.stats.native.backend import NativeBackend
    from torchvitals.stats.native.library import kernel

    if kernel() is None:
        raise ConfigError(
            "backend='native' was asked for, but this installation has no C kernel (no "
            "compiler was found when it was built). Install a C compiler and run "
            "'pip install --force-reinstall --no-deps torchvitals', or use backend='torch'."
        )
    return NativeBackend()


def _triton() -> Backend:
    try:
        from torchvitals.stats.triton.backend import TritonBackend
    except ImportError as error:
        raise ConfigError(
            f"backend='triton' was asked for, but triton can't be imported ({error}). "
            "Run 'pip install triton', or use backend='auto'."
        ) from error
    return TritonBackend()


MAKERS = {"native": _native, "triton": _triton, "torch": _torch}
