"""Runs the same script twice, by python and by `vitals run`, and holds both results."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests import warm
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
    cold: bool = False,
    **env: str,
) -> Pair:
    """Run it both ways, at the same time; the unwatched one is spared loading torch unless `cold`.

    For what tracebacks and `__main__` look like it has to be cold.
    """
    here = [folder / f"cwd{number}" for number in range(2)]
    for one in here:
        one.mkdir()
    given = environment(**env)
    run = ("--run", str(folder / "run"))
    watched = [str(VITALS), "run", *options, *run, *launcher, *script]
    if cold or launcher or not script[0].endswith(".py"):
        plain = [sys.executable, *launcher, *script]
        return Pair(*_together((plain, watched), here, given, stdin), folder)
    warmed = warm.start(script, cwd=here[0], env=given, stdin=stdin, timeout=240)
    try:
        (done,) = _together((watched,), here[1:], given, stdin)
    finally:
        alone = warmed.wait()
    return Pair(alone, done, folder)


def _together(
    commands: Sequence[list[str]], folders: Sequence[Path], env: dict[str, str], stdin: str
) -> list[subprocess.CompletedProcess[str]]:
    running = [
        subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for command, folder in zip(commands, folders, strict=True)
    ]
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
    return done


def script(name: str) -> str:
    return str(SCRIPTS / name)
