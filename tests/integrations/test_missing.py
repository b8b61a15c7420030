"""Without the framework, importing its file says what to install."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"ignite", "lightning", "pytorch_lightning", "transformers",
                                      "accelerate"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
from importlib import import_module
from torchvitals.record import MissingExtra
for name in ("ignite", "lightning", "transformers", "accelerate"):
    try:
        import_module(f"torchvitals.integrations.{name}")
    except MissingExtra as error:
        print(error)
"""


def test_a_missing_framework() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=240
    )
    told = [line.rpartition("Install it with: ")[2] for line in done.stdout.splitlines()]
    assert told == [
        f"pip install {package}"
        for package in ("pytorch-ignite", "lightning", "transformers", "accelerate")
    ]
