"""Are copies of a parameter on several ranks still the same? By checksum, a word for each.

Replicas drift apart when one rank skips a step, loads another checkpoint, or computes wrongly. A
checksum is the sum of the parameter's bits, read as integers: any one bit that differs shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchvitals.stats.shards import is_dtensor, local, splits

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Checksums = dict[str, tuple[str, int]]
"""Parameter → (which piece of it, checksum)."""


@dataclass(slots=True)
class Checks:
    """Checksums that may still be on a device."""

    pieces: dict[str, str]
    sums: list[Tensor]

    def read(self) -> Checksums:
        """Waits for the device, once if it is one."""
        if len({one.device for one in self.sums}) == 1:
            values = torch.stack(self.sums).tolist()
        else:
            values = [int(one) for one in self.sums]
        pairs = zip(self.pieces.items(), values, strict=True)
        return {name: (piece, value) for (name, piece), value in pairs}


@dataclass(frozen=True, slots=True)
class Drift:
    """A rank whose copy of some parameters is not the others'."""

    rank: int
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        shown = ", ".join(self.parameters[:3])
        more = len(self.parameters) - 3
        return f"rank {self.rank}: {shown}{f' and {more} more' if more > 0 else ''}"


EVERY = 1000
"""Steps between two comparisons, unless the user says otherwise."""


class Replicas:
    """When to compare the copies of which parameters."""

    def __init__(
        self, parameters: Mapping[str, Tensor], every: int | None, models: Sequence[nn.Module]
    ) -> None:
        self._parameters = dict(parameters)
        if every is None:
            # Ranks may train models of their own: only these are known to be copies.
            copies = any(type(m).__name__ == "DistributedDataParallel" for m in models)
            every = EVERY if copies or any(map(is_dtensor, parameters.values())) else 0
        self._every = every
        self._last = -1

    def due(self, step: int) -> Checks | None:
        """The checksums, at the first step asked for after each `every` steps."""
        if not self._every or step // self._every <= self._last:
            return None
        self._last = step // self._every
        return checks(self._parameters)

    def checksums(self) -> Checksums:
        """The checksums now."""
        return checks(self._parameters).read()


def checks(parameters: Mapping[str, Tensor]) -> Checks:
    """The checksum of what lies here of each parameter. Waits for nothing."""
    with torch.no_grad():
        sums = [_checksum(local(parameter.detach())) for parameter in parameters.values()]
    pieces = {name: piece_of(parameter) for name, parameter in parameters.items()}
    return Checks(pieces, sums)


def drifts(ranks: Sequence[Mapping[str, Sequence[Any]]]) -> list[Drift]:
    """Ranks that hold another value than most ranks with the same piece."""
    found: dict[int, list[str]] = {}
    for name in dict.fromkeys(name for own in ranks for name in own):
        pieces: dict[str, list[tuple[int, int]]] = {}
        for rank, own in enumerate(ranks):
            if name in own:
                piece, value = own[name]
                pieces.setdefault(piece, []).append((rank, value))
        for copies in pieces.values():
            # Equally many on both sides: the lowest rank is right.
            usual = Counter(value for _, value in copies).most_common(1)[0][0]
            for rank, value in copies:
                if value != usual:
                    found.setdefault(rank, []).append(name)
    return [Drift(rank, tuple(names)) for rank, names in sorted(found.items())]


def piece_of(parameter: Tensor) -> str:
    """Which piece of a parameter lies here; the same text on all ranks that hold a copy of it."""
    if not is_dtensor(parameter):
        return ""
    placed: Any = parameter
    coordinate = placed.device_mesh.get_coordinate() or ()
    return ",".join(
        str(place)
        for place, placement in zip(coordinate, placed.placements, strict=False)
        if splits(placement)
    )


def _checksum(tensor: Tensor) -> Tensor:
    dense = tensor.contiguous()
    if not dense.numel():
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    words = dense.reshape(-1).view(_WORDS.get(dense.element_size(), torch.uint8))
    return words.sum(dtype=torch.int64)
