"""`memory_of`: the memory a run takes: its process, the machine, each GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchvitals.record import Key
from torchvitals.views.lately import Lately

GPU = re.compile(r"gpu\d+")
GPU_STATS = ("allocated_bytes", "reserved_bytes", "peak_bytes", "used_bytes", "total_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """One GPU, in bytes. What torch allocated, and what all programs use of the total."""

    index: int
    allocated_bytes: float | None
    reserved_bytes: float | None
    peak_bytes: float | None
    used_bytes: float | None
    total_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The last sample of the machine."""

    process_bytes: float | None
    process_peak_bytes: float | None
    system_frac: float | None
    system_total_bytes: float | None
    gpus: list[GpuMemory]


def memory_of(lately: Lately) -> Memory | None:
    """None when the machine was not sampled."""
    sites = filter(GPU.fullmatch, lately.sites("machine", GPU_STATS))
    gpus = [gpu for site in sites if (gpu := _gpu(lately, site)) is not None]
    found = Memory(
        process_bytes=lately.last(Key("machine", "process", "rss_bytes")),
        process_peak_bytes=lately.last(Key("machine", "process", "peak_rss_bytes")),
        system_frac=lately.last(Key("machine", "system", "memory_frac")),
        system_total_bytes=lately.last(Key("machine", "system", "memory_total_bytes")),
        gpus=sorted(gpus, key=lambda gpu: gpu.index),
    )
    seen = found.process_bytes is not None or found.system_frac is not None
    return found if seen or found.gpus else None


def _gpu(lately: Lately, site: str) -> GpuMemory | None:
    """None when none of its readings is a number."""
    found = {stat: lately.last(Key("machine", site, stat)) for stat in GPU_STATS}
    if all(value is None for value in found.values()):
        return None
    return GpuMemory(index=int(site.removeprefix("gpu")), **found)
