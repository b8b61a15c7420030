"""The first thing that happens in a watched script's interpreter. Imports neither torch nor numpy.

Whatever the script sets before it imports torch (threads, devices) must still have its effect.
"""

from __future__ import annotations

import os
from dataclasses import replace

from torchvitals.launch.settings import CARRIER, Settings, received


def begin() -> None:
    """Put the environment back as the script is to see it, and wait for torch."""
    settings = received()
    if settings is None:
        return
    if settings.launcher:
        # The processes it starts are the training: they find the same environment as we did.
        os.environ[CARRIER] = replace(settings, launcher=False).dump()
        return
    if settings.python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = settings.python_path
    from torchvitals.launch.awaiting import when_imported

    when_imported("torch", lambda: _attach(settings))


def _attach(settings: Settings) -> None:
    from torchvitals.launch.watcher import Watcher

    Watcher(settings).open()
