"""`DeviceClock`: what the ring needs of a device that works beside the host: copies and marks.

A mark is put into the device's queue of work and has passed when everything before it is done.
Behind this small interface tests drive a device of their own, whose clock they turn by hand.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """A place in a device's queue of work."""

    def passed(self) -> bool:
        """Whether everything before it is done. Never waits."""

    def wait(self) -> None:
        """Wait until it has passed; never called on the training thread."""


class DeviceClock(Protocol):
    """One kind of device."""

    def awake(self) -> bool:
        """Whether any tensor can be on such a device yet."""

    def owns(self, tensor: Tensor) -> bool:
        """Whether the tensor is on such a device."""

    def buffer(self, num_bytes: int) -> Tensor:
        """Bytes on the host that the device can write to by itself."""

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Have the device copy to the host when it gets there. Never waits."""

    def mark(self, tensor: Tensor) -> Mark:
        """A mark behind the last copy of that tensor."""


class CudaMark:
    """An event in the stream that was current when it was made."""

    def __init__(self, device: torch.device) -> None:
        # Blocking: the thread that waits sleeps, instead of taking a core from the training.
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(device))

    def passed(self) -> bool:
        """Whether everything before it is done."""
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Wait until it has passed. The interpreter's lock is free meanwhile."""
        self._event.synchronize()


class CudaClock:
    """CUDA devices: pinned memory, copies in the training's own stream."""

    def awake(self) -> bool:
        """Whether this process uses its GPU."""
        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def owns(self, tensor: Tensor) -> bool:
        """Whether it is on a GPU."""
        return tensor.is_cuda

    def buffer(self, num_bytes: int) -> Tensor:
        """Pinned memory: copies to any other make the host wait."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Put the copy into the current stream."""
        target.copy_(source, non_blocking=True)

    def mark(self, tensor: Tensor) -> Mark:
        """An event behind it."""
        return CudaMark(tensor.device)


def this_clock() -> DeviceClock | None:
    """The clock of this torch's devices; None where it can have no GPU. Wakes no driver."""
    return CudaClock() if torch.version.cuda or torch.version.hip else None
