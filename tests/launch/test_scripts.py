"""Differently written scripts run under `vitals run` as without it, and are seen rightly."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.launch.scripted import Pair, both, check_health, script
from torchvitals.store.history import open_run


def same(pair: Pair) -> None:
    assert pair.plain.returncode == 0, pair.plain.stderr
    assert pair.watched.returncode == 0, pair.watched.stderr
    assert pair.plain.stdout
    assert pair.watched.stdout == pair.plain.stdout


def healthy(pair: Pair) -> None:
    check_health(pair.folder / "run")


def names(pair: Pair) -> set[str]:
    return {key.site for key in pair.history.keys("parameter", stat="rms")}


def steps(pair: Pair, num: int) -> None:
    """Measured steps of `--every 2`: the first one and every second."""
    assert pair.history.steps("update").tolist() == sorted({1, *range(2, num + 1, 2)})
    assert pair.history.last_step == num


def linear(*parts: str) -> set[str]:
    return {f"{part}.{name}" for part in parts for name in ("weight", "bias")}


def test_zero_grad_first_with_evaluations(tmp_path: Path) -> None:
    pair = both(tmp_path, script("zero_first.py"))
    same(pair)
    pair.check_losses()
    steps(pair, 90)
    healthy(pair)
    history = pair.history
    assert names(pair) == linear("0", "1", "3")
    evaluated = history.series("eval/eval/loss")
    assert evaluated.steps.tolist() == list(range(6, 91, 6))
    np.testing.assert_allclose(evaluated.values, pair.printed("eval"), rtol=1e-6)
    assert [event.data["samples"] for event in history.events("evaluation")] == [24] * 15
    assert history.series("epoch/run/number").steps.tolist() == list(range(6, 91, 6))
    # Waiting for the training's loader is on the clock, and only that.
    assert (history.series("clock/data/mean_s").values > 0).all()
    assert history.series("speed/run/samples_per_s").values[-1] > 0
    clipped = history.series("gradient/[root module]/clip_ratio").steps.tolist()
    assert clipped[1:] == list(range(4, 91, 2))
    # The first step is measured but for its activations, and the run says so.
    assert history.steps("activation").tolist() == list(range(2, 91, 2))
    assert [event.text for event in history.events("not_seen")] == [
        "activations of step 1: it was under way when watching began"
    ]
    assert history.status == "finished"
    # What it came to stands on stderr: the diagnosis, and where the run is.
    assert "finished · 90 steps · " in pair.watched.stderr
    assert f"vitals show {tmp_path / 'run'}" in " ".join(pair.watched.stderr.split())


def test_accumulation_ema_copies_and_pickles(tmp_path: Path) -> None:
    pair = both(tmp_path, script("zero_last.py"))
    same(pair)
    pair.check_losses()
    steps(pair, 120)
    healthy(pair)
    blocks = [f"blocks.{i}.{part}" for i in range(2) for part in ("up", "down")]
    assert names(pair) == linear(*blocks, "head")
    # A schedule an epoch: three steps at each rate.
    at, rates = pair.history.series("optimizer/group0/lr")
    np.testing.assert_allclose(rates, 0.05 * 0.95 ** ((at - 1) // 3))


def test_a_step_an_epoch_and_a_model_of_methods(tmp_path: Path) -> None:
    pair = both(tmp_path, script("once_an_epoch.py"))
    same(pair)
    pair.check_losses()
    steps(pair, 240)
    healthy(pair)
    assert names(pair) == {"scale", *linear("encoder", "decoder")}


def test_closures_and_a_second_phase(tmp_path: Path) -> None:
    pair = both(tmp_path, script("closures.py"))
    same(pair)
    pair.check_losses()
    assert names(pair) == linear("0", "2")
    assert len(pair.history.attempts) == 2
    assert pair.history.last_step == 240
    healthy(pair)


def test_two_optimizers(tmp_path: Path) -> None:
    pair = both(tmp_path, script("gan.py"))
    same(pair)
    pair.check_losses("loss_critic")
    pair.check_losses("loss_generator")
    steps(pair, 240)
    healthy(pair)
    parts = [f"{model}.{layer}" for model in ("generator", "critic") for layer in "02"]
    assert names(pair) == linear(*parts)


def test_functional_calls(tmp_path: Path) -> None:
    pair = both(tmp_path, script("functional.py"))
    same(pair)
    pair.check_losses()
    steps(pair, 240)
    healthy(pair)
    assert names(pair) == linear("first", "second")
    assert "functional calls" in pair.history.events("not_seen")[0].text


def test_a_grad_scaler(tmp_path: Path) -> None:
    pair = both(tmp_path, script("amp.py"))
    same(pair)
    pair.check_losses()
    steps(pair, 240)
    healthy(pair)


def test_trials_are_runs_of_their_own(tmp_path: Path) -> None:
    pair = both(tmp_path, script("trials.py"))
    same(pair)
    assert "in no torch.nn.Module; the script runs on, unwatched" in pair.watched.stderr
    for name, width in (("run", 8), ("run-2", 16)):
        history = open_run(tmp_path / name)
        lines = (line.split() for line in pair.plain.stdout.splitlines())
        printed = [float.fromhex(w[2]) for w in lines if w[:2] == ["loss", str(width)]]
        np.testing.assert_allclose(history.series("loss").values, printed, rtol=1e-6)
        assert history.status == "finished"
        assert history.last_step == 120
        check_health(tmp_path / name)


def test_a_module_of_a_package(tmp_path: Path) -> None:
    package = str(Path(script("pkg")).parent)
    pair = both(
        tmp_path, "pkg.train", "--every", "7", options=("--every", "2"), launcher=("-m",),
        PYTHONPATH=package,
    )  # fmt: skip
    same(pair)
    assert "pkg.train A package with a training in it." in pair.plain.stdout
    pair.check_losses()
    steps(pair, 240)
    healthy(pair)
    # Two modules that no third one holds go by the names of the attributes that hold them.
    assert names(pair) == {"embedding.weight", *linear("head")}


def test_a_script_that_watches_itself(tmp_path: Path) -> None:
    pair = both(tmp_path, script("watches_itself.py"))
    same(pair)
    assert not (tmp_path / "run").exists()
    assert "unwatched" not in pair.watched.stderr
    assert open_run(tmp_path / "cwd1" / "own").last_step == 3
