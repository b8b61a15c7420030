"""Readings of the host: this process, memory, processors, disk.

Two of them know about containers: memory is that of the control group if it has less than the
machine, and processors are those this process may run on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import psutil

MIN_WINDOW_S = 0.05
"""A share of processor time over less than this says nothing: kernels count in steps of 10 ms."""


class ProcessUse:
    """This process, without its children: data loader workers are processes of their own."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._peak = 0.0
        self._cpu = Share()
        self._cpu.since(process_time(), monotonic())

    def __call__(self) -> dict[str, float]:
        """Memory, threads, and cores in use: 1.7 is one core busy all the time and one at 70 %."""
        rss = float(self._process.memory_info().rss)
        # The kernel brings the two up to date at different moments.
        self._peak = max(self._peak, peak_rss_bytes(), rss)
        found = {
            "process_rss_bytes": rss,
            "process_peak_rss_bytes": self._peak,
            "process_num_threads": float(self._process.num_threads()),
        }
        cores = self._cpu.since(process_time(), monotonic())
        if cores is not None:
            found["process_cpu_frac"] = cores
        return found


def peak_rss_bytes(status: Path = Path("/proc/self/status")) -> float:
    """The most memory this process ever had in use.

    Not `ru_maxrss` where it can be helped: on Linux a process inherits that of its parent.
    """
    try:
        _, _, rest = status.read_text().partition("VmHWM:")
        return 1024.0 * int(rest.split(None, 1)[0])
    except (OSError, ValueError, IndexError):
        pass
    try:
        resource: Any = import_module("resource")
    except ImportError:  # Windows
        return float(getattr(psutil.Process().memory_info(), "peak_wset", 0))
    unit = 1 if psutil.MACOS else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


class SystemMemory:
    """Memory of the machine, or of the container if that has less."""

    def __init__(self, limits: Sequence[MemoryLimit] | None = None) -> None:
        self._limits = memory_limits() if limits is None else limits

    def __call__(self) -> dict[str, float]:
        """Used is what programs can't get any more: file caches that would give way are free."""
        machine = psutil.virtual_memory()
        total, used = float(machine.total), float(machine.total - machine.available)
        for limit in self._limits:
            limit_bytes = limit.limit_bytes()
            if limit_bytes is not None and limit_bytes < total:
                total, used = limit_bytes, limit.used_bytes()
        return {
            "system_memory_used_bytes": used,
            "system_memory_total_bytes": total,
            "system_memory_frac": used / total,
        }


class MemoryLimit:
    """One control group that may limit memory, of version 1 or 2."""

    def __init__(self, folder: Path, limit: str, usage: str, inactive: str) -> None:
        self._limit, self._usage = folder / limit, folder / usage
        self._stat, self._inactive = folder / "memory.stat", inactive

    def limit_bytes(self) -> float | None:
        """The limit, which may change while we run; None if there is none."""
        try:
            text = self._limit.read_text().strip()
        except OSError:
            return None
        return float(text) if text.isdigit() and int(text) else None

    def used_bytes(self) -> float:
        """Without the file cache not used lately, which gives way first."""
        used = int(self._usage.read_text())
        for line in self._stat.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == self._inactive:
                used -= int(value)
        return float(max(used, 0))


def memory_limits(
    cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> list[MemoryLimit]:
    """The groups this process is in, up to the root: the smallest limit on the way holds."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # no Linux
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            top = cgroups / "memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        elif not controllers:
            top = cgroups
            files = ("memory.max", "memory.current", "inactive_file")
        else:
            continue
        folder = top / path.lstrip("/")
        # In a container the path is often that of the host, and only the top is there.
        for place in (folder, *folder.parents):
            if (place / files[0]).exists():
                found.append(MemoryLimit(place, *files))
            if place == top:
                break
    return found


class SystemCpu:
    """Processors this process may run on, and what they do for all programs together."""

    def __init__(self) -> None:
        affinity = getattr(psutil.Process(), "cpu_affinity", None)
        ours = set(affinity()) if affinity is not None else set()
        everything = psutil.cpu_count() or 0
        self._ours = sorted(ours) if 0 < len(ours) < everything else None
        self._share = Share()
        self()

    def __call__(self) -> dict[str, float]:
        """0 is idle, 1 all busy."""
        if self._ours is None:
            times = [psutil.cpu_times()]
        else:
            each = psutil.cpu_times(percpu=True)
            times = [each[index] for index in self._ours if index < len(each)]
        total = sum(sum(t) - guest(t) for t in times)
        idle = sum(t.idle + getattr(t, "iowait", 0.0) for t in times)
        share = self._share.since(total - idle, total)
        return {} if share is None else {"system_cpu_frac": min(max(share, 0.0), 1.0)}


def guest(times: Any) -> float:
    """Time of virtual machines, which Linux counts as user time once more."""
    return float(getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0))


class Share:
    """How much one clock moved while another did."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def since(self, part: float, whole: float) -> float | None:
        """Their ratio since the last time; None the first time, and after too short a while."""
        if self._last is None:
            self._last = part, whole
            return None
        before, start = self._last
        if whole - start < MIN_WINDOW_S:
            return None
        self._last = part, whole
        return (part - before) / (whole - start)


class DiskFree:
    """Room on the disk of a folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    def __call__(self) -> dict[str, float]:
        """What an ordinary user can still write; nothing before the folder is there."""
        try:
            return {"disk_free_bytes": float(shutil.disk_usage(self._folder).free)}
        except FileNotFoundError:
            return {}
