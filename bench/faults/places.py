"""Which cases are trained, and where their runs are kept: what is there is not trained again."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchvitals.testing import CASES, Case, Outcome, run_case


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
