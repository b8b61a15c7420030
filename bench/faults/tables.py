"""What came out, on the terminal and as the table of docs/diagnosis.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from faults.places import Place
from torchvitals.testing import CASES
from torchvitals.testing.scoring import Score, Verdict

GOALS = {
    "found": (">=", 0.97),
    "top1": (">=", 0.85),
    "top3": (">=", 0.95),
    "errors_on_healthy": ("<=", 0.02),
    "alarms_on_healthy": ("<=", 0.10),
    "prompt_in_time": (">=", 1.0),
    "median_delay": ("<=", 50),
    "fixed": (">=", 0.80),
}
ANCHORS = """\
Published detectors, found / named: DEFault .94/.63, UMLAUT .91/.27, DeepFD .90/.52, DeepLocalize
.69/.13, AutoTrainer .23/.19 (52 real programs). Alarms on models labelled normal: UMLAUT 96 %,
DeepLocalize 72 %, DeepDiagnosis 36 %."""


def show_cases() -> None:
    for case in CASES.values():
        fault = case.fault
        if fault is None:
            print(f"{case.key:32} healthy")
        else:
            fix = ", numeric fix" if fault.numeric_fix else ""
            print(f"{case.key:32} {' | '.join(fault.names)}   ({fault.harms}{fix})")


def show_harms(found: Mapping[Place, str | None]) -> None:
    """Which faults did what."""
    faulty = {place: lost for place, lost in found.items() if CASES[place.case].fault is not None}
    for place, lost in faulty.items():
        print(f"{place.case:32} seed {place.seed:<4} {lost or 'NO HARM'}")
    num = sum(lost is None for lost in faulty.values())
    print(f"{len(faulty)} runs with a fault, {num} without harm.")


def show_table(verdicts: Iterable[Verdict]) -> None:
    """One line a fault, one a healthy case with alarms."""
    by_case: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_case.setdefault(verdict.case, []).append(verdict)
    print(f"\n{'fault':32} sick found  top1  top3  delay fixed  said")
    for key, group in by_case.items():
        sick = [v for v in group if v.harm is not None]
        if not sick:
            continue
        waits = sorted(
            w
            for v in sick
            if (w := v.live_delay if v.live_delay is not None else v.delay) is not None
        )
        said = Counter(name for v in sick for name in v.names[:3])
        fixes = [v.fixed for v in sick if v.fixed is not None]
        print(
            f"{key:32} {len(sick):4} {sum(v.found for v in sick):5} "
            f"{sum(v.rank == 1 for v in sick):5} "
            f"{sum(v.rank is not None and v.rank <= 3 for v in sick):5} "
            f"{waits[len(waits) // 2] if waits else '-':>6} "
            f"{f'{sum(fixes)}/{len(fixes)}' if fixes else '-':>5}  "
            + ", ".join(f"{name} {count}" for name, count in said.most_common(4))
        )
    print(f"\n{'healthy':32} runs error alarm  said")
    for key, group in by_case.items():
        well = [v for v in group if v.harm is None]
        if well:
            said = Counter(name for v in well for name in v.names)
            print(
                f"{key:32} {len(well):4} {sum(v.num_errors > 0 for v in well):5} "
                f"{sum(v.found for v in well):5}  "
                + ", ".join(f"{name} {count}" for name, count in said.most_common(4))
            )


def show_score(total: Score, split: str) -> None:
    """The totals beside their goals."""
    print(f"\n{split}: {total.num_sick} sick runs, {total.num_healthy} healthy ones")
    for name, (sign, goal) in GOALS.items():
        value = getattr(total, name)
        if math.isnan(value):
            print(f"  {name:20}      –   (goal {sign} {goal:g})")
            continue
        met = value >= goal if sign == ">=" else value <= goal
        print(f"  {name:20} {value:6.3f}   (goal {sign} {goal:g}){'' if met else '  MISSED'}")
    print(ANCHORS)


def as_markdown(verdicts: Iterable[Verdict], total: Score) -> str:
    """The table of docs/diagnosis.md: goals and totals, then one line a fault."""
    shown = {
        "found": "harmful faults found",
        "top1": "named right first",
        "top3": "named right among the first three",
        "errors_on_healthy": "healthy runs with an error",
        "alarms_on_healthy": "healthy runs with a warning or an error",
        "prompt_in_time": "wiring and non-finite faults named within 2 monitored steps",
        "median_delay": "the others: steps to the name (median)",
    }
    lines = ["| | goal | reached |", "|---|---|---|"]
    for name, text in shown.items():
        sign, goal = GOALS[name]
        value = getattr(total, name)
        share = name != "median_delay"
        wanted = f"{goal:.0%}" if share else f"{goal:g}"
        lines.append(
            f"| {text} | {'≥' if sign == '>=' else '≤'} {wanted} | "
            + ("–" if math.isnan(value) else f"{value:.1%}" if share else f"{value:g}")
            + " |"
        )
    lines += ["", "| fault | runs | found | first | in three | steps | said |", "|" + "---|" * 7]
    told = list(verdicts)
    for key in dict.fromkeys(v.case for v in told):
        sick = [v for v in told if v.case == key and v.harm is not None]
        if not sick:
            continue
        waits = sorted(
            w
            for v in sick
            if (w := v.live_delay if v.live_delay is not None else v.delay) is not None
        )
        said = Counter(v.names[0] if v.names else "nothing" for v in sick)
        lines.append(
            f"| {key} | {len(sick)} | {sum(v.found for v in sick)} | "
            f"{sum(v.rank == 1 for v in sick)} | "
            f"{sum(v.rank is not None and v.rank <= 3 for v in sick)} | "
            f"{waits[len(waits) // 2] if waits else '–'} | "
            + ", ".join(f"`{name}`" for name, _ in said.most_common(2))
            + " |"
        )
    alarms = [v for v in told if v.harm is None and v.found]
    lines += ["", f"Healthy runs: {sum(v.harm is None for v in told)}. Alarms on them: "]
    lines[-1] += "; ".join(f"{v.case} ({', '.join(v.names)})" for v in alarms) or "none"
    return "\n".join(lines) + ".\n"
