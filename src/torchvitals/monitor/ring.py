"""`Ring`: measurements on their way from a device to the recorder, with nobody waiting.

The training thread packs all device tensors of a step into one, has the device copy it into a slot
of pinned memory, puts a mark behind the copy, and goes on. The recorder waits for the mark, takes
the values out and gives the slot back. A slot is never written to before that: when none is free,
the ring grows, and when it is as large as it may be, tensors stay on the device and the recorder
fetches them itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from torchvitals.monitor import device_clock
from torchvitals.monitor.device_clock import DeviceClock, Mark
from torchvitals.stats.backend import Bins

MAX_SLOTS = 32
MAX_BYTES = 1 << 28
"""Of all slots together: pinned memory is memory that nobody else can have."""
LEAST_BYTES = 1 << 16

T = TypeVar("T")


class Slot:
    """A buffer on the host, and the marks behind what is being copied into it."""

    __slots__ = ("buffer", "marks")

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.marks: list[Mark] = []


class Crossing(Generic[T]):
    """Something handed over whose tensors are still under way."""

    def __init__(self, item: T, slot: Slot, free: deque[Slot], parts: dict[int, Part]) -> None:
        self._item, self._slot, self._free, self._parts = item, slot, free, parts

    @property
    def arrived(self) -> bool:
        """Whether everything is there. Never waits."""
        return all(mark.passed() for mark in self._slot.marks)

    def land(self) -> T:
        """The same item with its tensors on the host; on the recorder's thread, which waits."""
        slot = self._slot
        for mark in slot.marks:
            mark.wait()
        here = {key: part.read(slot.buffer) for key, part in self._parts.items()}
        slot.marks.clear()
        self._free.append(slot)  # everything was copied out of it
        found: T = replaced(self._item, lambda tensor: here.get(id(tensor), tensor))
        return found


class Part:
    """Where a tensor lies in a slot. Keeps it, so that its id stays its own."""

    __slots__ = ("start", "tensor")

    def __init__(self, tensor: Tensor, start: int) -> None:
        self.tensor, self.start = tensor, start

    def read(self, buffer: Tensor) -> Tensor:
        """A copy of its values."""
        kept = self.tensor
        found = buffer[self.start : self.start + kept.numel() * kept.element_size()].clone()
        return found.view(kept.dtype).reshape(kept.shape)


class Ring:
    """Slots that take turns. The training thread sends, the recorder's thread gives them back."""

    def __init__(self, clock: DeviceClock) -> None:
        self._clock = clock
        self._free: deque[Slot] = deque()
        self.num_slots = 0
        self.num_bytes = 0
        """Of all slots."""

    @property
    def awake(self) -> bool:
        """Whether any tensor can be on such a device yet."""
        return self._clock.awake()

    def send(self, item: T) -> T | Crossing[T]:
        """Send the item's device tensors on their way; as it is, if it has none. Never waits."""
        if not self._clock.awake():
            return item
        found: dict[int, Tensor] = {}

        def note(tensor: Tensor) -> Tensor:
            if type(tensor) is Tensor and self._clock.owns(tensor) and not tensor.is_sparse:
                found[id(tensor)] = tensor
            return tensor

        replaced(item, note)
        if not found:
            return item
        # Large elements first: every tensor then begins at a multiple of its element's size.
        order = sorted(found.values(), key=lambda t: (str(t.device), -t.element_size()))
        by_device: dict[torch.device, list[Tensor]] = {}
        for tensor in order:
            by_device.setdefault(tensor.device, []).append(tensor)
        slot = self._slot(sum(map(_room, by_device.values())))
        if slot is None:
            return item
        parts: dict[int, Part] = {}
        start = 0
        with torch.no_grad():
            for tensors in by_device.values():
                packed = torch.cat([_bytes(tensor) for tensor in tensors])
                self._clock.copy(packed, slot.buffer[start : start + len(packed)])
                slot.marks.append(self._clock.mark(packed))
                place = start
                for tensor in tensors:
                    parts[id(tensor)] = Part(tensor, place)
                    place += tensor.numel() * tensor.element_size()
                start += _room(tensors)
        return Crossing(item, slot, self._free, parts)

    def _slot(self, num_bytes: int) -> Slot | None:
        """One that nobody uses and that is large enough; None if there can't be one."""
        size = max(LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
        try:
            slot = self._free.popleft()
        except IndexError:
            slot = None
        has = 0 if slot is None else len(slot.buffer)
        if slot is not None and has >= num_bytes:
            return slot
        if self.num_bytes - has + size > MAX_BYTES or (
            slot is None and self.num_slots >= MAX_SLOTS
        ):
            if slot is not None:
                self._free.append(slot)
            return None
        self.num_bytes += size - has
        if slot is None:
            self.num_slots += 1
            return Slot(self._clock.buffer(size))
        slot.buffer = self._clock.buffer(size)
        return slot


def this_ring() -> Ring | None:
    """A ring for this torch's devices, if it can have any."""
    clock = device_clock.this_clock()
    return None if clock is None else Ring(clock)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _room(tensors: list[Tensor]) -> int:
    """Bytes the tensors of a device take, so that the next device's begin at a multiple of 16."""
    return -(-sum(t.numel() * t.element_size() for t in tensors) // 16) * 16


def replaced(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The value with every tensor inside changed.

    Lists, dicts, dataclasses and bins are changed where they are; tuples, whose identity others go
    by, stay themselves when nothing in them changed.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        made = [replaced(one, change) for one in value]
        return value if all(map(_same, made, value)) else tuple(made)
    if isinstance(value, list):
        if value and not isinstance(value[0], int | str):  # lines and names come by the thousand
            value[:] = [replaced(one, change) for one in value]
    elif isinstance(value, dict):
        for key, one in value.items():
            value[key] = replaced(one, change)
    elif isinstance(value, Bins):
        value.counts = replaced(value.counts, change)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            old = getattr(value, field.name)
            new = replaced(old, change)
            if new is not old:
                setattr(value, field.name, new)
    return value


def _same(a: Any, b: Any) -> bool:
    return a is b
