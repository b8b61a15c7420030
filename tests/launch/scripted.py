"""Runs the same script twice, by python and by `vitals run`, and holds both results."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torchvitals.diagnosis import diagnose
from torchvitals.record import Severity
from torchvitals.store.history import History, open_run

SCRIPTS = Path(__file__).parent / "scripts"
VITALS = Path(sys.executable).parent / "vitals"

JUDGED = frozenset(
    {
        *("non_finite", "loss_spike", "divergence", "plateau", "vanishing_gradients"),
        *("frozen_layer", "orphan_parameter", "gradients_not_cleared", "no_effective_step"),
        *("lr_too_high", "lr_too_low", "update_ratio", "schedule_fault", "weight_blow_up"),
    }
)
"""Rules that must have had enough to judge: a run too short to be called ill is not healthy."""


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VITALS_", "PYTEST_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default", **more}


@dataclass(frozen=True)
class Pair:
    """What came of both."""

    plain: subprocess.CompletedProcess[str]
    watched: subprocess.CompletedProcess[str]
    folder: Path

    @property
    def history(self) -> History:
        return open_run(self.folder / "run")

    def printed(self, name: str = "loss") -> list[float]:
        """The numbers behind that word, of the unwatched script."""
        lines = (line.split() for line in self.plain.stdout.splitlines())
        return [float.fromhex(words[1]) for words in lines if words and words[0] == name]

    def check_losses(self, name: str = "loss") -> None:
        """The series is what the script printed, step by step."""
        printed = self.printed(name)
        series = self.history.series(name)
        assert series.steps.tolist() == list(range(1, len(printed) + 1))
        np.testing.assert_allclose(series.values, np.array(printed), rtol=1e-6)


def check_health(run: Path) -> None:
    """No finding of the level error: neither while it trained nor afterwards."""
    with open_run(run) as history:
        found = diagnose(history)
        assert not JUDGED & {one.name for one in found.not_checked}, found.not_checked
        for one in (*history.findings(), *found.findings):
            assert one.severity is not Severity.ERROR, one


def both(
    folder: Path,
    *script: str,
    options: tuple[str, ...] = ("--every", "2"),
    stdin: str = "",
    launcher: tuple[str, ...] = (),
    **env: str,
) -> Pair:
    """Run it both ways, at the same time."""
    run = ("--run", str(folder / "run"))
    commands = (
        [sys.executable, *launcher, *script],
        [str(VITALS), "run", *options, *run, *launcher, *script],
    )
    running = []
    for number, command in enumerate(commands):
        here = folder / f"cwd{number}"
        here.mkdir()
        running.append(
            subprocess.Popen(
                command,
                cwd=here,
                env=environment(**env),
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    done = []
    for process in running:
        try:
            out, err = process.communicate(stdin, timeout=240)
        except subprocess.TimeoutExpired:
            for one in running:
                one.kill()
                one.communicate()
            raise
        done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return Pair(done[0], done[1], folder)


def script(name: str) -> str:
    return str(SCRIPTS / name)
