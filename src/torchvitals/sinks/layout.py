"""`tag`: the name of a column in a tracker, laid out the way training guides group them.

Loss/train, Loss/validation               Optimization/lr, Optimization/update_ratio
Gradients/norm_global                     Performance/tokens_per_sec, Performance/step_s
Gradients/per_layer/<parameter>/norm      Performance/memory_mb (of the first GPU)
Gradients_Hist/per_layer/<parameter>      Parameters/norm_global
Updates/per_layer/<parameter>/ratio       Evaluation/<split>/<number>
"""

from __future__ import annotations

from collections.abc import Callable

from torchvitals.record import ROOT, SCALAR, Key

MEGA = 1e-6

ROOMS = {
    "gradient": "Gradients",
    "parameter": "Parameters",
    "update": "Updates",
    "activation": "Activations",
}
GLOBAL = {
    Key("gradient", ROOT, "norm"): "Gradients/norm_global",
    Key("gradient", ROOT, "clipped_norm"): "Gradients/clipped_norm_global",
    Key("gradient", ROOT, "clip_ratio"): "Gradients/clip_ratio",
    Key("parameter", ROOT, "norm"): "Parameters/norm_global",
    Key("update", ROOT, "norm"): "Updates/norm_global",
    Key("update", ROOT, "ratio"): "Optimization/update_ratio",
    Key("update", ROOT, "lr_ratio"): "Optimization/lr_ratio",
    Key("epoch", "loss", "mean"): "Loss/train_epoch",
    Key("machine", "gpu0", "allocated_bytes"): "Performance/memory_mb",
    Key("machine", "gpu0", "util_frac"): "Performance/gpu_utilization",
    Key("machine", "process", "rss_bytes"): "Performance/process_memory_mb",
    Key("machine", "system", "memory_frac"): "Performance/memory_frac",
    Key("summary", "monitor", "overhead_s"): "Performance/monitor_s",
    Key("clock", "step", "wall_s"): "Performance/step_s",
}
SPLITS = {"val": "validation", "valid": "validation", "dev": "validation"}
SUMMARIES = {"gradient_norm": "Gradients/summary", "update_ratio": "Updates/summary"}


def tag(key: Key) -> str:
    """Where the column stands in a tracker."""
    if key in GLOBAL:
        return GLOBAL[key]
    name = NAMES[key.kind](key) if key.kind in NAMES else None
    return str(key) if name is None else name


def shown(key: Key, value: float) -> float:
    """The value in the unit its tag names."""
    return value * MEGA if key.kind == "machine" and key.stat.endswith("_bytes") else value


def histogram_tag(kind: str, site: str) -> str:
    """Where the distribution of a tensor stands."""
    return f"{ROOMS.get(kind, kind)}_Hist/per_layer/{site}"


def _scalar(key: Key) -> str:
    if key.site in {"loss", "train_loss", "train/loss"}:
        return "Loss/train"
    return key.site if "/" in key.site else f"Scalars/{key.site}"


def _evaluation(key: Key) -> str:
    split = SPLITS.get(key.site, key.site)
    return f"Loss/{split}" if key.stat == "loss" else f"Evaluation/{split}/{key.stat}"


def _optimizer(key: Key) -> str | None:
    if key.stat not in {"lr", "weight_decay"}:
        return None
    return f"Optimization/{key.stat}" + ("" if key.site == "group0" else f"_{key.site}")


def _layer(key: Key) -> str:
    return f"{ROOMS[key.kind]}/per_layer/{key.site}/{key.stat}"


def _summary(key: Key) -> str | None:
    return f"{SUMMARIES[key.site]}/{key.stat}" if key.site in SUMMARIES else None


def _clock(key: Key) -> str:
    return f"Performance/time/{key.site}_{key.stat.removeprefix('wall_')}"


def _speed(key: Key) -> str:
    return f"Performance/{key.stat.replace('_per_s', '_per_sec')}"


def _machine(key: Key) -> str:
    return f"Performance/{key.site}_{key.stat.replace('_bytes', '_mb')}"


NAMES: dict[str, Callable[[Key], str | None]] = {
    SCALAR: _scalar,
    "eval": _evaluation,
    "optimizer": _optimizer,
    **dict.fromkeys(ROOMS, _layer),
    "summary": _summary,
    "clock": _clock,
    "speed": _speed,
    "machine": _machine,
}
"""How columns of each kind are named; None leaves them their own name."""
