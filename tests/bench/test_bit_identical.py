"""The benchmark's trainings give the same losses watched and not. W4 is left to bench/."""

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_losses_of_the_workloads_are_bit_identical():
    done = subprocess.run(
        [sys.executable, str(BENCH / "bit_identical.py"), "--workloads=W1,W2,W3", "--steps=2"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("identical") == 3
