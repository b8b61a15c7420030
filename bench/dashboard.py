"""What the page's server takes: time of its answers, memory, 20 clients, and what a trainer feels.

    .venv/bin/python bench/dashboard.py [--run DIR] [--seconds 60] [--clients 20]

The run is that of bench/store.py, 100,000 steps of 2,500 columns, with a loss beside it. Each time
is that of a whole request over a connection that is open already. "first" is what a page asks for
when it opens, one after the other, of a server that has read nothing yet. A client asks for a
series, a heatmap, the overview or the run, and again 0.5 … 1.5 s later. The last column is
processor time of the server for it, to 10 ms: where other things run too, it says more than the
time on the clock.

"paint" is measured in a browser (Debian's Chromium), from the start of the navigation to the frame
after the element is there, each time with a new server and a new window: "useful" is the run's
curve in the view of findings, "findings" what was found, "overview" its figures. --no-paint leaves
it out.

The trainer is a small network on one thread that goes on all the time. In turn it is alone (the
server is stopped by a signal, nobody asks) and followed by 20 clients and by none, for pieces of 3
s each. "ratio" is the median over the rounds of (step followed / step alone), beside it the ratio
of two pieces alone, which is the noise. Clients and server run on the same two cores as the
trainer here: what they take of its processor is in the ratio. "without clients' share" counts only
processor time of the trainer's thread a step.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import shutil
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
import statistics, sys, time
import torch, torchvitals
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters())
with torchvitals.watch(model, optimizer, run=sys.argv[1], every=10) as monitor:
    print("ready", flush=True)
    for line in sys.stdin:  # how many seconds to train; then it says what a step took
        wall, spent = [], []
        end = time.monotonic() + float(line)
        while time.monotonic() < end:
            begin, busy = time.perf_counter(), time.thread_time()
            loss = model(torch.randn(64, 256)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=loss)
            wall.append(time.perf_counter() - begin)
            spent.append(time.thread_time() - busy)
        print(1e3 * statistics.median(wall), 1e3 * statistics.fmean(spent), flush=True)
"""

PAINTED = """
new MutationObserver((_, watcher) => {
  for (const [name, chosen] of Object.entries(SELECTORS))
    if (!(name in seen) && document.querySelector(chosen)) {
      seen[name] = 0;
      requestAnimationFrame(() => requestAnimationFrame(() => (seen[name] = performance.now())));
    }
}).observe(document, {childList: true, subtree: true});
"""
SELECTORS = {
    "findings": {
        "useful": ".findings .u-wrap, .findings .finding",
        "findings": ".healthy, .finding",
    },
    "overview": {"overview": ".facts dl", "overview's first curve": ".grid .u-wrap"},
}
"""View → what is waited for in it → an element that is there then."""


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
        now, most = (int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
        return now, most

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


Arguments = dict[str, str | int]
"""Of a question to the server."""


def timed(client: httpx.Client, path: str, **arguments: str | int) -> float:
    begin = time.perf_counter()
    answer = client.get(path, params=arguments)
    took = 1e3 * (time.perf_counter() - begin)
    answer.raise_for_status()
    return took


def ask_often(
    server: Server,
    ident: str,
    seconds: float,
    seed: int,
    out: list[tuple[str, float]],
    bad: list[httpx.HTTPError],
) -> None:
    pick = random.Random(seed)
    end = time.monotonic() + seconds
    time.sleep(pick.random())
    with server.client() as client:
        while time.monotonic() < end:
            what = pick.choice(("series", "series", "series", "matrix", "overview", "run"))
            arguments: Arguments = {}
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


class Trainer:
    """A training that goes on for as long as it is told to."""

    def __init__(self, run: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAINING, str(run)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def step_ms(self, seconds: float) -> tuple[float, float]:
        """Median on the clock, and the thread's processor time a step, of so many seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(seconds, file=self.process.stdin, flush=True)
        wall, spent = map(float, self.process.stdout.readline().split())
        return wall, spent

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def followed(
    server: Server, ident: str, clients: int, trainer: Trainer, seconds: float
) -> tuple[float, float]:
    """A piece of the training with that many clients; the server stands still without any."""
    stop = threading.Event()
    threads = [threading.Thread(target=follow, args=(server, ident, stop)) for _ in range(clients)]
    if not clients:
        server.process.send_signal(signal.SIGSTOP)
    for thread in threads:
        thread.start()
    try:
        return trainer.step_ms(seconds)
    finally:
        stop.set()
        server.process.send_signal(signal.SIGCONT)
        for thread in threads:
            thread.join()


def trainer_ratio(folder: Path, clients: int, rounds: int, seconds: float) -> None:
    """Prints how much longer a step is while clients follow the run."""
    trainer = Trainer(folder / "net")
    trainer.step_ms(seconds)
    server = Server(folder)
    with server.client() as client:
        (ident,) = [run["id"] for run in client.get("runs").json()["runs"]]
    pieces = (0, clients, 0)
    taken = [
        [followed(server, ident, count, trainer, seconds) for count in pieces]
        for _ in range(rounds)
    ]
    trainer.end()
    server.stop()
    for what, at in (("on the clock", 0), ("without clients' share", 1)):
        ratio = statistics.median(2 * one[1][at] / (one[0][at] + one[2][at]) for one in taken)
        noise = statistics.median(one[2][at] / one[0][at] for one in taken)
        alone = statistics.median(one[0][at] for one in taken)
        print(
            f"a step of the trainer, {clients} clients, {what}: ratio {ratio:.3f}, noise "
            f"{noise:.3f} ({rounds} rounds of {seconds:g} s pieces; alone {alone:.2f} ms)",
            flush=True,
        )


def paint_ms(folder: Path, rounds: int) -> dict[str, float]:
    """What → the median time until it is drawn."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox"]
        )
        for view, selectors in [*SELECTORS.items()] * rounds:
            server = Server(folder)
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            page = context.new_page()
            chosen = json.dumps(selectors)
            page.add_init_script(f"const SELECTORS = {chosen}; window.seen = {{}}; {PAINTED}")
            page.goto(f"{server.base}/?token={TOKEN}#/{view}", wait_until="commit")
            end = time.monotonic() + 60
            while not all(seen := [page.evaluate(f"seen[{name!r}] ?? 0") for name in selectors]):
                assert time.monotonic() < end, "nothing was drawn"
                time.sleep(0.05)
            for name, ms in zip(selectors, seen, strict=True):
                found.setdefault(name, []).append(ms)
            context.close()
            server.stop()
        browser.close()
    return {name: statistics.median(times) for name, times in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="a folder to make, or find, the long run in")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=2_500)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=9, help="of the trainer's pieces")
    parser.add_argument("--piece", type=float, default=3.0, help="seconds of one of them")
    parser.add_argument("--no-paint", action="store_true", help="without a browser")
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

    def measure(what: str, limit: float | None, *asked: tuple[str, Arguments]) -> None:
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
        if not options.no_paint:
            for name, ms in paint_ms(folder, 5).items():
                report(f"paint: {name} (median of 5)", ms, "ms", 1500)
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

            def heat(stat: str) -> tuple[str, Arguments]:
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
            at: Arguments = {"kind": "gradient", "stat": "rms", "step": 54_321}
            measure("profile at a step", None, (f"{place}/profile", at))
        found: list[tuple[str, float]] = []
        errors: list[httpx.HTTPError] = []
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
        trainer_ratio(Path(temporary), options.clients, options.rounds, options.piece)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
