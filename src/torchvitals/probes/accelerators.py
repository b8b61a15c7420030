"""Readings of accelerators: torch's own counters, and the driver's through NVML.

Only of devices this process uses, and only once it does: CUDA is never initialised from here.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any


class CudaMemory:
    """What torch holds on the devices it uses."""

    def __init__(self, cuda: Any) -> None:
        """`cuda`: torch.cuda, or something like it."""
        self.cuda = cuda
        self.in_use: list[int] = []
        """Devices that torch ever reserved memory on."""

    def __call__(self) -> dict[str, float]:
        """Counters of torch's allocator: no call to the device."""
        if not self.cuda.is_initialized():
            return {}
        found: dict[str, float] = {}
        for index in range(self.cuda.device_count()):
            # memory_stats() would flatten and sort a hundred of them.
            stats = self.cuda.memory_stats_as_nested_dict(index)
            allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
            if index not in self.in_use:
                if not reserved["peak"]:
                    continue
                self.in_use.append(index)
            found[f"gpu{index}_allocated_bytes"] = float(allocated["current"])
            found[f"gpu{index}_reserved_bytes"] = float(reserved["current"])
            found[f"gpu{index}_peak_bytes"] = float(allocated["peak"])
            found[f"gpu{index}_alloc_retries"] = float(stats["num_alloc_retries"])
        return found


def nvml_module() -> Any | None:
    """`pynvml` of the package nvidia-ml-py, if it is installed."""
    try:
        return import_module("pynvml")
    except Exception:  # an import of others may fail in any way
        return None


class Nvml:
    """What the driver knows of the devices torch uses, other programs' doings included."""

    def __init__(self, nvml: Any, memory: CudaMemory) -> None:
        self._nvml = nvml
        self._memory = memory
        self._working: bool | None = None
        self._handles: dict[int, Any] = {}
        self._missing: set[tuple[int, str]] = set()

    def __call__(self) -> dict[str, float]:
        """A reading a device does not know is left out from then on."""
        found: dict[str, float] = {}
        if not self._memory.in_use or not self._begun():
            return found
        for index in self._memory.in_use:
            for name, read in READERS.items():
                if (index, name) in self._missing:
                    continue
                try:
                    found[f"gpu{index}_{name}"] = read(self._nvml, self._handle(index))
                except self._nvml.NVMLError:
                    self._missing.add((index, name))
        return found

    def _begun(self) -> bool:
        if self._working is None:
            try:
                self._nvml.nvmlInit()
                self._working = True
            except self._nvml.NVMLError:  # the package is there, the driver is not
                self._working = False
        return self._working

    def _handle(self, index: int) -> Any:
        if index not in self._handles:
            self._handles[index] = nvml_handle(self._nvml, self._memory.cuda, index)
        return self._handles[index]


def util_frac(nvml: Any, handle: Any) -> float:
    """Share of the last moments in which any kernel ran; it says nothing of how well."""
    return float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)


def power_w(nvml: Any, handle: Any) -> float:
    """NVML counts in milliwatts."""
    return float(nvml.nvmlDeviceGetPowerUsage(handle) / 1000)


def temperature_c(nvml: Any, handle: Any) -> float:
    """Of the chip."""
    return float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))


def used_bytes(nvml: Any, handle: Any) -> float:
    """Of all programs."""
    return float(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def total_bytes(nvml: Any, handle: Any) -> float:
    """Of the device."""
    return float(nvml.nvmlDeviceGetMemoryInfo(handle).total)


READERS = {
    reader.__name__: reader
    for reader in (util_frac, power_w, temperature_c, used_bytes, total_bytes)
}


def nvml_handle(nvml: Any, cuda: Any, index: int) -> Any:
    """NVML's handle of torch's device `index`.

    NVML counts all devices of the machine, torch those of CUDA_VISIBLE_DEVICES, the fastest first:
    the UUID is what they agree on. Older versions of torch don't tell it.
    """
    uuid = getattr(cuda.get_device_properties(index), "uuid", None)
    if uuid is not None:
        try:
            return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except nvml.NVMLError:  # a slice of a device has a name of another form
            pass
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    chosen = visible.split(",")[index].strip()
    if chosen.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(chosen))
    for other in range(nvml.nvmlDeviceGetCount()):
        # The beginning of a UUID is enough for CUDA, not for NVML.
        handle = nvml.nvmlDeviceGetHandleByIndex(other)
        if text(nvml.nvmlDeviceGetUUID(handle)).startswith(chosen):
            return handle
    return nvml.nvmlDeviceGetHandleByUUID(chosen)


def text(value: str | bytes) -> str:
    """Older versions of the bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value
