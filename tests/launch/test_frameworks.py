"""Scripts that leave the loop to a framework are watched like any other."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.launch.scripted import VITALS, Pair, both, check_health, environment, script
from torchvitals.store.history import open_run


def same(pair: Pair) -> None:
    assert pair.plain.returncode == 0, pair.plain.stderr
    assert pair.watched.returncode == 0, pair.watched.stderr
    assert pair.printed()
    kept = [
        [line for line in done.stdout.splitlines() if line.startswith(("loss", "eval"))]
        for done in (pair.plain, pair.watched)
    ]
    assert kept[0] == kept[1]
    check_health(pair.folder / "run")


def names(pair: Pair) -> set[str]:
    return {key.site for key in pair.history.keys("parameter", stat="rms")}


def test_accelerate(tmp_path: Path) -> None:
    pair = both(tmp_path, script("accelerated.py"))
    same(pair)
    pair.check_losses()
    assert names(pair) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert pair.history.series("epoch/run/number").steps.tolist() == list(range(8, 201, 8))


def test_lightning(tmp_path: Path) -> None:
    pair = both(tmp_path, script("lit.py"))
    same(pair)
    pair.check_losses()
    assert names(pair) == {"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"}
    evaluated = pair.history.series("eval/eval/loss")
    assert evaluated.steps.tolist() == list(range(8, 81, 8))
    np.testing.assert_allclose(evaluated.values[-1], pair.printed("eval")[-1], rtol=1e-6)


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    pair = both(tmp_path, script("hf.py"))
    same(pair)
    pair.check_losses()
    assert "transformer.h.1.attn.c_attn.weight" in names(pair)
    assert pair.history.series("eval/eval/loss").steps.tolist() == [20, 40, 60, 80]


def test_two_ranks(tmp_path: Path) -> None:
    """`vitals run torchrun …`: the processes it starts are watched, rank 0 writes."""
    pair = both(
        tmp_path, "--standalone", "--nproc-per-node", "2", script("ddp.py"),
        launcher=("-m", "torch.distributed.run"),
    )  # fmt: skip
    same(pair)
    pair.check_losses()
    assert names(pair) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert pair.history.series("rank/1/step_s").steps.tolist()
    assert pair.watched.stderr.count("vitals show") == 1


RANKS = ("--standalone", "--nproc-per-node", "2")
WATCHED = ("vitals", "run")


@pytest.mark.parametrize(
    ("command", "steps"),
    [
        ((*WATCHED, "torchrun", *RANKS, script("ddp.py")), 80),
        (("torchrun", *RANKS, "--no-python", *WATCHED, script("ddp.py")), 80),
        ((*WATCHED, "accelerate", "launch", "--cpu", script("accelerated.py")), 200),
    ],
    ids=["vitals run torchrun", "torchrun vitals run", "vitals run accelerate launch"],
)
def test_the_launchers_of_the_documentation(
    command: tuple[str, ...], steps: int, tmp_path: Path
) -> None:
    path = os.pathsep.join([str(VITALS.parent), os.environ["PATH"]])
    done = subprocess.run(
        [VITALS.parent / command[0], *command[1:]], cwd=tmp_path,
        # Not by --run: torchrun takes that for one of its own options.
        env=environment(PATH=path, VITALS_RUN="run", VITALS_EVERY="2"),
        text=True, capture_output=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_health(tmp_path / "run")
    with open_run(tmp_path / "run") as history:
        printed = [line.split()[1] for line in done.stdout.splitlines() if line[:4] == "loss"]
        values = history.series("loss").values
        np.testing.assert_allclose(values, [float.fromhex(loss) for loss in printed], rtol=1e-6)
        assert history.last_step == len(printed) == steps
        assert history.steps("update").tolist() == [1, *range(2, steps + 1, 2)]
    assert done.stderr.count("vitals show") == 1
