"""Readings are plausible and move with what they measure; the sampler troubles nobody."""

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from torchvitals.probes import host
from torchvitals.probes.accelerators import CudaMemory, Nvml
from torchvitals.probes.host import (
    DiskFree,
    MemoryLimit,
    ProcessUse,
    Share,
    SystemCpu,
    SystemMemory,
    memory_limits,
    peak_rss_bytes,
)
from torchvitals.probes.machine import MachineSampler, machine_sources
from torchvitals.record import ConfigError

GIB = 1 << 30


def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


class TestHost:
    def test_process_memory(self):
        read = ProcessUse()
        before = read()
        ballast = bytearray(os.urandom(1)) * (200 << 20)
        during = read()
        grown = during["process_rss_bytes"] - before["process_rss_bytes"]
        assert 190 << 20 < grown < 250 << 20
        del ballast
        after = read()
        assert after["process_rss_bytes"] < during["process_rss_bytes"] - (150 << 20)
        assert after["process_peak_rss_bytes"] >= during["process_rss_bytes"]

    def test_process_threads(self):
        read = ProcessUse()
        before = read()["process_num_threads"]
        done = threading.Event()
        threads = [threading.Thread(target=done.wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            assert read()["process_num_threads"] == before + 3
        finally:
            done.set()
            for thread in threads:
                thread.join()

    def test_process_cpu(self):
        """Others may want the core, too: our share is compared with what we were given."""
        read = ProcessUse()
        begun, given = time.monotonic(), time.process_time()
        busy(0.3)
        cores = read()["process_cpu_frac"]
        expected = (time.process_time() - given) / (time.monotonic() - begun)
        assert cores == pytest.approx(expected, rel=0.2)

    def test_process_cpu_of_several_threads(self, monkeypatch):
        clocks = iter([(10.0, 100.0), (13.4, 102.0)])
        now = {}

        def cpu():
            now["cpu"], now["wall"] = next(clocks)
            return now["cpu"]

        monkeypatch.setattr(host, "process_time", cpu)
        monkeypatch.setattr(host, "monotonic", lambda: now["wall"])
        assert ProcessUse()()["process_cpu_frac"] == pytest.approx(1.7)

    def test_too_short_a_window_says_nothing(self):
        share = Share()
        assert share.since(1.0, 10.0) is None
        assert share.since(1.01, 10.01) is None
        assert share.since(1.5, 11.0) == pytest.approx(0.5)

    def test_peak_without_proc(self, tmp_path):
        (tmp_path / "status").write_text("Name:\tpython\n")
        rss = psutil.Process().memory_info().rss
        for status in (tmp_path / "status", tmp_path / "absent"):
            assert rss / 2 < peak_rss_bytes(status) < 1 << 40

    def test_peak_is_in_bytes(self, tmp_path):
        (tmp_path / "status").write_text("VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n")
        assert peak_rss_bytes(tmp_path / "status") == 2 << 20

    def test_system_memory(self):
        found = SystemMemory()()
        total, used = found["system_memory_total_bytes"], found["system_memory_used_bytes"]
        assert psutil.Process().memory_info().rss * 0.3 < used < total
        assert total <= psutil.virtual_memory().total
        assert found["system_memory_frac"] == used / total

    def test_system_cpu(self, monkeypatch):
        times = SimpleNamespace(value=(0.0, 0.0, 0.0))

        class Times(tuple):
            __slots__ = ()
            idle = property(lambda self: self[1])
            iowait = property(lambda self: self[2])

        monkeypatch.setattr(psutil, "cpu_times", lambda percpu=False: Times(times.value))
        monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: [0, 1])
        monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
        read = SystemCpu()
        assert read() == {}
        times.value = (3.0, 6.0, 1.0)
        assert read() == {"system_cpu_frac": pytest.approx(0.3)}

    def test_only_processors_we_may_use(self, monkeypatch):
        """One of four is ours, and it is the busy one."""
        load = {"idle": [10.0] * 4, "user": [0.0] * 4}

        def each(percpu=False):
            assert percpu
            return [
                psutil._ntuples.scputimes(*([user, 0, 0, idle] + [0.0] * 6))
                for user, idle in zip(load["user"], load["idle"], strict=True)
            ]

        monkeypatch.setattr(psutil, "cpu_times", each)
        monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: [2])
        monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
        read = SystemCpu()
        load["user"][2] += 9.0
        load["idle"] = [11.0] * 4
        assert read() == {"system_cpu_frac": pytest.approx(0.9)}

    def test_system_cpu_for_real(self):
        read = SystemCpu()
        busy(0.3)
        cores = len(psutil.Process().cpu_affinity())
        assert 0.3 / cores < read()["system_cpu_frac"] <= 1.0

    def test_disk(self, tmp_path):
        free = DiskFree(tmp_path)()["disk_free_bytes"]
        assert 0 < free <= psutil.disk_usage(str(tmp_path)).total
        assert DiskFree(tmp_path / "not yet there")() == {}


class TestContainers:
    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch):
        monkeypatch.setattr(
            psutil,
            "virtual_memory",
            lambda: SimpleNamespace(total=64 * GIB, available=48 * GIB),
        )

    def group(self, folder: Path, *, version: int, limit: str, used: int, inactive: int):
        folder.mkdir(parents=True, exist_ok=True)
        names = {
            1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            2: ("memory.max", "memory.current", "inactive_file"),
        }[version]
        (folder / names[0]).write_text(f"{limit}\n")
        (folder / names[1]).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_anon 7\n{names[2]} {inactive}\n")

    def read(self, tmp_path, own):
        (tmp_path / "own").write_text(own)
        limits = memory_limits(tmp_path / "cgroup", tmp_path / "own")
        found = SystemMemory(limits)()
        return (
            found["system_memory_total_bytes"] / GIB,
            found["system_memory_used_bytes"] / GIB,
            found["system_memory_frac"],
        )

    def test_without(self, tmp_path):
        assert self.read(tmp_path, "0::/\n") == (64, 16, 0.25)

    def test_no_linux(self, tmp_path):
        assert memory_limits(tmp_path, tmp_path / "absent") == []

    def test_version_2(self, tmp_path):
        top = tmp_path / "cgroup"
        self.group(top / "pod" / "box", version=2, limit="max", used=1, inactive=0)
        self.group(top / "pod", version=2, limit=str(8 * GIB), used=5 * GIB, inactive=GIB)
        assert self.read(tmp_path, "0::/pod/box\n") == (8, 4, 0.5)

    def test_the_smallest_holds(self, tmp_path):
        top = tmp_path / "cgroup"
        self.group(top / "pod" / "box", version=2, limit=str(4 * GIB), used=GIB, inactive=0)
        self.group(top / "pod", version=2, limit=str(8 * GIB), used=5 * GIB, inactive=GIB)
        assert self.read(tmp_path, "0::/pod/box\n") == (4, 1, 0.25)

    def test_namespace_whose_path_is_not_there(self, tmp_path):
        top = tmp_path / "cgroup"
        self.group(top, version=2, limit=str(2 * GIB), used=GIB, inactive=0)
        assert self.read(tmp_path, "0::/docker/abc\n") == (2, 1, 0.5)

    def test_version_1(self, tmp_path):
        top = tmp_path / "cgroup" / "memory"
        self.group(top / "box", version=1, limit=str(8 * GIB), used=6 * GIB, inactive=4 * GIB)
        own = "5:cpu,cpuacct:/box\n4:memory:/box\n0::/\n"
        assert self.read(tmp_path, own) == (8, 2, 0.25)

    def test_version_1_without_limit(self, tmp_path):
        """It says so with a very large number."""
        top = tmp_path / "cgroup" / "memory"
        self.group(top, version=1, limit="9223372036854771712", used=1, inactive=0)
        assert self.read(tmp_path, "4:memory:/\n") == (64, 16, 0.25)

    def test_a_limit_that_is_gone(self, tmp_path):
        limit = MemoryLimit(tmp_path / "gone", "memory.max", "memory.current", "inactive_file")
        assert limit.limit_bytes() is None


class FakeCuda:
    """The part of torch.cuda that is asked. Devices map to bytes reserved."""

    def __init__(self, devices, *, initialized=True, uuids=None):
        self.devices, self.initialized, self.uuids = devices, initialized, uuids or {}

    def is_initialized(self):
        return self.initialized

    def device_count(self):
        assert self.initialized, "this would initialise CUDA"
        return len(self.devices)

    def memory_stats_as_nested_dict(self, index):
        assert self.initialized, "this would initialise CUDA"
        reserved = self.devices[index]
        return {
            "allocated_bytes": {"all": {"current": reserved // 2, "peak": reserved // 2 + 1}},
            "reserved_bytes": {"all": {"current": reserved, "peak": reserved}},
            "num_alloc_retries": 3,
        }

    def get_device_properties(self, index):
        known = index in self.uuids
        return SimpleNamespace(**({"uuid": self.uuids[index]} if known else {}))


class NVMLError(Exception):
    pass


class FakeNvml:
    """The part of pynvml that is asked. A handle is the number of a device."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, uuids, *, lacks=(), driver=True):
        self.uuids, self.lacks, self.driver = uuids, set(lacks), driver
        self.calls = []

    def nvmlInit(self):
        self.calls.append("init")
        if not self.driver:
            raise NVMLError("no driver")

    def nvmlDeviceGetCount(self):
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):
        return range(len(self.uuids))[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in self.uuids:
            raise NVMLError("not found")
        return self.uuids.index(uuid)

    def nvmlDeviceGetUUID(self, handle):
        return self.uuids[handle].encode()

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=10 * handle + 5)

    def nvmlDeviceGetPowerUsage(self, handle):
        self.calls.append("power")
        if "power" in self.lacks:
            raise NVMLError("not supported")
        return 250_500

    def nvmlDeviceGetTemperature(self, handle, sensor):
        assert sensor == self.NVML_TEMPERATURE_GPU
        return 61

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=30 * GIB, total=80 * GIB)


def asked(nvml, cuda):
    memory = CudaMemory(cuda)
    memory()
    return Nvml(nvml, memory)


class TestAccelerators:
    UUIDS = ("GPU-aaaa-0", "GPU-bbbb-1", "GPU-cccc-2", "GPU-dddd-3")

    @pytest.fixture(autouse=True)
    def plain_environment(self, monkeypatch):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def test_memory_of_devices_in_use(self):
        assert CudaMemory(FakeCuda([0, 4096]))() == {
            "gpu1_allocated_bytes": 2048,
            "gpu1_reserved_bytes": 4096,
            "gpu1_peak_bytes": 2049,
            "gpu1_alloc_retries": 3,
        }

    def test_cuda_is_not_initialised(self):
        cuda = FakeCuda([4096], initialized=False)
        memory = CudaMemory(cuda)
        nvml = FakeNvml(self.UUIDS)
        assert memory() == {}
        assert Nvml(nvml, memory)() == {}
        assert nvml.calls == []
        cuda.initialized = True
        assert "gpu0_reserved_bytes" in memory()

    def test_a_device_in_use_stays_listed(self):
        cuda = FakeCuda([4096])
        memory = CudaMemory(cuda)
        memory()
        cuda.devices = [0]
        assert memory()["gpu0_reserved_bytes"] == 0

    def test_driver(self):
        assert asked(FakeNvml(self.UUIDS), FakeCuda([0, 4096]))() == {
            "gpu1_util_frac": 0.15,
            "gpu1_power_w": 250.5,
            "gpu1_temperature_c": 61,
            "gpu1_used_bytes": 30 * GIB,
            "gpu1_total_bytes": 80 * GIB,
        }

    def test_what_a_device_does_not_know_is_asked_once(self):
        nvml = FakeNvml(self.UUIDS, lacks={"power"})
        read = asked(nvml, FakeCuda([4096]))
        for _ in range(3):
            found = read()
            assert "gpu0_power_w" not in found
            assert found["gpu0_temperature_c"] == 61
        assert nvml.calls.count("power") == 1
        assert nvml.calls.count("init") == 1

    def test_no_driver(self):
        nvml = FakeNvml(self.UUIDS, driver=False)
        read = asked(nvml, FakeCuda([4096]))
        assert read() == read() == {}
        assert nvml.calls == ["init"]

    @pytest.mark.parametrize(
        ("visible", "device"),
        [
            (None, 1),
            ("2,3", 3),
            ("3, 0", 0),
            ("GPU-aaaa-0,GPU-dddd-3", 3),
            ("GPU-aaaa,GPU-cccc", 2),
            ("0,MIG-77", 4),
        ],
    )
    def test_visible_devices(self, monkeypatch, visible, device):
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        read = asked(FakeNvml([*self.UUIDS, "MIG-77"]), FakeCuda([0, 4096]))
        assert read()["gpu1_util_frac"] == pytest.approx(device * 0.1 + 0.05)

    def test_uuid_goes_before_numbers(self, monkeypatch):
        """CUDA numbers the fastest device first, NVML goes by the bus."""
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        cuda = FakeCuda([4096], uuids={0: "cccc-2"})
        assert asked(FakeNvml(self.UUIDS), cuda)()["gpu0_util_frac"] == 0.25

    def test_a_slice_has_another_uuid(self, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-77")
        cuda = FakeCuda([4096], uuids={0: "not a device's"})
        read = asked(FakeNvml([*self.UUIDS, "MIG-77"]), cuda)
        assert read()["gpu0_util_frac"] == pytest.approx(0.45)


@pytest.fixture
def sampler_of():
    made = []

    def make(*arguments, **options):
        made.append(MachineSampler(*arguments, **options))
        return made[-1]

    yield make
    for sampler in made:
        sampler.close()


class TestSampler:
    def test_samples_until_closed(self, sampler_of, tmp_path):
        samples, third = [], threading.Event()

        def on_sample(readings):
            samples.append(readings)
            if len(samples) == 3:
                third.set()

        sampler = sampler_of(on_sample, interval_s=0.06, folder=tmp_path)
        sampler.start()
        sampler.start()
        assert third.wait(20)
        sampler.close()
        num = len(samples)
        assert threading.active_count() == len(threading.enumerate())
        assert not any(t.name == "torchvitals-machine" for t in threading.enumerate())
        assert len(samples) == num
        assert {
            "process_rss_bytes",
            "process_peak_rss_bytes",
            "process_num_threads",
            "process_cpu_frac",
            "system_memory_used_bytes",
            "system_memory_total_bytes",
            "system_memory_frac",
            "system_cpu_frac",
            "disk_free_bytes",
        } <= set(samples[2])
        assert all(isinstance(value, float) for value in samples[2].values())
        assert sampler.latest

    def test_the_first_samples_come_faster(self):
        sampler, age_s, ages = MachineSampler(), 0.0, []
        while age_s < 60:
            ages.append(age_s)
            age_s += sampler.interval_s(age_s)
        assert sum(age < 2 for age in ages) == 8
        assert sum(age < 10 for age in ages) > 30
        assert sampler.interval_s(32) == sampler.interval_s(1e6) == 2
        assert MachineSampler(interval_s=0.1).interval_s(0) == 0.1

    def test_closing_is_quick_and_final(self, sampler_of):
        sampled = threading.Event()
        sampler = sampler_of(lambda _: sampled.set(), interval_s=3600, sources=[])
        sampler.start()
        assert sampled.wait(20)
        # It would sleep for an hour: closing wakes it.
        sampler.close()
        sampler.close()
        sampler._thread.join(20)
        assert not sampler._thread.is_alive()
        sampler.start()
        assert not sampler._thread.is_alive()

    def test_closed_before_it_was_started(self, sampler_of):
        sampler = sampler_of(sources=[])
        sampler.close()
        sampler.start()
        assert sampler._thread is None

    def test_closed_from_its_own_callback(self, sampler_of):
        closed = threading.Event()

        def on_sample(_):
            sampler.close()
            closed.set()

        sampler = sampler_of(on_sample, sources=[])
        sampler.start()
        assert closed.wait(20)
        sampler._thread.join(20)
        assert not sampler._thread.is_alive()

    def test_a_source_that_hangs_does_not_hold_up_closing(self, sampler_of, monkeypatch):
        monkeypatch.setattr("torchvitals.probes.machine.JOIN_S", 0.05)
        inside, release = threading.Event(), threading.Event()
        samples = []

        def hangs():
            inside.set()
            release.wait(60)
            return {"late": 1.0}

        sampler = sampler_of(samples.append, sources=[hangs])
        sampler.start()
        assert inside.wait(20)
        sampler.close()
        assert sampler._thread.is_alive()
        release.set()
        sampler._thread.join(20)
        assert samples == []

    def test_a_source_that_fails_is_switched_off_once(self, sampler_of):
        calls, told = [], []

        def broken():
            calls.append(1)
            raise OSError("unplugged")

        sampler = sampler_of(
            sources=[broken, lambda: {"good": 1.0}],
            on_error=lambda name, error: told.append((name, str(error))),
        )
        assert sampler.sample() == sampler.sample() == {"good": 1.0}
        assert len(calls) == 1
        assert told == [("broken", "unplugged")]

    def test_errors_of_the_callbacks_go_nowhere(self, sampler_of):
        told = threading.Event()

        def on_sample(_):
            raise ValueError("theirs")

        def on_error(name, error):
            assert (name, str(error)) == ("machine", "theirs")
            told.set()
            raise RuntimeError("theirs, too")

        sampler = sampler_of(on_sample, sources=[], on_error=on_error)
        sampler.start()
        assert told.wait(20)
        sampler._thread.join(20)
        assert not sampler._thread.is_alive()

    def test_sources_that_fail_are_named(self, sampler_of):
        class Sensor:
            def __call__(self):
                raise OSError

        told = []
        sampler_of(sources=[Sensor()], on_error=lambda name, _: told.append(name)).sample()
        assert told == ["Sensor"]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    @pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
    def test_does_nothing_in_a_child(self, sampler_of):
        sampled = threading.Event()
        sampler = sampler_of(lambda _: sampled.set(), interval_s=3600, sources=[])
        sampler.start()
        assert sampled.wait(20)
        # The worst moment: in the child this lock will never be released.
        with sampler._done._cond:
            child = os.fork()
            if child == 0:
                sampler.close()
                sampler.start()
                os._exit(threading.active_count())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        assert sampler._thread.is_alive()

    @pytest.mark.parametrize("interval_s", [0, -1, float("nan")])
    def test_wrong_interval(self, interval_s):
        with pytest.raises(ConfigError, match=f"interval_s must be above 0, got {interval_s}"):
            MachineSampler(interval_s=interval_s)

    def test_nothing_of_cuda_without_it(self, monkeypatch):
        import torch

        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
        for source in machine_sources():
            assert not any(name.startswith("gpu") for name in source())
