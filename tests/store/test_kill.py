"""kill -9 at fifty random moments: what was committed is there, and the file is whole."""

import random
import time

from runs_for_tests import start_child

from torchvitals.record import Key
from torchvitals.store import open_run, verify

CHILD = """
import sys, numpy as np
from torchvitals.record import HistogramRow, Key, Row, RunInfo
from torchvitals.record.bins import NUM_BINS
from torchvitals.store import RunWriter
header = tuple(Key("gradient", f"layers.{i}", "rms") for i in range(100))
sites = (("gradient", "layers.0"), ("gradient", "layers.1"))
writer = RunWriter.create(sys.argv[1], RunInfo(name="child"), resume=True, seal_rows=16)
first = 0 if writer.last_step is None else writer.last_step + 1
print("start", flush=True)
for step in range(first, 1_000_000):
    values = np.full(100, step, np.float32)
    writer.append(Row(step, float(step), header, values))
    writer.append(Row(step, float(step), (Key.scalar(f"s{step % 3}"),), values[:1]))
    if step % 5 == 0:
        counts = np.full((2, NUM_BINS), step, np.uint32)
        writer.append_histograms(HistogramRow(step, float(step), sites, counts))
    if step % 3 == 0:
        writer.commit()
        print(step, flush=True)
"""


def test_fifty_kills(tmp_path):
    rng = random.Random(0)
    kills_with_data = 0
    for round_ in range(50):
        # Five runs, killed and resumed ten times each.
        run = tmp_path / f"run{round_ % 5}"
        child = start_child(CHILD, run)
        if round_ >= 5 and rng.random() < 0.9:
            child.stdout.readline()
        time.sleep(rng.random() * 0.15)
        child.kill()
        out, _ = child.communicate(timeout=30)
        numbers = [int(line) for line in out.splitlines() if line.isdigit()]
        if not (run / "run.vitals").exists():
            continue
        assert verify(run).problems == []
        if not numbers:
            continue
        kills_with_data += 1
        with open_run(run) as history:
            assert history.status == "died"
            steps, values = history.series(Key("gradient", "layers.57", "rms"))
            assert steps.tolist() == list(range(len(steps)))
            assert len(steps) > numbers[-1]
            assert values.tolist() == steps.tolist()
            scalar = history.series(f"s{numbers[-1] % 3}")
            assert scalar.steps[-1] >= numbers[-1]
            histogram = history.histograms("layers.1", "gradient")
            assert histogram.steps.tolist() == list(range(0, len(steps), 5))
            assert histogram.counts[:, 9].tolist() == histogram.steps.tolist()
    assert kills_with_data >= 25
