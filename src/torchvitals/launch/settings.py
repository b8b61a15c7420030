"""What `vitals run` was asked for, carried to the interpreter that runs the script."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

CARRIER = "_TORCHVITALS_LAUNCH"
"""The environment variable that carries the settings. It is gone before the script starts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """One `vitals run`."""

    run: str | None = None
    """The run's folder."""
    every: int | None = None
    """Measure the first step and every that-many-th one."""
    guard: str | None = None
    """What to do about a bad step."""
    ui: bool = False
    """Serve the page while the script runs."""
    stop_on: str | None = None
    """Stop at findings of this level."""
    python_path: str | None = None
    """PYTHONPATH as the script is to see it."""
    launcher: bool = False
    """The program only starts others (torchrun, accelerate launch): they are to be watched."""

    def watch_arguments(self) -> dict[str, Any]:
        """Arguments of `watch()`, those that were given."""
        given = {
            "run": self.run,
            "every": self.every,
            "guard": self.guard,
            "ui": self.ui or None,
            "stop_on": self.stop_on,
        }
        return {name: value for name, value in given.items() if value is not None}

    def dump(self) -> str:
        """As the text of an environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Settings:
        """Read `dump()` back."""
        return cls(**json.loads(text))


def received() -> Settings | None:
    """The settings of this process, taken out of its environment; None when nobody sent any."""
    text = os.environ.pop(CARRIER, None)
    return None if text is None else Settings.load(text)
