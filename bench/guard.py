"""What the guard costs, what it saves, and whether it keeps quiet on healthy trainings.

    python bench/guard.py cost       beside clip_grad_norm_(foreach=True), on the four workloads
    python bench/guard.py benefit    5 faults × 4 models: final loss with and without the guard
    python bench/guard.py healthy    trainings that nothing is wrong with: was any step touched?

Without a word: all three.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from guard_runs import FAULTS, HEALTHY, SICK, Fault, train
from torchvitals import Guard
from torchvitals.record import GuardStop
from workloads import WORKLOADS, size

LIMIT = 1.2
CLOSE = 0.05
"""A final loss at most that much above the clean run's counts as saved."""


class Idle(torch.optim.Optimizer):
    """Holds parameters and does nothing: what is left is the guard's own time."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    def step(self, closure: Any = None) -> Any:
        """Nothing."""


def timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def cost(names: list[str], rounds: int) -> list[dict[str, Any]]:
    """Time a step: clipping, the guard, and the guard with states kept every 25 steps."""
    lines = []
    for name in names:
        gc.collect()
        model = WORKLOADS[name].model()
        parameters = list(model.parameters())
        generator = torch.Generator().manual_seed(0)
        for parameter in parameters:
            parameter.grad = 1e-3 * torch.randn(parameter.shape, generator=generator)
        bare, guarded = Idle(parameters), Idle(parameters)
        guard = Guard("skip", decide="host").attach(guarded, model)
        clips, guards = [], []

        clip = partial(torch.nn.utils.clip_grad_norm_, parameters, 1e9, foreach=True)
        # The guard reads before a clipping call; here the two are compared, not joined.
        if guard._catcher is not None:
            guard._catcher.remove()
        calls: dict[str, Callable[[], Any]]
        calls = {"clip": clip, "guard": guarded.step, "bare": bare.step}
        for number in range(rounds + 3):
            pair = {"clip": 0.0, "guard": 0.0, "bare": 0.0}
            order = ["clip", "guard", "bare"] if number % 2 else ["guard", "clip", "bare"]
            for which in order:
                pair[which] = timed(calls[which])
            if number >= 3:
                clips.append(pair["clip"])
                guards.append(pair["guard"] - pair["bare"])
        guard.detach()
        kept = keeping(model, parameters)
        ratios = [g / c for g, c in zip(guards, clips, strict=True)]
        clip_s, guard_s = statistics.median(clips), statistics.median(guards)
        lines.append(
            {
                "workload": name,
                "parameters": size(model)[0],
                "tensors": size(model)[1],
                "clip_ms": 1e3 * clip_s,
                "guard_ms": 1e3 * guard_s,
                "ratio": statistics.median(ratios),
                "state_ms": 1e3 * kept,
                "with_states": statistics.median(ratios) + kept / 25 / clip_s,
            }
        )
        print(lines[-1], flush=True)
        del model, parameters, bare, guarded, guard
    return lines


def keeping(model: nn.Module, parameters: Sequence[Tensor]) -> float:
    """Seconds to keep one state: weights and both moments of AdamW, into memory that is there."""
    from torchvitals.guard.snapshots import Snapshots

    optimizer = torch.optim.AdamW(parameters)
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.tensor(1.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    states = Snapshots([optimizer], [model], [], every=1, keep=1, rng=False, device=None)
    states.take(0)
    return statistics.median(timed(lambda: states.take(1)) for _ in range(3))


def benefit(seeds: list[int]) -> list[dict[str, Any]]:
    """Each model, fault and seed: clean, bare and guarded."""
    lines = []
    for model, make in SICK.items():
        for seed in seeds:
            clean = train(make(seed))
            for kind in FAULTS:
                run = make(seed)
                bare = final(run, Fault(kind, run), None)
                run, guard = make(seed), Guard()
                guarded = final(run, Fault(kind, run), guard)
                lines.append(
                    {
                        "model": model, "fault": kind, "seed": seed, "clean": clean,
                        "bare": bare, "guarded": guarded,
                        "did": {k: v for k, v in guard.counts.items() if v},
                    }
                )  # fmt: skip
                print(lines[-1], flush=True)
    return lines


def final(run: Any, fault: Fault, guard: Guard | None) -> float:
    try:
        found = train(run, fault=fault, guard=guard)
    except GuardStop:
        return math.inf
    return found if math.isfinite(found) else math.inf


def healthy(seeds: list[int], kinds: str) -> list[dict[str, Any]]:
    """Each kind and seed: what the guard did."""
    lines = []
    for seed in seeds:
        for kind in (kind for kind in HEALTHY if re.search(kinds, kind)):
            guard = Guard()
            try:
                found = train(HEALTHY[kind](seed), guard=guard)
            except GuardStop:
                found = math.inf
            did = {k: v for k, v in guard.counts.items() if v and k not in ("warn", "scaler_skip")}
            lines.append({"kind": kind, "seed": seed, "final": found, "did": did})
            print(lines[-1], flush=True)
    return lines


def percent(value: float, base: float) -> str:
    if not math.isfinite(value) or value > 11 * base:
        return "lost"
    return f"{100 * (value / base - 1):+.1f} %"


def cost_table(lines: list[dict[str, Any]]) -> list[str]:
    table = [
        "| workload | parameters | tensors | clip_grad_norm_ ms | guard ms | guard / clip "
        "| with states kept every 25 steps |",
        "|---|---|---|---|---|---|---|",
    ]
    table += [
        f"| {x['workload']} | {x['parameters'] / 1e6:.1f} M | {x['tensors']} "
        f"| {x['clip_ms']:.2f} | {x['guard_ms']:.2f} | {x['ratio']:.2f} | {x['with_states']:.2f} |"
        for x in lines
    ]
    worst = max(x["ratio"] for x in lines)
    verdict = "holds" if worst <= LIMIT else "DOES NOT HOLD"
    return [*table, "", f"Limit {LIMIT:g}: {verdict} (worst {worst:.2f})."]


def benefit_table(lines: list[dict[str, Any]]) -> list[str]:
    table = [
        "| model | fault | without the guard | with it | what it did |",
        "|---|---|---|---|---|",
    ]
    for model in dict.fromkeys(x["model"] for x in lines):
        for kind in FAULTS:
            some = [x for x in lines if x["model"] == model and x["fault"] == kind]
            bare = ", ".join(percent(x["bare"], x["clean"]) for x in some)
            good = ", ".join(percent(x["guarded"], x["clean"]) for x in some)
            did = ", ".join(
                " ".join(f"{num} {what}" for what, num in x["did"].items()) or "nothing"
                for x in some
            )
            table.append(f"| {model} | {kind} | {bare} | {good} | {did} |")
    saved = sum(x["guarded"] <= (1 + CLOSE) * x["clean"] for x in lines)
    alone = sum(x["bare"] <= (1 + CLOSE) * x["clean"] for x in lines)
    return [
        *table,
        "",
        f"Final loss at most {100 * CLOSE:g} % above the clean run's: {saved} of {len(lines)} runs "
        f"with the guard ({100 * saved / len(lines):.0f} %), {alone} without it "
        f"({100 * alone / len(lines):.0f} %).",
    ]


def healthy_table(lines: list[dict[str, Any]]) -> list[str]:
    table = ["| kind | runs | untouched | what it did |", "|---|---|---|---|"]
    for kind in dict.fromkeys(x["kind"] for x in lines):
        some = [x for x in lines if x["kind"] == kind]
        untouched = sum(not x["did"] for x in some)
        did = "; ".join(
            " ".join(f"{num} {what}" for what, num in x["did"].items()) for x in some if x["did"]
        )
        table.append(f"| {kind} | {len(some)} | {untouched} | {did} |")
    quiet = sum(not x["did"] for x in lines)
    share = 100 * quiet / len(lines)
    return [*table, "", f"Untouched: {quiet} of {len(lines)} runs ({share:.1f} %)."]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, default=2, help="of each model and fault")
    parser.add_argument("--healthy-seeds", type=int, default=10)
    parser.add_argument("--kinds", default="", help="healthy ones that match this regex")
    parser.add_argument("--workloads", default="W1,W2,W3,W4")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="tables as Markdown, figures as JSON beside it")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.disable(logging.WARNING)
    parts = options.parts or ["cost", "benefit", "healthy"]
    found: dict[str, Any] = {}
    pages = [
        f"torch {torch.__version__}, {options.threads} thread(s), Python "
        f"{platform.python_version()}",
        "",
    ]
    if "cost" in parts:
        found["cost"] = cost(options.workloads.split(","), options.rounds)
        pages += [*cost_table(found["cost"]), ""]
    if "benefit" in parts:
        found["benefit"] = benefit(list(range(options.seeds)))
        pages += [*benefit_table(found["benefit"]), ""]
    if "healthy" in parts:
        found["healthy"] = healthy(list(range(options.healthy_seeds)), options.kinds)
        pages += [*healthy_table(found["healthy"]), ""]
    print("\n".join(pages))
    if options.out:
        options.out.write_text("\n".join(pages))
        options.out.with_suffix(".json").write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
