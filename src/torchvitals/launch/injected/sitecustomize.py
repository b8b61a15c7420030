"""Loaded by the interpreter of a watched script, before the script. Hides itself, and waits."""

import os
import sys
from importlib import import_module


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    try:
        from torchvitals.launch.begin import begin

        begin()
    except Exception as error:
        print(f"torchvitals: not watching this script: {error}", file=sys.stderr)
    # The one that would have been loaded without us; the import system wants one under this name.
    ours = sys.modules.pop("sitecustomize")
    try:
        import_module("sitecustomize")
    except ModuleNotFoundError as error:
        sys.modules["sitecustomize"] = ours
        if error.name != "sitecustomize":
            raise


_begin()
