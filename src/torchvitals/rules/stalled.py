"""The run does not go on.

**Shows as** no step for ten times as long as a step takes, or a process that is gone.

**Why it hurts**: nobody notices a run that hangs until it should have ended.

**Judged by** the time since the last row of a run that says it is running: more than ten median
gaps and a minute; or a run whose process died without saying so.

**Known false alarms**: a long evaluation or checkpoint between two steps.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import ERROR, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num
from torchvitals.rules.thresholds import Thresholds

TITLE = "stalled or died"
NEEDS = ()
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Silence, or death."""
    if run.at is not None:
        return None
    status = run.stored.status
    _, times = run.stored.times()
    if status == "died":
        return _told(
            run,
            "the process is gone without a word: killed, or the machine went down",
            float("nan"),
            limits,
            died=True,
        )
    if status != "running" or len(times) < 3:
        return None
    gaps = np.diff(times[-64:])
    usual = max(float(np.median(gaps)), 1e-3)
    silent = run.now - float(times[-1])
    if silent < max(limits.stall_factor * usual, limits.stall_least_s):
        return None
    return _told(
        run,
        f"no step for {num(silent)} s, the median gap is {num(usual)} s",
        silent,
        limits,
        died=False,
    )


def _told(run: Run, text: str, silent: float, limits: Thresholds, *, died: bool) -> Finding:
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=["the process"],
        first_step=run.last_step,
        evidence=[
            evidence(
                f"after step {run.last_step}: {text}",
                Key("speed", "run", "steps_per_s"),
                step=run.last_step,
                value=silent,
                threshold=limits.stall_factor,
            )
        ],
        explanation=f"The run ended without finishing: {text}."
        if died
        else f"The run hangs: {text}.",
        causes=[
            cause(
                "out of memory (the kernel killed it)",
                "dmesg names the process",
                0.6 if died else 0.1,
            ),
            cause(
                "a deadlock: data workers, a collective that one rank never reached",
                "py-spy dump shows where it waits",
                0.1 if died else 0.6,
            ),
            cause("the machine was stopped or is overloaded", "its uptime, its load", 0.3),
        ],
        fix="look at the end of its log and at dmesg, then resume from the last checkpoint: "
        "watch(…, resume=True)"
        if died
        else "py-spy dump --pid PID shows where it hangs; set a timeout on loaders and collectives",
        change={"resume_from": run.last_step},
        confidence=0.95 if died else 0.8,
    )
