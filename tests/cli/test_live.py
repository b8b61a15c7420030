"""The commands that train: for real, in processes of their own, without a terminal."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Vitals
from tests.cli.processes import VITALS, environment, vitals
from torchvitals.record import Finding, Severity
from torchvitals.store import open_run

PLANTED = "head"
FINDING = Finding(
    name="lr_too_high",
    severity=Severity.ERROR,
    sites=(),
    first_step=1,
    last_step=1,
    evidence=(),
    explanation="It diverges.",
    fix="lower lr",
    confidence=0.9,
)


def test_the_demo_names_what_was_planted_and_trains_again_without_it(in_tmp: Path) -> None:
    done = vitals("demo", "--fast")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("step 60  loss") == 2
    assert "\x1b" not in done.stderr + done.stdout
    updates = done.stdout.partition("Updates at step")[2].splitlines()
    assert updates[3].startswith(f"{PLANTED}.weight")
    assert updates[3].endswith("frozen")
    for part in ("What was planted", "Found.", "What it cost", "vitals show runs/demo"):
        assert part in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    fixed = in_tmp / "runs" / "demo" / "fixed"
    with open_run(fixed.parent) as before, open_run(fixed) as after:
        losses = []
        for history in (before, after):
            assert history.status == "finished"
            steps, loss = history.series("loss")
            assert len(steps) == 60
            losses.append(loss[-6:].mean())
        (finding, *_) = before.findings()
        assert (finding.name, finding.sites) == ("frozen_layer", (f"{PLANTED}.weight",))
        frozen = [
            {key.site for key in history.keys("update", stat="frozen")
             if history.series(key).values[-1]}
            for history in (before, after)
        ]  # fmt: skip
    assert frozen == [{f"{PLANTED}.weight"}, set()]
    # The advice is worth something: on the same batches, a tenth at the very least.
    assert losses[1] < 0.9 * losses[0]
    _, _, table = done.stdout.partition("The difference after 60 steps\n")
    rows = [line.split() for line in table.splitlines()[:6]]
    assert rows[1][0] == "loss"
    assert rows[3][:2] == ["findings", "frozen_layer"]
    assert "none" in rows[3]
    assert rows[5] == ["run", "runs/demo", "runs/demo/fixed"]
    assert "% lower after the same 60 steps" in table


def test_the_demo_takes_the_number_of_the_finding(in_tmp: Path) -> None:
    """Ended in the warm-up, the highest rate seen, and with it the advice, is a smaller one."""
    done = vitals("demo", "--fast", "--steps", "12", "--run", "here", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["found"] is True
    assert found["on_top"] == f"{PLANTED}.weight"
    assert found["summary"]["last_step"] == 12
    advice = found["diagnosis"]["findings"][0]["change"]["lr"]
    assert advice["to"] == pytest.approx(1e-3 * 12 / 40)
    assert found["fix"]["lr"] == advice
    assert found["difference"]["step"] == 12
    with open_run(in_tmp / "here" / "fixed") as history:
        (rate,) = [group.options["lr"] for group in history.info.groups
                   if f"{PLANTED}.weight" in group.parameters]  # fmt: skip
        assert history.last_step == 12
    # A schedule begins with its own part of the rate.
    assert rate == pytest.approx(advice["to"] / 40)
    again = vitals("demo", "--fast", "--steps", "12", "--run", "here")
    assert again.returncode == 2
    assert "There is a run in here already" in again.stderr


@pytest.mark.usefixtures("in_tmp")
def test_a_demo_too_short_for_a_diagnosis_says_so() -> None:
    done = vitals("demo", "--fast", "--steps", "2")
    assert done.returncode == 0, done.stderr
    assert "train longer to see it" in done.stdout
    assert "nothing to train again with" in done.stderr
    assert "The difference" not in done.stdout


@pytest.mark.usefixtures("in_tmp")
def test_seconds_end_the_demo() -> None:
    done = vitals("demo", "--fast", "--steps", "100000", "--seconds", "1.5", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0 < found["summary"]["last_step"] < 100_000


def test_ctrl_c_ends_the_demo_with_what_there_is(in_tmp: Path) -> None:
    process = subprocess.Popen(
        [str(VITALS), "demo", "--fast", "--steps", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    file = in_tmp / "runs" / "demo" / "run.vitals"
    with process:
        try:
            for _ in range(1200):
                if file.exists():
                    with open_run(file) as history:
                        if (history.last_step or 0) > 10:
                            break
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert "Interrupted" in err
    assert "Updates at step" in out
    assert "The difference" not in out
    with open_run(file) as history:
        assert history.status == "finished"


def test_doctor_measures(in_tmp: Path) -> None:
    done = vitals("doctor", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # what is found in its own training is not told
    found = json.loads(done.stdout)
    assert found["kernel"]["backend"].partition("+")[0] in ("native", "torch")
    assert found["kernel"]["triton"]["version"]
    assert found["kernel"]["triton"]["trouble"] in (None, "torch sees no GPU")
    if found["kernel"]["built"]:
        assert "baseline" in found["kernel"]["usable"]
        assert found["kernel"]["simd"] in found["kernel"]["usable"]
    assert found["overhead"]["plain_us"] > 0
    assert found["overhead"]["num_steps"] > 0
    (parquet,) = [extra for extra in found["extras"] if extra["name"] == "parquet"]
    assert parquet["installed"] is True
    assert list(in_tmp.iterdir()) == []


def test_doctor_keeps_findings_to_itself_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    from torchvitals.cli.doctor_overhead import without_findings
    from torchvitals.diagnosis.telling import tell
    from torchvitals.monitor.watch import log

    with without_findings():
        tell(FINDING)
        log.warning("the disk is full")
    assert caplog.messages == ["the disk is full"]
    tell(FINDING)
    assert "lower lr" in caplog.text


@pytest.mark.usefixtures("in_tmp")
def test_doctor_in_words() -> None:
    text = vitals("doctor", "--no-measure").stdout
    for name in ("python", "numpy", "zstd", "torch", "kernel", "on a GPU", "threads"):
        assert f"\n{name} " in f"\n{text}", name
    assert "overhead" not in text


def test_a_real_training_with_a_layer_left_out_of_the_optimizer(in_tmp: Path, run: Vitals) -> None:
    import torch
    from torch import nn

    import torchvitals

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 1))
    held = [p for name, p in model.named_parameters() if not name.startswith("2.")]
    optimizer = torch.optim.AdamW(held, lr=1e-3)
    with torchvitals.watch(model, optimizer, run=in_tmp / "runs" / "real", every=2) as monitor:
        for _ in range(12):
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=loss)
        # While it runs: a reader sees what was committed.
        monitor.flush()
        assert run("show", "real").output.startswith("runs/real  running · 12 steps")
    found = json.loads(run("show", "real", "--json", "--kind", "update").output)
    (table,) = found["tables"]
    assert [(line["site"], line["note"]) for line in table["lines"][:2]] == [
        ("2.weight", "in no optimizer"),
        ("2.bias", "in no optimizer"),
    ]
    assert run("verify", "real").exit_code == 0
    summary = json.loads(run("show", "real", "--json").output)["summary"]
    assert summary["models"][0]["num_parameters"] == sum(p.numel() for p in model.parameters())
    assert summary["loss"]["num_values"] == 12
    assert summary["overhead_s"] > 0
