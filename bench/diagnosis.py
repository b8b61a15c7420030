"""The benchmark of injected faults: train the zoo, diagnose every run file, score.

    python bench/diagnosis.py --list
    python bench/diagnosis.py --split tune --train-only
    python bench/diagnosis.py --split tune
    python bench/diagnosis.py --split test --rerun-fixes --replay

Trained runs are kept under --runs by (version, case, seed) and not trained again; give another
--version when the trainings or the monitor have changed. Seeds 0–2, 100 and 101 were or are
for tuning thresholds, 102–104 for reporting: public figures count only on the latter.

Two doses: where a fault has two, odd seeds get the smaller one. A fault counts only where it did
harm against the clean run of the same seed; otherwise its run joins the healthy ones.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch; workers inherit it

import argparse
import hashlib
import json
import math
import multiprocessing
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torchvitals.record.finding import Finding
from torchvitals.store.history import History, open_run
from torchvitals.testing import CASES, Case, Outcome, as_good, harm, run_case
from torchvitals.testing.scoring import Score, Verdict, counted, first_right, judge, score

SEEDS = {"tune": (0, 1, 2, 100, 101), "test": (102, 103, 104)}
HERE = Path(__file__).parent
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


@dataclass(frozen=True)
class Place:
    """Where a case's runs of one seed are kept."""

    root: Path
    case: str
    seed: int

    @property
    def folder(self) -> Path:
        return self.root / self.case / str(self.seed)

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def outcome(self) -> Outcome | None:
        path = self.folder / "outcome.json"
        return Outcome.from_json(json.loads(path.read_text())) if path.exists() else None

    def rerun(self, change: Mapping[str, Any]) -> Place:
        """Where the rerun with this change is kept."""
        digest = hashlib.sha256(json.dumps(change, sort_keys=True, default=str).encode())
        return Place(self.root / "fixes" / digest.hexdigest()[:12], self.case, self.seed)


def train(place: Place, change: Mapping[str, Any] | None = None) -> Outcome:
    """Train, unless it is there."""
    there = place.outcome()
    if there is not None:
        return there
    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="torch")
    shutil.rmtree(place.folder, ignore_errors=True)
    place.folder.mkdir(parents=True)
    outcome = run_case(place.case, place.seed, place.run, change=change)
    path = place.folder / "outcome.json"
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(outcome.to_json()))
    partial.rename(path)
    return outcome


def pooled(
    jobs: int, what: str, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Do the tasks in `jobs` processes; one line each as they are done. Failures are told."""
    if not tasks:
        return
    begun = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    failed = 0
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = {pool.submit(function, *task): task for task in tasks}
        for done, future in enumerate(as_completed(waiting), 1):
            task = waiting[future]
            error = future.exception()
            spent = time.perf_counter() - begun
            left = spent / done * (len(tasks) - done)
            state = f"[{done:3}/{len(tasks)}] {spent:5.0f} s, {left:5.0f} s left"
            name = task[0] if isinstance(task[0], Place) else task[0][0]
            if error is not None:
                failed += 1
                print(f"{state}  {what} {name.case} seed {name.seed} FAILED: {error!r}", flush=True)
                continue
            print(f"{state}  {what} {name.case} seed {name.seed}", flush=True)
            yield task, future.result()
    if failed:
        print(f"{failed} of {len(tasks)} failed.", file=sys.stderr)


def chosen(only: Sequence[str]) -> list[Case]:
    """The cases asked for, and the clean ones they are compared with."""
    if not only:
        return list(CASES.values())
    keys: dict[str, None] = {}
    for wanted in only:
        hits = [
            case
            for case in CASES.values()
            if case.key == wanted
            or case.key.startswith(wanted)
            or (case.fault is not None and wanted in {str(case.fault.number), case.fault.id})
        ]
        if not hits:
            raise SystemExit(f"No case is called {wanted!r}; --list shows all.")
        for case in hits:
            if case.reference is not None:
                keys[case.reference] = None
            keys[case.key] = None
    return [CASES[key] for key in keys]


def show_cases() -> None:
    for case in CASES.values():
        fault = case.fault
        if fault is None:
            print(f"{case.key:32} healthy")
        else:
            fix = ", numeric fix" if fault.numeric_fix else ""
            print(f"{case.key:32} {' | '.join(fault.names)}   ({fault.harms}{fix})")


def diagnose_run(path: Path, at: int | None = None, *, cli: bool = False) -> list[Finding]:
    """The top-level findings, ranked."""
    if cli:
        command = [str(Path(sys.executable).with_name("vitals")), "diagnose", str(path), "--json"]
        if at is not None:
            command += ["--at", str(at)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise RuntimeError(done.stderr.strip()[-500:])
        return [Finding.from_json(each) for each in json.loads(done.stdout)["findings"]]
    from torchvitals.diagnosis import diagnose

    with open_run(path) as history:
        return list(diagnose(history, at=at).findings)


def raised(history: History, names: Sequence[str]) -> int | None:
    """The step at which the run itself raised a right finding."""
    steps = [event.step for event in history.events("finding") if event.data.get("name") in names]
    return min(steps, default=None)


def replayed(place: Place, onset: int, every: int, last: int, names: Sequence[str]) -> int | None:
    """The first of some monitored steps at which a diagnosis of what was there names it right."""
    first = math.ceil(onset / every) * every
    for ahead in (0, 1, 2, 4, 6, 8, 10, 15, 20, 30, 40, 60, 80, 120):
        step = first + ahead * every
        if step > last:
            break
        if first_right(diagnose_run(place.run, at=step), names) is not None:
            return step
    return None


def diagnose(
    place: Place, harmed: str | None, cli: bool, replay: bool
) -> tuple[Verdict, list[Any], float]:
    """The verdict, the findings as JSON, and the seconds the diagnosis took."""
    case = CASES[place.case]
    outcome = place.outcome()
    assert outcome is not None
    begun = time.perf_counter()
    findings = diagnose_run(place.run, cli=cli)
    seconds = time.perf_counter() - begun
    fault = case.fault
    names = fault.names if fault is not None else ()
    every = int(outcome.settings.get("every", 5))
    raised_at = None
    if fault is not None and harmed is not None:
        if replay:  # the same on a busy machine as on an idle one
            raised_at = replayed(place, outcome.onset or 1, every, outcome.steps, names)
        else:
            with open_run(place.run) as history:
                raised_at = raised(history, names)
    verdict = judge(
        findings,
        case=place.case,
        seed=place.seed,
        right=names,
        harm=harmed,
        fault=fault.number if fault is not None else None,
        prompt=fault is not None and fault.prompt,
        numeric_fix=fault is not None and fault.numeric_fix,
        onset=outcome.onset,
        raised_at=raised_at,
        every=every,
    )
    return verdict, [finding.to_json() for finding in findings], seconds


def harms(places: Iterable[Place]) -> dict[Place, str | None]:
    """What each faulty run lost against its clean one; None where nothing."""
    found: dict[Place, str | None] = {}
    for place in places:
        case, outcome = CASES[place.case], place.outcome()
        if outcome is None:
            continue
        if case.fault is None or case.reference is None:
            found[place] = None
            continue
        clean = Place(place.root, case.reference, place.seed).outcome()
        if clean is not None:  # without it nobody knows whether harm was done
            found[place] = harm(outcome, clean, case.fault.harms)
    return found


def show_harms(found: Mapping[Place, str | None]) -> None:
    """Which faults did what."""
    faulty = {place: lost for place, lost in found.items() if CASES[place.case].fault is not None}
    for place, lost in faulty.items():
        print(f"{place.case:32} seed {place.seed:<4} {lost or 'NO HARM'}")
    num = sum(lost is None for lost in faulty.values())
    print(f"{len(faulty)} runs with a fault, {num} without harm.")


def rerun_fixes(
    verdicts: dict[Place, Verdict], findings: Mapping[Place, list[Any]], jobs: int
) -> None:
    """Apply what was recommended, train again, compare with the clean run; fills in `fixed`."""
    tasks = []
    for place, verdict in verdicts.items():
        if verdict.harm is None or not verdict.numeric_fix:
            continue
        change = recommended([Finding.from_json(each) for each in findings[place]], place)
        verdicts[place] = replace(verdict, fixed=False)
        if change:
            tasks.append((place.rerun(change), change, place))
    done = pooled(jobs, "reran", _rerun, tasks)
    for (_, _, place), outcome in done:
        clean = Place(place.root, CASES[place.case].reference or "", place.seed).outcome()
        good = clean is not None and bool(outcome.changed) and as_good(outcome, clean)
        verdicts[place] = replace(verdicts[place], fixed=good)


def _rerun(place: Place, change: Mapping[str, Any], _original: Place) -> Outcome:
    return train(place, change)


def recommended(findings: Sequence[Finding], place: Place) -> Mapping[str, Any]:
    """The change of the first finding, as a user would follow it; else of the first right one."""
    told = counted(findings)
    fault = CASES[place.case].fault
    right = first_right(findings, fault.names) if fault is not None else None
    for finding in (*told[:1], *([right] if right is not None else [])):
        if finding.change:
            return finding.change
    return {}


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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--split", choices=SEEDS, default="tune")
    add("--seeds", help="other seeds than the split's, with commas")
    add(
        "--only",
        action="append",
        default=[],
        metavar="CASE",
        help="a case, how its key begins, or a fault's number; may be repeated",
    )
    add("--runs", type=Path, default=HERE / "zoo-runs", help="where runs are kept")
    add("--version", default="1", help="of trainings and monitor, given by hand")
    add("--jobs", type=int, default=2)
    add("--list", action="store_true", help="show all cases and the rules that name them right")
    add("--train-only", action="store_true", help="train, show the harm, stop")
    add("--no-train", action="store_true", help="diagnose the runs that are there")
    add("--cli", action="store_true", help="diagnose with the command `vitals`")
    add(
        "--replay", action="store_true", help="when could it have been named? Diagnose up to a step"
    )
    add("--rerun-fixes", action="store_true", help="train again with the recommended change")
    add("--markdown", type=Path, help="write the table of docs/diagnosis.md here")
    add("--json", type=Path, help="where the results go; default beside the runs")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    if asked.list:
        show_cases()
        return
    seeds = [int(s) for s in asked.seeds.split(",")] if asked.seeds else SEEDS[asked.split]
    root = asked.runs / asked.version
    cases = chosen(asked.only)
    places = [Place(root, case.key, seed) for seed in seeds for case in cases]
    if not asked.no_train:
        missing = [(place,) for place in places if place.outcome() is None]
        for _ in pooled(asked.jobs, "trained", train, missing):
            pass
    lost = harms(places)
    if len(lost) < len(places):
        print(f"{len(places) - len(lost)} of {len(places)} runs are not there.", file=sys.stderr)
    if asked.train_only:
        show_harms(lost)
        return
    tasks = [(place, lost[place], asked.cli, asked.replay) for place in places if place in lost]
    verdicts: dict[Place, Verdict] = {}
    findings: dict[Place, list[Any]] = {}
    slowest = 0.0
    for task, (verdict, told, seconds) in pooled(asked.jobs, "diagnosed", diagnose, tasks):
        verdicts[task[0]], findings[task[0]] = verdict, told
        slowest = max(slowest, seconds)
    verdicts = {place: verdicts[place] for place in places if place in verdicts}
    if asked.rerun_fixes:
        rerun_fixes(verdicts, findings, asked.jobs)
    show_table(verdicts.values())
    total = score(verdicts.values())
    show_score(total, asked.split if not asked.seeds else f"seeds {asked.seeds}")
    print(f"The slowest diagnosis took {slowest:.1f} s.")
    if asked.markdown:
        asked.markdown.write_text(as_markdown(verdicts.values(), total), encoding="utf-8")
    path = asked.json or root / f"results-{asked.split}.json"
    results = {
        "split": asked.split,
        "seeds": list(seeds),
        "version": asked.version,
        "score": asdict(total),
        "runs": [verdicts[place].to_json() | {"findings": findings[place]} for place in verdicts],
    }
    path.write_text(json.dumps(results, indent=1))
    print(f"Results: {path}")


if __name__ == "__main__":
    main()
