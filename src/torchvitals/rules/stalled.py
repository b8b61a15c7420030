"""The run does not go on.

**Shows as** no step for ten times as long as a step takes, or a process that is gone.

**Why it hurts**: nobody notices a run that hangs until it should have ended.

**Judged by** the time since the last row, or since a resume, of a run that says it is running: more
than ten median gaps and a minute; or a run whose process died without saying so. On the machine it
runs on, the lock of its file tells that; from another machine only that its heartbeat, once a
second, has been missing for a minute. `vitals watch` asks this rule while the run goes on.

**Known false alarms**: a long evaluation or checkpoint between two steps; from another machine,
clocks that differ by a minute, and a network that is down.
"""

from __future__ import annotations

import socket

import numpy as np

from torchvitals.record import Evidence, Finding, Key
from torchvitals.rules.rule import ERROR, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "stalled or died"
NEEDS = ()
CHEAP = True

SITE = "the process"


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Silence, or death."""
    if run.at is not None:
        return None
    status = run.stored.status
    if status == "died":
        return _died(run, limits)
    return _stalled(run, limits) if status == "running" else None


def _stalled(run: Run, limits: Thresholds) -> Finding | None:
    _, times = run.stored.times()
    # Without a factor the usual gap is not asked for, and the first step may be waited for too.
    if limits.stall_factor > 0 and len(times) < 3:
        return None
    newest = run.stored.attempts[-1]
    usual = max(float(np.median(np.diff(times[-64:]))), 1e-3) if len(times) > 1 else 0.0
    # A run that was resumed may take long to load: its silence begins when it began.
    silent = run.now - max([newest.started, *times[-1:].tolist()])
    limit = max(limits.stall_factor * usual, limits.stall_least_s)
    if silent < limit:
        return None
    text = f"no step for {num(silent)} s"
    text += f", the median gap is {num(usual)} s" if usual else ""
    pid = f"{newest.pid}" if _is_here(newest.host) else f"{newest.pid} on {newest.host}"
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=[SITE],
        first_step=run.last_step,
        evidence=[_evidence(run, text, silent, limit)],
        explanation=f"The run hangs: {text}.",
        causes=[
            cause(
                "a deadlock: data workers, a collective that one rank never reached",
                "py-spy dump shows where it waits",
                0.6,
            ),
            cause("the machine was stopped or is overloaded", "its uptime, its load", 0.3),
            cause("out of memory (the kernel killed it)", "dmesg names the process", 0.1),
        ],
        fix=f"py-spy dump --pid {pid} shows where it hangs; set a timeout on loaders and "
        "collectives",
        change={"resume_from": run.last_step},
        confidence=0.8,
    )


def _died(run: Run, limits: Thresholds) -> Finding:
    newest = run.stored.attempts[-1] if run.stored.attempts else None
    host, beat = (newest.host, newest.heartbeat) if newest is not None else ("", run.now)
    here = _is_here(host)
    text = (
        "its process is gone without a word: it was killed, or the machine went down"
        if here
        else f"no heartbeat from {host} any more; whether its process is gone or only the way to "
        "its file can't be told from this machine"
    )
    memory = run.line("machine", "system", "memory_frac").values
    full = len(memory) > 0 and float(memory[-1]) >= limits.memory_full
    found = [_evidence(run, text, max(run.now - beat, 0.0), None)]
    if full:
        found.append(
            evidence(
                f"the machine's memory was {share(float(memory[-1]))} full when it was last seen",
                Key("machine", "system", "memory_frac"),
                step=run.last_step,
                value=float(memory[-1]),
                threshold=limits.memory_full,
            )
        )
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=[SITE],
        first_step=run.last_step,
        evidence=found,
        explanation=f"The run died: {text}.",
        causes=[
            cause(
                "out of memory (the kernel killed it)",
                "dmesg names the process",
                0.8 if full else 0.6,
            ),
            cause("the machine was stopped or is overloaded", "its uptime, its load", 0.3),
            cause(
                "a deadlock: data workers, a collective that one rank never reached",
                "py-spy dump shows where it waits",
                0.1,
            ),
        ],
        fix="look at the end of its log and at dmesg, then resume from the last checkpoint: "
        "watch(…, resume=True)",
        change={"resume_from": run.last_step},
        confidence=0.95 if here else 0.8,
    )


def _evidence(run: Run, text: str, silent: float, limit: float | None) -> Evidence:
    """What was seen; the value is how long the run has been silent, in seconds."""
    return evidence(
        f"after step {run.last_step}: {text}",
        Key("speed", "run", "steps_per_s"),
        step=run.last_step,
        value=silent,
        threshold=limit,
    )


def _is_here(host: str) -> bool:
    return host in ("", socket.gethostname())
