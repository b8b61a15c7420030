"""Trackio, read back from its own storage."""

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from pathlib import Path
import numpy as np
from torchvitals.record import ROOT, Key, Row, RunInfo
from torchvitals.sinks import Trackio
from torchvitals.sinks.fan import Fan

fan = Fan([Trackio("proj")], RunInfo(name="gpt", config={"lr": 0.1}), Path())
header = (Key.scalar("loss"), Key("gradient", ROOT, "norm"))
for step in range(1, 6):
    fan.rows([Row(step, 1.0, header, np.array([1 / step, np.nan], dtype=np.float32))])
    fan.tick()
fan.close("finished")
assert not fan.outlets[0].num_dropped

from trackio.sqlite_storage import SQLiteStorage
assert SQLiteStorage.get_runs("proj") == ["gpt"]
found = SQLiteStorage.get_logs("proj", "gpt")
assert [line["step"] for line in found] == [1, 2, 3, 4, 5], found
assert abs(found[3]["Loss/train"] - 0.25) < 1e-6
"""


def test_it_is_in_trackios_own_storage(tmp_path: Path) -> None:
    """In a process of its own: Trackio fixes its folder when it is imported."""
    env = {"HOME": str(tmp_path), "TRACKIO_DIR": str(tmp_path / "trackio"), "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
