"""Memory grows without end.

**Shows as** resident or device memory that rises steadily.

**Why it hurts**: the run ends in an out-of-memory kill, hours later.

**Judged by** the process's memory after the first quarter of its samples: more than 10 % and 30
MB up, rising in most samples, as much in the later half as in the earlier. Above 95 % of the
memory it is an error. Source: the stability guide.

**Known false alarms**: caches that fill up level off, and are silent then.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import ERROR, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, share
from torchvitals.rules.table import Line
from torchvitals.rules.thresholds import Thresholds

TITLE = "memory leak"
NEEDS = ()


WATCHED = (("process", "rss_bytes"), ("cuda0", "allocated_bytes"), ("gpu0", "memory_used_bytes"))


def check(run: Run, limits: Thresholds) -> Finding | None:
    """A steady rise of the process or of a device."""
    if not run.has("machine"):
        raise NotChecked("watch(…, machine=True) samples memory")
    short = False
    for site, stat in WATCHED:
        line = run.line("machine", site, stat).finite
        if len(line) < limits.leak_samples:
            short = short or bool(line)
            continue
        found = _rising(run, line, Key("machine", site, stat), limits)
        if found is not None:
            return found
    if short:
        raise NotChecked(f"needs {limits.leak_samples} samples of the memory")
    return None


def _rising(run: Run, line: Line, key: Key, limits: Thresholds) -> Finding | None:
    values = line.values[len(line) // 4 :]
    steps = line.steps[len(line) // 4 :]
    half = len(values) // 2
    growth = float(values[-1] - values[0])
    part = growth / max(float(values[0]), 1.0)
    up = float(np.mean(np.diff(values) > 0))
    late = float(values[-1] - values[half])
    if part < limits.leak_growth or growth < limits.leak_bytes:
        return None
    if up < limits.leak_steady or late < 0.3 * growth:
        return None
    a_step = growth / max(float(steps[-1] - steps[0]), 1.0)
    used = run.line("machine", "system", "memory_frac").finite
    full = bool(used) and float(used.values[-1]) > limits.memory_full
    return finding(
        __name__,
        run,
        severity=ERROR if full else WARNING,
        sites=["memory"],
        first_step=int(steps[0]),
        evidence=[
            evidence(
                f"memory grew by {num(growth / 1e6)} MB ({share(part)}) since step "
                f"{int(steps[0])}, "
                f"in {share(up)} of the samples; {num(a_step / 1e3)} kB a step",
                key,
                step=int(steps[-1]),
                value=part,
                threshold=limits.leak_growth,
            ),
        ],
        explanation=(
            f"The process grows by {num(a_step / 1e3)} kB a step, steadily: something is kept that "
            "should be let go."
        ),
        causes=[
            cause(
                "losses or outputs are kept with their graph (a list of loss instead of "
                "loss.item())",
                "appending loss.detach() instead stops the growth",
                0.7,
            ),
            cause("a cache or log in memory", "tracemalloc names the line that allocates", 0.4),
        ],
        fix="keep numbers, not tensors with a graph: losses.append(loss.item()) or loss.detach()",
        change={"detach_kept_losses": True},
        confidence=0.75,
    )
