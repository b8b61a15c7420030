"""The plain examples, small: the same weights under `vitals run`, seen rightly, and healthy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.launch.scripted import Pair, both, check_health

EXAMPLES = Path(__file__).parents[2] / "examples"

SMALL: dict[str, str] = {
    "gpt": "--steps 240 --width 32 --layers 2 --heads 2 --block 32 --batch 8 --eval-every 60",
    "cnn": "--epochs 6 --images 640 --size 16 --width 8 --batch 32",
    "gan": "--steps 240 --width 32 --batch 64 --print-every 60",
    "reinforce": "--updates 80 --carts 8 --longest 60 --width 32",
    "lora": "--base-steps 150 --steps 150 --width 32 --print-every 50",
    "lstm": "--epochs 8 --waves 256 --length 24 --width 16 --batch 16",
}


def test_all_that_know_nothing_of_us_are_here() -> None:
    assert SMALL.keys() == {
        path.stem for path in EXAMPLES.glob("*.py") if "torchvitals" not in path.read_text()
    }


def run(name: str, folder: Path) -> tuple[Pair, dict[str, Any]]:
    """Both ways; what it saved at its end is the same, bit for bit, and so is its output."""
    pair = both(folder, str(EXAMPLES / f"{name}.py"), *SMALL[name].split())
    for done in (pair.plain, pair.watched):
        assert done.returncode == 0, done.stderr
    assert pair.plain.stdout
    assert pair.watched.stdout == pair.plain.stdout
    plain, watched = (torch.load(folder / f"cwd{n}" / f"{name}.pt") for n in range(2))
    assert plain.keys() == watched.keys()
    for part, value in plain.items():
        if isinstance(value, list):
            assert watched[part] == value
        else:
            assert all(torch.equal(watched[part][key], value[key]) for key in value)
    check_health(folder / "run")
    return pair, plain


def parameters(state: dict[str, torch.Tensor], prefix: str = "") -> set[str]:
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    return {prefix + name for name in state if not name.endswith(buffers)}


def names(pair: Pair) -> set[str]:
    return {key.site for key in pair.history.keys("parameter", stat="rms")}


def check_losses(pair: Pair, losses: list[float], name: str = "loss", before: int = 0) -> None:
    steps, values = pair.history.series(name)
    assert steps.tolist() == list(range(1, before + len(losses) + 1))
    np.testing.assert_allclose(values[before:], losses, rtol=1e-6)


def test_gpt(tmp_path: Path) -> None:
    pair, saved = run("gpt", tmp_path)
    check_losses(pair, saved["losses"])
    assert names(pair) == parameters(saved["model"]) - {"head.weight"}  # tied
    assert pair.history.series("eval/eval/loss").steps.tolist() == [60, 120, 180, 240]


def test_cnn(tmp_path: Path) -> None:
    pair, saved = run("cnn", tmp_path)
    check_losses(pair, saved["losses"])
    assert names(pair) == parameters(saved["model"])
    assert pair.history.series("eval/eval/loss").steps.tolist() == list(range(20, 121, 20))
    assert pair.history.series("epoch/run/number").steps.tolist() == list(range(20, 121, 20))


def test_gan(tmp_path: Path) -> None:
    pair, saved = run("gan", tmp_path)
    check_losses(pair, saved["losses_discriminator"], "loss_discriminator")
    check_losses(pair, saved["losses_generator"], "loss_generator")
    assert names(pair) == parameters(saved["model"], "generator.") | parameters(
        saved["discriminator"], "discriminator."
    )


def test_reinforce(tmp_path: Path) -> None:
    pair, saved = run("reinforce", tmp_path)
    check_losses(pair, saved["losses"])
    assert names(pair) == parameters(saved["model"])


def test_lora(tmp_path: Path) -> None:
    """Two phases on one model, parts of which are replaced in between: one run."""
    pair, saved = run("lora", tmp_path)
    check_losses(pair, saved["losses"], before=150)
    assert {"hidden1.down.weight", "hidden2.up.weight", "embed.weight"} <= names(pair)
    # What is frozen since then is not measured as learning.
    updated = pair.history.series("update/hidden1.up.weight/ratio").steps.tolist()
    assert updated == [151, *range(152, 301, 2)]  # the first of its phase, too
    assert pair.history.series("update/head.weight/ratio").steps.max() == 150


def test_lstm(tmp_path: Path) -> None:
    pair, saved = run("lstm", tmp_path)
    check_losses(pair, saved["losses"])
    assert names(pair) == parameters(saved["model"])
    assert pair.history.series("eval/eval/loss").steps.tolist() == list(range(16, 129, 16))
