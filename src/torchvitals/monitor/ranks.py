"""Several processes: the one place that talks to torch.distributed about the monitor's numbers.

`Ranks.join()` makes a gloo group of our own over all ranks, whatever the training's backend is:
numbers travel between CPUs, nothing waits for a device, and the training's own collectives are not
touched. Sums are exchanged as bytes and added in the order of the ranks, so that a result does not
depend on who arrives first.

`join()`, `sum_labelled()`, `sum_scalars()`, `gather()` and `gather_step()` are collectives. All
ranks must call them in the same order, from the training thread, at a point every rank reaches:
when watching begins, at the end of the same step, after the same evaluation. The recorder's thread
must not call them: nothing makes it come to the same point on two ranks at once.

A rank that is gone ends this, not the training: what this rank holds is returned with
`complete=False`, told once, and no other rank is asked again. A killed process is noticed at once,
a silent one after `timeout_s`.

Cost with four ranks on two cores: 10 ms for `sum_scalars()` and `gather()`, most of it waiting for
the others to come; `sum_labelled()` 30 ms for 10,000 categories on each rank, 0.3 s for 100,000.
One process pays nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import distributed as dist

from torchvitals.monitor.categories import FIELDS, CategorySums
from torchvitals.record import ConfigError

log = logging.getLogger("torchvitals")

TIMEOUT_S = 30.0
WRITER = 0
"""The rank that writes the run."""
LABELLED, SCALARS, VALUES, STEP = 1, 2, 3, 4
"""What an exchange is about: ranks that meet in different ones must not read each other's bytes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gathered(Generic[T]):
    """What the ranks have together, or, when not `complete`, what this one has."""

    value: T
    complete: bool


class Total(NamedTuple):
    """A sum and the number (or weight) of what was summed, e.g. losses of an evaluation."""

    sum: float
    num: float

    @property
    def mean(self) -> float:
        """The mean; NaN of nothing at all."""
        return self.sum / self.num if self.num else float("nan")


class Ranks:
    """The processes of this training. `Ranks()` is a training of one process."""

    def __init__(self, *, rank: int = 0, world_size: int = 1, group: Any = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self._group = group
        self._lost = world_size > 1 and group is None
        self._flags = 0

    @classmethod
    def join(cls, *, timeout_s: float = TIMEOUT_S) -> Ranks:
        """Meet the other ranks, if torch.distributed is initialised. A collective, called once."""
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s must be positive, got {timeout_s}; the default is 30")
        if not _initialised():
            return cls()
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if world_size == 1:
            return cls()
        group = None
        try:
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        except (RuntimeError, ValueError) as error:
            _warn("the ranks could not meet", error)
        return cls(rank=rank, world_size=world_size, group=group)

    @property
    def is_writer(self) -> bool:
        """True on the one rank that writes the run."""
        return self.rank == WRITER

    @property
    def complete(self) -> bool:
        """True as long as no rank was lost."""
        return not self._lost

    def sum_labelled(self, sums: CategorySums) -> Gathered[CategorySums] | None:
        """Sums by category over all ranks, on the writer; None on the others.

        Ranks may hold different labels, or none. Only the writer receives what the others hold.
        """
        if self.world_size == 1:
            return Gathered(sums, complete=True)
        table = np.ascontiguousarray(sums.values, dtype=np.float64)
        payload = packed(list(sums.labels), table.tobytes())
        received = self._exchange(LABELLED, payload, everywhere=False)
        if not self.is_writer:
            return None
        if received is None:
            return Gathered(sums, complete=False)
        return Gathered(CategorySums.merged(map(_labelled, received)), complete=True)

    def sum_scalars(self, totals: Mapping[str, tuple[float, float]]) -> Gathered[dict[str, Total]]:
        """Sums and their numbers over all ranks, on every rank: the exact mean of uneven shards.

            mean = Σ_r sum_r / Σ_r num_r        not the mean of the ranks' means

        A name that is missing on a rank adds nothing there.
        """
        own = {name: Total(float(total), float(num)) for name, (total, num) in totals.items()}
        received = self._exchange(SCALARS, packed(own), everywhere=True)
        if received is None:
            return Gathered(own, complete=False)
        merged: dict[str, Total] = {}
        for payload in received:
            for name, (total, num) in unpacked(payload)[0].items():
                before = merged.get(name, Total(0.0, 0.0))
                merged[name] = Total(before.sum + total, before.num + num)
        return Gathered(merged, complete=True)

    def gather(self, values: Mapping[str, T]) -> Gathered[list[dict[str, T]]]:
        """Each rank's values (plain JSON), on every rank, in the order of the ranks.

        When not complete the list holds this rank's alone.
        """
        received = self._exchange(VALUES, packed(dict(values)), everywhere=True)
        if received is None:
            return Gathered([dict(values)], complete=False)
        return Gathered([unpacked(payload)[0] for payload in received], complete=True)

    def gather_step(self, payload: bytes, *, flags: int = 0) -> tuple[list[bytes] | None, int]:
        """Bring what each rank measured in a step to the writer, in the order of the ranks.

        Also gives every rank the writer's `flags`. None: a rank is lost; the others than the writer
        get an empty list.
        """
        received = self._exchange(STEP, payload, everywhere=False, flags=flags)
        return received, self._flags

    def close(self) -> None:
        """Leave the group. Not a collective. Afterwards only this rank's numbers are returned."""
        group, self._group = self._group, None
        if group is None:
            return
        self._lost = True
        if _initialised():
            try:
                # Closes the connections, so that the others learn of it without waiting.
                dist.destroy_process_group(group)
            except (RuntimeError, ValueError, AssertionError, KeyError) as error:
                log.debug("torchvitals: leaving the group of ranks: %s", error)

    def _exchange(
        self, topic: int, payload: bytes, *, everywhere: bool, flags: int = 0
    ) -> list[bytes] | None:
        """Every rank's payload in their order; None when a rank is lost.

        Only the writer gets what it asked for unless it is wanted `everywhere`.
        """
        if self.world_size == 1:
            return [payload]
        if self._lost:
            return None
        try:
            return self._swap(topic, payload, everywhere=everywhere, flags=flags)
        except (RuntimeError, ValueError) as error:
            self.close()
            _warn("the ranks can exchange no more numbers", error)
            return None

    def _swap(self, topic: int, payload: bytes, *, everywhere: bool, flags: int) -> list[bytes]:
        if not _initialised():
            raise RuntimeError(
                "torch.distributed was shut down before the monitor; close the monitor first"
            )
        # The sizes go to everybody: so all ranks, not the writer alone, see that one is missing.
        sizes = [torch.zeros(3, dtype=torch.int64) for _ in range(self.world_size)]
        own_size = torch.tensor([topic, len(payload), flags])
        dist.all_gather(sizes, own_size, group=self._group)
        self._flags = int(sizes[WRITER][2])
        if any(int(size[0]) != topic for size in sizes):
            raise RuntimeError(
                "ranks exchange different things at the same time; report at points that every "
                "rank reaches, in the same order"
            )
        lengths = [int(size[1]) for size in sizes]
        own = torch.zeros(max(lengths), dtype=torch.uint8)
        own[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        boxes = [torch.empty_like(own) for _ in lengths] if everywhere or self.is_writer else None
        if everywhere:
            dist.all_gather(boxes, own, group=self._group)
        else:
            dist.gather(own, boxes, dst=WRITER, group=self._group)
        if boxes is None:
            return []
        pairs = zip(boxes, lengths, strict=True)
        return [box[:length].numpy().tobytes() for box, length in pairs]


def _initialised() -> bool:
    return dist.is_available() and dist.is_initialized()


def _warn(what: str, error: Exception) -> None:
    text = (str(error).splitlines() or [type(error).__name__])[0]
    log.warning(
        "torchvitals: %s (%s). Training goes on; from here on the run holds what its writer, rank "
        "%d, sees alone.",
        what,
        text,
        WRITER,
    )


def packed(head: Any, body: bytes = b"") -> bytes:
    """JSON, its length before it, and raw numbers behind: no code travels, as a pickle's would."""
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + body


def unpacked(payload: bytes) -> tuple[Any, bytes]:
    """The inverse of `packed`."""
    end = 8 + int.from_bytes(payload[:8], "little")
    return json.loads(payload[8:end]), payload[end:]


def _labelled(payload: bytes) -> CategorySums:
    labels, body = unpacked(payload)
    return CategorySums(tuple(labels), np.frombuffer(body).reshape(-1, len(FIELDS)))
