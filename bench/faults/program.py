"""The benchmark of injected faults: train the zoo, diagnose every run file, score.

    python bench/faults --list
    python bench/faults --split tune --train-only
    python bench/faults --split tune
    python bench/faults --split test --rerun-fixes --replay

Trained runs are kept under --runs by (version, case, seed) and not trained again; give another
--version when the trainings or the monitor have changed. Seeds 0–2, 100 and 101 were or are
for tuning thresholds, 102–104 for reporting: public figures count only on the latter.

Two doses: where a fault has two, odd seeds get the smaller one. A fault counts only where it did
harm against the clean run of the same seed; otherwise its run joins the healthy ones.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults.fixes import rerun_fixes
from faults.judging import diagnose, harms
from faults.places import Place, chosen, train
from faults.pool import pooled
from faults.tables import as_markdown, show_cases, show_harms, show_score, show_table
from torchvitals.testing.scoring import Verdict, score

BENCH = Path(__file__).parents[1]
SEEDS = {"tune": (0, 1, 2, 100, 101), "test": (102, 103, 104)}


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
    add("--runs", type=Path, default=BENCH / "zoo-runs", help="where runs are kept")
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
