import os
import re
import socket

import pytest
from runs_for_tests import end_child, scalars, start_child, writer

from torchvitals.record import RunLocked, StoreError
from torchvitals.store import lock, open_run

HOLD = """
import sys
from torchvitals.record import RunInfo
from torchvitals.store import RunWriter
with RunWriter.create(sys.argv[1], RunInfo(name="holder"), resume=True):
    print("ready", flush=True)
    sys.stdin.read()
"""

TRY = """
import sys
from torchvitals.record import RunInfo, RunLocked
from torchvitals.store import RunWriter
try:
    RunWriter.create(sys.argv[1], RunInfo(name="second"), resume=True)
except RunLocked as error:
    print(error)
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE_S", 0.05)


def test_a_second_process_is_refused(run):
    child = start_child(HOLD, run)
    assert child.stdout.readline() == "ready\n"
    with pytest.raises(RunLocked, match=f"process {child.pid} on {socket.gethostname()}"):
        writer(run, resume=True)
    child.stdin.close()
    child.wait(timeout=30)
    child.stdout.close()
    with writer(run, resume=True) as w:
        assert w.attempt == 2


def test_this_process_refuses_a_second_one(run):
    with writer(run):
        message = end_child(start_child(TRY, run))
    assert re.search(f"process {os.getpid()} on .*choose another run name", message)


def test_the_same_process_is_refused_too(run):
    with writer(run), pytest.raises(RunLocked, match=str(os.getpid())):
        writer(run, resume=True)


def test_asking_does_not_disturb(run):
    assert lock.is_locked(run) is False
    with writer(run) as w:
        assert lock.is_locked(run) is True
        w.append(scalars(0, loss=1.0))
    assert lock.is_locked(run) is False
    assert not (run / lock.NAME).exists()


def test_a_leftover_lock_file_locks_nothing(run):
    run.mkdir(parents=True)
    (run / lock.NAME).write_text("not json")
    assert lock.holder(run) == ("(unknown)", "an unknown host")
    with writer(run):
        assert lock.holder(run) == (os.getpid(), socket.gethostname())


def test_a_fork_neither_holds_the_lock_nor_may_write(run):
    w = writer(run)
    read_end, write_end = os.pipe()
    hold_end, let_go = os.pipe()
    child = os.fork()
    if child == 0:  # the data loader: outlives its trainer
        try:
            w.commit()
        except StoreError as error:
            os.write(write_end, str(error).encode())
        os.close(let_go)
        os.read(hold_end, 1)
        os._exit(0)
    message = os.read(read_end, 1000).decode()
    assert f"belongs to process {os.getpid()}, not to its fork {child}" in message
    w.append(scalars(0, loss=1.0))
    # Not closed, as if killed: only the descriptor goes away.
    fd, w._lock._fd = w._lock._fd, -1
    os.close(fd)
    assert lock.is_locked(run) is False
    for end in (read_end, write_end, hold_end, let_go):
        os.close(end)
    os.waitpid(child, 0)
    w.close()


def test_without_locks_the_heartbeat_guards(run, monkeypatch):
    def unsupported(fd, *, shared):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(lock, "_try_lock", unsupported)
    w = writer(run)
    with open_run(run) as history:
        assert history.status == "running"
    with pytest.raises(RunLocked, match="was alive"):
        writer(run, resume=True)
    w.close()
    with writer(run, resume=True) as again:
        assert again.attempt == 2
