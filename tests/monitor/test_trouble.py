"""When something goes wrong in the monitor, training goes on; when training ends, the run says how.

Real processes: exits, exceptions, signals, forks.
"""

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch import nn

import torchvitals
from torchvitals.monitor import recorder as recorder_module
from torchvitals.probes.gradients import Gradients
from torchvitals.probes.updates import Updates
from torchvitals.store.verify import verify

from .training import batches, make_net, train


@pytest.fixture
def lenient(monkeypatch):
    """As in a user's training: nothing of ours raises."""
    monkeypatch.setenv("TORCHVITALS_STRICT", "0")


def broken(*_args, **_kwargs):
    raise RuntimeError("planted")


@pytest.mark.parametrize(
    ("owner", "method", "name", "lost", "kept"),
    [
        (Gradients, "before_step", "gradients", "gradient", "update"),
        (Gradients, "values", "gradients", "gradient", "parameter"),
        (Updates, "after_step", "updates", "update", "gradient"),
        (Updates, "values", "updates", "update", "gradient"),
    ],
)
def test_a_failing_probe_is_told_once_and_switched_off(
    tmp_path, lenient, monkeypatch, caplog, owner, method, name, lost, kept
):
    monkeypatch.setattr(owner, method, broken)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain = make_net()
    want = train(plain, torch.optim.SGD(plain.parameters(), lr=0.1), batches(4))
    with (
        caplog.at_level(logging.WARNING, "torchvitals"),
        torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor,
    ):
        assert train(model, optimizer, batches(4)) == want
        history = monitor.history
        assert history.events("degraded")[0].data == {"probe": name}
        assert not history.keys(kind=lost, stat="norm")
        assert len(history.steps(kept)) >= 3
    told = [r for r in caplog.records if "planted" in r.getMessage()]
    assert len(told) == 1
    assert "training is not affected" in told[0].getMessage()


def test_a_failing_activation_hook_is_told_and_removed(tmp_path, lenient, monkeypatch, caplog):
    monkeypatch.setattr("torchvitals.probes.activations.Activations._take", broken)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        caplog.at_level(logging.WARNING, "torchvitals"),
        torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor,
    ):
        train(model, optimizer, batches(3))
        assert not torch.nn.modules.module._global_forward_hooks
        assert len(monitor.history.steps("gradient")) == 3
    assert len([r for r in caplog.records if "planted" in r.getMessage()]) == 1


def test_strict_mode_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(Gradients, "before_step", broken)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1),
        pytest.raises(RuntimeError, match="planted"),
    ):
        train(model, optimizer, batches(1))


def test_unwritable_folder_is_told_and_training_goes_on(tmp_path, lenient, caplog):
    (tmp_path / "file").write_text("not a folder")
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        caplog.at_level(logging.WARNING, "torchvitals"),
        torchvitals.watch(model, optimizer, run=tmp_path / "file" / "run", every=1) as monitor,
    ):
        train(model, optimizer, batches(3))
        monitor.log(loss=1.0)
        assert monitor.step_number == 3
        with pytest.raises(torchvitals.VitalsError, match="not stored"):
            _ = monitor.history
    told = [r for r in caplog.records if "can't be stored" in r.getMessage()]
    assert len(told) == 1


def test_full_disk_is_told_once_and_what_was_stored_stays(tmp_path, lenient, caplog):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        caplog.at_level(logging.WARNING, "torchvitals"),
        torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor,
    ):
        train(model, optimizer, batches(5))
        monitor.flush()
        writer = monitor._recorder._writer
        pages = writer._connection.execute("PRAGMA page_count").fetchone()[0]
        writer._connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own disk full
        want = train(model, optimizer, batches(200))
        assert len(want) == 200
        monitor.flush()
    told = [r for r in caplog.records if "can't be stored" in r.getMessage()]
    assert len(told) == 1
    assert verify(tmp_path / "run").ok
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.steps("gradient").tolist()[:5] == [1, 2, 3, 4, 5]


def test_measuring_pauses_when_the_writer_falls_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder_module, "BACKLOG", 3)
    monkeypatch.setattr(
        recorder_module.Recorder, "_record", lambda *_: time.sleep(0.05), raising=True
    )
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        for _ in range(40):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert len(monitor._recorder._inbox) <= 5


SCRIPT = """
    import atexit, os, sys, time, torch, torchvitals
    from torch import nn
    torch.set_num_threads(1)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(monitor):
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.log(loss=1.0)

    monitor = torchvitals.watch(model, optimizer, run="run", every=1)
    for _ in range(3):
        step(monitor)
"""


def run_script(tmp_path, ending):
    """Run it to its end; if it hangs, the test shows where all its processes stand."""
    code = "import faulthandler, signal\nfaulthandler.register(signal.SIGUSR1, all_threads=True)\n"
    code += textwrap.dedent(SCRIPT) + textwrap.dedent(ending)
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "TORCHVITALS_STRICT": "0"}, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGUSR1)
        time.sleep(2)
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"hangs: {process.communicate()[1]}") from None
    return subprocess.CompletedProcess(code, process.returncode, output, errors)


@pytest.mark.parametrize(
    ("ending", "code", "status"),
    [
        ("", 0, "finished"),
        ("sys.exit(0)", 0, "finished"),
        ("raise ValueError('bad')", 1, "failed"),
        ("sys.exit(3)", 3, "finished"),
        ("with monitor: raise KeyError('bad')", 1, "failed"),
        ("with monitor: sys.exit(3)", 3, "failed"),
    ],
)
def test_the_end_of_the_process_marks_the_run(tmp_path, ending, code, status):
    result = run_script(tmp_path, ending)
    assert result.returncode == code, result.stderr
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.status == status
        assert history.steps("gradient").tolist() == [1, 2, 3]
        assert history.series("loss").steps.tolist() == [1, 2, 3]
    assert verify(tmp_path / "run").ok


def test_ctrl_c_marks_the_run_failed_and_keeps_it(tmp_path):
    code = textwrap.dedent(SCRIPT) + textwrap.dedent("""
        print("ready", flush=True)
        while True:
            step(monitor)
            time.sleep(0.01)
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.status == "failed"
        assert history.last_step >= 3


def test_kill_loses_at_most_the_last_second(tmp_path):
    code = textwrap.dedent(SCRIPT) + textwrap.dedent("""
        number = 3
        while True:
            step(monitor)
            number += 1
            print(number, time.time(), flush=True)
            time.sleep(0.005)
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    lines = [process.stdout.readline() for _ in range(400)]
    process.kill()
    rest, _ = process.communicate(timeout=60)
    lines += [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    done = [(int(n), float(t)) for n, t in (line.split() for line in lines)]
    ended = done[-1][1]
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.status == "died"
        stored = set(history.steps("gradient").tolist())
    must = {number for number, when in done if when < ended - 1.0}
    assert must
    assert must <= stored
    assert verify(tmp_path / "run").ok


def test_forked_children_leave_the_run_alone(tmp_path):
    result = run_script(
        tmp_path,
        """
        child = os.fork()
        if child == 0:
            monitor.close("failed")
            atexit._run_exitfuncs()
            os._exit(0)  # as workers of multiprocessing and of loaders do
        os.waitpid(child, 0)
        step(monitor)
        monitor.close()
        """,
    )
    assert result.returncode == 0, result.stderr
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.status == "finished"
        assert history.steps("gradient").tolist() == [1, 2, 3, 4]
    assert verify(tmp_path / "run").ok
