"""Names of metrics for Prometheus and OpenTelemetry: a family a stat, the site as a label."""

from __future__ import annotations

import re

from torchvitals.record import SCALAR, Key

_NOT_A_NAME = re.compile(r"[^a-z0-9_]+")
PREFIX = "torchvitals"


def family(key: Key, joint: str = "_") -> str:
    """``torchvitals_gradient_norm``; numbers of the user's own are ``torchvitals_scalar``."""
    parts = [key.kind] if key.kind == SCALAR else [key.kind, key.stat]
    return joint.join([PREFIX, *(_NOT_A_NAME.sub("_", part.lower()) for part in parts)])
