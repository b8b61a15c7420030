"""``events``: what happened. ``findings``: what is wrong. ``attention``: layers × heads."""

from __future__ import annotations

import re
from typing import Any, Final

from torchvitals.dashboard.answers.depth import in_depth_order
from torchvitals.dashboard.answers.rates import rate_events
from torchvitals.dashboard.findings import findings_of, source_of
from torchvitals.dashboard.question import Body, Question
from torchvitals.views.layers import measured_step

EVENT_ARGUMENTS: Final = ("kind",)
ATTENTION_ARGUMENTS: Final = ("step",)
MOST_EVENTS: Final = 5000

_HEAD = re.compile(r"(.+)\.head_(\d+)")


def events(question: Question) -> Body:
    """All events but findings, or those of the kinds asked for; jumps of the learning rate too."""
    kinds = question.asked.several("kind", 50)
    found: list[dict[str, Any]] = [
        {
            "step": one.step,
            "time": one.time,
            "kind": one.kind,
            "text": one.text,
            "data": dict(one.data),
        }
        for one in question.history.events()
        if (one.kind in kinds if kinds else one.kind != "finding")
    ]
    if not kinds or "lr" in kinds:
        found = sorted([*found, *rate_events(question.history)], key=lambda one: one["time"])
    shown = found[-MOST_EVENTS:]
    return question.json({"events": shown, "left_out": len(found) - len(shown)})


def findings(question: Question) -> Body:
    """What is wrong with the run, open ones first, the worst first."""
    found = findings_of(question.history)
    return question.json({"source": source_of(question.history), "findings": found})


def attention(question: Question) -> Body:
    """Every statistic of every head at one step."""
    history = question.history
    at = measured_step(history, "attention", question.asked.integer("step"))
    heads: dict[str, dict[int, dict[str, float]]] = {}
    stats: dict[str, None] = {}
    row = {} if at is None else history.row(at)
    for key in history.keys("attention"):
        match = _HEAD.fullmatch(key.site)
        if match is not None:
            stats[key.stat] = None
            values = heads.setdefault(match[1], {}).setdefault(int(match[2]), {})
            if key in row:
                values[key.stat] = row[key]
    layers = in_depth_order(heads, history.info)
    width = max((max(of) + 1 for of in heads.values()), default=0)

    def grid(stat: str) -> list[list[Any]]:
        return [[heads[name].get(i, {}).get(stat) for i in range(width)] for name in layers]

    return question.json(
        {"step": at, "layers": layers, "num_heads": width, "stats": {s: grid(s) for s in stats}}
    )
