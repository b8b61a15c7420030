"""`python bench/faults`: a folder that is a program. What it does stands in program.py."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch; workers inherit both
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import_module("faults.program").main()
