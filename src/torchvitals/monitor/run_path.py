"""Where a run goes when nobody says: ``runs/<date>-<name of the model>``."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from torch import nn


def default_path(model: nn.Module) -> Path:
    """A folder that is not there yet."""
    name = re.sub(r"\W+", "-", type(model).__name__).strip("-").lower()
    base = Path("runs") / f"{datetime.now():%Y-%m-%d-%H%M%S}-{name}"
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path
