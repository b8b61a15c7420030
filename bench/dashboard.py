"""What the page's server takes: time of its answers, memory, 20 clients, and what a trainer feels.

    .venv/bin/python bench/dashboard.py [--run DIR] [--seconds 60] [--clients 20]

The run is that of bench/store.py, 100,000 steps of 2,500 columns, with a loss beside it. Each time
is that of a whole request over a connection that is open already. "first" is what a page asks for
when it opens, one after the other, of a server that has read nothing yet. A client asks for a
series, a heatmap, the overview or the run, and again 0.5 … 1.5 s later. The trainer is a small
network on one thread; its median step is taken without a server, and with one whose clients follow
that run. The last column is processor time of the server for it, to 10 ms: where other things run
too, it says more than the time on the clock.
"""

from __future__ import annotations

import argparse
import atexit
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parent))

import store
from torchvitals.record import Key, Row, RunInfo
from torchvitals.store import RunWriter

TOKEN = "a-token-of-the-bench"
VITALS = [sys.executable, "-m", "torchvitals.cli.main"]

TRAINING = """
import os, statistics, sys, time
import torch, torchvitals
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters())
times = []
with torchvitals.watch(model, optimizer, run=sys.argv[1], every=10) as monitor:
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        begin = time.perf_counter()
        loss = model(torch.randn(64, 256)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.log(loss=loss)
        times.append(time.perf_counter() - begin)
print(1e3 * statistics.median(times), 1e3 * statistics.mean(times), len(times))
"""


def write(path: Path, steps: int, columns: int) -> None:
    header = (
        Key.scalar("loss"),
        *(
            Key("gradient", f"blocks.{i // 10}.weight", store.STATS[i % 10])
            for i in range(columns - 1)
        ),
    )
    with RunWriter.create(path, RunInfo(name="bench")) as writer:
        for step, values in enumerate(store.rows(steps, columns)):
            values[0] = 10 / (1 + step / 1000) ** 0.3
            writer.append(Row(step, 1.7e9 + step * 0.1, header, values))
            if step % 50 == 49:
                writer.commit()


class Server:
    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [*VITALS, "ui", str(folder), "--no-browser", "--port", "0", "--token", TOKEN],
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.process.kill)
        assert self.process.stdout is not None
        self.base = self.process.stdout.readline().partition("/?")[0]

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return httpx.Client(base_url=f"{self.base}/api/", headers=headers, timeout=60)

    def cpu_ms(self) -> float:
        """Processor time so far."""
        spent = psutil.Process(self.process.pid).cpu_times()
        return 1e3 * (spent.user + spent.system)

    def memory_mb(self) -> tuple[float, float]:
        """Now, and at most."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        lines = dict(line.split(":", 1) for line in status.splitlines())
        return tuple(int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


def timed(client: httpx.Client, path: str, **arguments: object) -> float:
    begin = time.perf_counter()
    answer = client.get(path, params=arguments)
    took = 1e3 * (time.perf_counter() - begin)
    answer.raise_for_status()
    return took


def ask_often(server: Server, ident: str, seconds: float, seed: int, out: list, bad: list) -> None:
    pick = random.Random(seed)
    end = time.monotonic() + seconds
    time.sleep(pick.random())
    with server.client() as client:
        while time.monotonic() < end:
            what = pick.choice(("series", "series", "series", "matrix", "overview", "run"))
            arguments: dict[str, object] = {}
            if what == "series":
                site = f"blocks.{pick.randrange(200)}.weight"
                arguments = {"key": f"gradient/{site}/{pick.choice(('rms', 'max'))}"}
            elif what == "matrix":
                arguments = {"kind": "gradient", "stat": pick.choice(store.STATS[1:5])}
            try:
                path = f"runs/{ident}" + ("" if what == "run" else f"/{what}")
                out.append((what, timed(client, path, **arguments)))
            except httpx.HTTPError as error:
                bad.append(error)
            time.sleep(pick.uniform(0.5, 1.5))


def follow(server: Server, ident: str, stop: threading.Event) -> None:
    with server.client() as client:
        while not stop.is_set():
            client.get(f"runs/{ident}/overview")
            client.get(f"runs/{ident}/matrix", params={"kind": "gradient", "stat": "rms"})
            time.sleep(1.0)


def step_ms(folder: Path, seconds: float, *, watched: int) -> str:
    run = folder / f"net-{time.monotonic_ns()}"
    training = subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(run), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert training.stdout is not None
    training.stdout.readline()
    stop, threads, server = threading.Event(), [], None
    if watched:
        server = Server(folder)
        with server.client() as client:
            ids = {run["name"]: run["id"] for run in client.get("runs").json()["runs"]}
        threads = [
            threading.Thread(target=follow, args=(server, ids[run.name], stop))
            for _ in range(watched)
        ]
        for thread in threads:
            thread.start()
    out, _ = training.communicate("go\n")
    stop.set()
    for thread in threads:
        thread.join()
    if server is not None:
        server.stop()
    middle, mean, count = out.split()
    return f"{float(middle):.2f} ms median, {float(mean):.2f} ms mean of {count}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="a folder to make, or find, the long run in")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=2_500)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--trainer-seconds", type=float, default=15)
    options = parser.parse_args()
    failed = 0

    def report(
        what: str, value: float, unit: str, limit: float | None = None, cpu: str = ""
    ) -> None:
        nonlocal failed
        verdict = "" if limit is None else "pass" if value <= limit else "FAIL"
        failed += verdict == "FAIL"
        bound = "" if limit is None else f"<= {limit:g}"
        print(f"{what:<52} {value:>9.1f} {unit:<4} {bound:<8} {verdict:<5} {cpu}", flush=True)

    def measure(what: str, limit: float | None, *asked: tuple[str, dict[str, object]]) -> None:
        """The median of these questions, and the slowest if they are many."""
        before = server.cpu_ms()
        times = [timed(client, path, **arguments) for path, arguments in asked]
        cpu = f"{(server.cpu_ms() - before) / len(asked):.0f} ms"
        report(what, statistics.median(times), "ms", limit, cpu)
        if len(asked) > 1:
            report("    the slowest of them", max(times), "ms")

    with tempfile.TemporaryDirectory(prefix="vitals-bench-") as temporary:
        folder = options.run or Path(temporary)
        if not (folder / "long").exists():
            write(folder / "long", options.steps, options.columns)
        print(
            f"{options.steps:,} x {options.columns:,}; load {os.getloadavg()[0]:.1f} at the start"
        )
        server = Server(folder)
        with server.client() as client:
            begin, before = time.perf_counter(), server.cpu_ms()
            (run,) = [r for r in client.get("runs").json()["runs"] if r["name"] == "long"]
            place = f"runs/{run['id']}"
            for below in ("", "/findings", "/overview", "/events"):
                timed(client, f"{place}{below}")
            took, cpu = 1e3 * (time.perf_counter() - begin), server.cpu_ms() - before
            report(
                "first: list, run, findings, overview, events", took, "ms", 1500, f"{cpu:.0f} ms"
            )

            def heat(stat: str) -> tuple[str, dict[str, object]]:
                return f"{place}/matrix", {"kind": "gradient", "stat": stat, "points": 1000}

            measure("first heatmap, nothing read before", 500, heat("rms"))
            measure("another heatmap (median of 6)", 500, *map(heat, store.STATS[3:9]))
            measure("the same heatmap again", None, heat("rms"))
            sites = random.Random(1).sample(range(options.columns // 10 - 1), 40)
            for points in (1000, 2000):
                asked = [
                    (
                        f"{place}/series",
                        {"key": f"gradient/blocks.{site}.weight/l1", "points": points},
                    )
                    for site in sites
                ]
                measure(f"a series, {points} points (median of 40)", 150, *asked)
            at = {"kind": "gradient", "stat": "rms", "step": 54_321}
            measure("profile at a step", None, (f"{place}/profile", at))
        found: list[tuple[str, float]] = []
        errors: list[Exception] = []
        threads = [
            threading.Thread(
                target=ask_often,
                args=(server, run["id"], options.seconds, seed, found, errors),
            )
            for seed in range(options.clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        times = [ms for _, ms in found]
        what = f"{options.clients} clients, {options.seconds:g} s, {len(times)} answers:"
        report(f"{what} median", statistics.median(times), "ms")
        report(f"{what} p95", float(np.percentile(times, 95)), "ms", 200)
        report(f"{what} slowest", max(times), "ms")
        report(f"{what} errors", len(errors), "", 0)
        now, most = server.memory_mb()
        report("memory of the server now", now, "MB", 300)
        report("memory of the server at most", most, "MB", 300)
        server.stop()
        print(f"load {os.getloadavg()[0]:.1f} at the end")
    with tempfile.TemporaryDirectory(prefix="vitals-bench-") as temporary:
        for watched in (0, 3, 0, 3):
            told = step_ms(Path(temporary), options.trainer_seconds, watched=watched)
            print(f"a step of the trainer, {watched} clients: {told}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
