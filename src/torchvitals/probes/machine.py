"""The machine beside the training: memory, processors, disk and accelerators, from the background.

`MachineSampler` asks a list of sources every two seconds in a thread of its own, and more often in
the first half minute, so that short runs have their samples too. A source is a function
without arguments that returns readings, ``{"process_rss_bytes": 1.2e9}``; one that has nothing to
tell returns nothing. What a machine does not have has no reading. A source that fails is switched
off, told once, and nothing is ever raised into the training.

The sources are in `host` and `accelerators`. A sample without accelerators costs about 0.4 ms
of processor time, and none waits for a device.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from torchvitals.probes.accelerators import CudaMemory, Nvml, nvml_module
from torchvitals.probes.host import DiskFree, ProcessUse, SystemCpu, SystemMemory
from torchvitals.record import ConfigError

Readings: TypeAlias = Mapping[str, float]
Source: TypeAlias = Callable[[], Readings]

INTERVAL_S = 2.0

FIRST_S = 0.25
"""The first interval."""

SAMPLES = 16
"""The interval grows with the run: the time so far has about this many samples, or more."""

JOIN_S = 1.0
"""How long closing waits for a sample under way: a disk that hangs must not hold it up."""


class MachineSampler:
    """Asks the sources at their own pace, from `start()` to `close()`."""

    def __init__(
        self,
        on_sample: Callable[[dict[str, float]], None] | None = None,
        *,
        interval_s: float = INTERVAL_S,
        folder: str | os.PathLike[str] | None = None,
        sources: Sequence[Source] | None = None,
        on_error: Callable[[str, Exception], None] | None = None,
    ) -> None:
        """`folder`: whose disk to look at. `on_error` hears the name of a source that failed."""
        if not interval_s > 0:
            raise ConfigError(
                f"interval_s must be above 0, got {interval_s}; 2.0 is a sample every two seconds."
            )
        self.latest: dict[str, float] = {}
        """The readings of the last sample."""
        self._on_sample = on_sample
        self._on_error = on_error
        self._interval_s = interval_s
        self._sources = list(machine_sources(folder) if sources is None else sources)
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def start(self) -> None:
        """Begin; the first sample is taken at once. Starting twice is starting once."""
        if self._forked() or self._thread is not None or self._done.is_set():
            return
        self._thread = threading.Thread(target=self._run, name="torchvitals-machine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End, for good; what closes twice closes once."""
        if self._forked():
            return
        self._done.set()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(JOIN_S)

    def sample(self) -> dict[str, float]:
        """Ask all sources now."""
        found: dict[str, float] = {}
        for source in list(self._sources):
            try:
                found.update(source())
            except Exception as error:  # a source is not worth a training
                self._sources.remove(source)
                self._tell(name_of(source), error)
        self.latest = found
        return found

    def interval_s(self, age_s: float) -> float:
        """Seconds to the next sample when the first was so long ago."""
        return min(self._interval_s, max(FIRST_S, age_s / SAMPLES))

    def _forked(self) -> bool:
        """In a process forked off there is no thread, and its locks may be held for ever."""
        return self._process != os.getpid()

    def _run(self) -> None:
        begin = time.monotonic()
        while True:
            found = self.sample()
            if self._on_sample is not None and not self._done.is_set():
                try:
                    self._on_sample(dict(found))
                except Exception as error:  # nobody could catch it here
                    self._tell("machine", error)
                    return
            if self._done.wait(self.interval_s(time.monotonic() - begin)):
                return

    def _tell(self, name: str, error: Exception) -> None:
        if self._on_error is None:
            return
        try:
            self._on_error(name, error)
        except Exception:  # nobody could catch it here
            self._on_error = None


def machine_sources(folder: str | os.PathLike[str] | None = None) -> list[Source]:
    """All there is to ask on this machine."""
    cuda = CudaMemory(torch.cuda)
    sources: list[Source] = [ProcessUse(), SystemMemory(), SystemCpu(), cuda]
    nvml = nvml_module()
    if nvml is not None:
        sources.append(Nvml(nvml, cuda))
    if folder is not None:
        sources.append(DiskFree(folder))
    return sources


def name_of(source: Source) -> str:
    """What to call a source that failed."""
    return getattr(source, "__name__", type(source).__name__)
