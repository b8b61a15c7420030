import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from runs_for_tests import INFO, end_child, row, scalars, start_child, writer

from torchvitals.record import Event, HistogramRow, RunExists, RunInfo, StoreError
from torchvitals.record.bins import NUM_BINS
from torchvitals.store import RunWriter, open_run, verify
from torchvitals.store.attempts import HEARTBEAT_STALE_S
from torchvitals.store.history import History

LOSS = "loss"


def log(w, steps, offset=0.0):
    for step in steps:
        w.append(scalars(step, loss=step + offset))


def test_a_new_run_has_no_last_step(run):
    with writer(run) as w:
        assert w.last_step is None
        log(w, range(5))
        assert w.last_step == 4


def test_no_reader_sees_a_file_that_is_half_made(tmp_path):
    """Somebody who looks all the time finds no file, or a running run; never an empty one."""
    runs = [tmp_path / f"run{number}" for number in range(30)]
    seen: list[str] = []
    done = threading.Event()

    def look() -> None:
        for run in runs:
            while not (run / "run.vitals").exists() and not done.wait(0.0):
                pass
            for _ in range(5):
                with open_run(run) as history:
                    seen.append(history.status)

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            open_ = [writer(run) for run in runs]
        finally:
            done.set()
        looking.result(timeout=60)
        for w in open_:
            w.close()
    assert set(seen) == {"running"}
    assert sorted(file.name for file in runs[0].iterdir()) == ["run.vitals"]


def test_what_a_writer_left_that_was_killed_at_birth(run):
    run.mkdir(parents=True)
    for name in ("run.vitals.new", "run.vitals.new-journal"):
        (run / name).write_text("half a file")
    with writer(run) as w:
        log(w, range(3))
    assert verify(run).ok
    assert not list(run.glob("*.new*"))


def test_an_existing_run_is_not_overwritten(run):
    with writer(run) as w:
        log(w, range(3))
    with pytest.raises(RunExists, match="resume=True"):
        writer(run)
    with open_run(run) as history:
        assert history.series(LOSS).steps.tolist() == [0, 1, 2]


def test_resuming_nothing_starts_a_run(run):
    with writer(run, resume=True) as w:
        assert (w.attempt, w.last_step) == (1, None)


def test_a_newer_attempt_supersedes_from_its_first_step_on(run):
    with writer(run, seal_rows=16) as w:
        log(w, range(100))
        w.event(Event(20, 0.0, "note", "early"))
        w.event(Event(80, 0.0, "note", "superseded"))
    with writer(run, resume=True, seal_rows=16) as w:
        assert (w.attempt, w.last_step) == (2, 99)
        log(w, range(50, 70), offset=0.5)
        assert w.last_step == 69
    with writer(run, resume=True, seal_rows=16) as w:
        assert w.last_step == 69
        log(w, range(60, 62), offset=0.25)
    with open_run(run) as history:
        steps, values = history.series(LOSS)
        assert steps.tolist() == list(range(62))
        want = [s + (0.25 if s >= 60 else 0.5 if s >= 50 else 0) for s in range(62)]
        assert values.tolist() == want
        assert history.steps().tolist() == list(range(62))
        assert history.last_step == 61
        assert history.row(55) == {history.keys()[0]: 55.5}
        assert history.row(65) == {}
        assert history.matrix("scalar", "value").values[:, 0].tolist() == want
        assert history.series(LOSS, attempt=1).steps.tolist() == list(range(100))
        assert history.series(LOSS, attempt=2).values.tolist() == [s + 0.5 for s in range(50, 70)]
        assert history.row(65, attempt=2) == {history.keys()[0]: 65.5}
        assert [event.text for event in history.events()] == ["early"]
        assert len(history.events(attempt=1)) == 2
        spans = [(a.id, a.first_step, a.last_step, a.status) for a in history.attempts]
        assert spans == [
            (1, 0, 99, "finished"),
            (2, 50, 69, "finished"),
            (3, 60, 61, "finished"),
        ]
        assert history.series(LOSS, start=45, stop=52).values.tolist() == [
            *range(45, 50),
            50.5,
            51.5,
        ]


def test_an_attempt_that_goes_further_back_hides_all_between(run):
    for steps in (range(100), range(50, 60), range(20, 30)):
        with writer(run, resume=True) as w:
            log(w, steps)
    with open_run(run) as history:
        assert history.steps().tolist() == list(range(30))


def test_an_attempt_without_rows_hides_nothing(run):
    with writer(run) as w:
        log(w, range(10))
    with writer(run, resume=True):
        pass
    with open_run(run) as history:
        assert history.steps().tolist() == list(range(10))
        assert history.last_step == 9
        assert history.attempts[1].first_step is None


def test_histograms_follow_the_attempts(run):
    site = (("gradient", "fc"),)
    for steps in (range(0, 100, 10), range(50, 70, 10)):
        with writer(run, resume=True, seal_rows=4) as w:
            for step in steps:
                counts = np.full((1, NUM_BINS), w.attempt, dtype=np.uint32)
                w.append_histograms(HistogramRow(step, 0.0, site, counts))
    with open_run(run) as history:
        steps, counts = history.histograms("fc", "gradient")
        assert steps.tolist() == [0, 10, 20, 30, 40, 50, 60]
        assert counts[:, 0].tolist() == [1] * 5 + [2] * 2
        assert history.histogram("fc", "gradient").step == 60


def test_info_is_the_newest(run):
    with writer(run):
        pass
    RunWriter.create(run, RunInfo(name="again", config={"lr": 2.0}), resume=True).close()
    with open_run(run) as history:
        assert history.info == RunInfo(name="again", config={"lr": 2.0})


def test_status_of_runs_that_end_themselves(run, tmp_path):
    w = writer(run)
    with open_run(run) as history:
        assert history.status == "running"
        w.close()
        assert history.status == "finished"
    failed = tmp_path / "failed"
    with pytest.raises(ZeroDivisionError), writer(failed):
        _ = 1 / 0
    with open_run(failed) as history:
        assert history.status == "failed"


CHILD = """
import sys, numpy as np
from torchvitals.record import Key, Row, RunInfo
from torchvitals.store import RunWriter
writer = RunWriter.create(sys.argv[1], RunInfo(name="child"))
for step in range(10):
    writer.append(Row(step, 0.0, (Key.scalar("loss"),), np.array([step], np.float32)))
writer.commit()
print("ready", flush=True)
sys.stdin.read()
writer.close()
"""


def test_a_killed_run_died_and_can_be_resumed(run):
    child = start_child(CHILD, run)
    assert child.stdout.readline() == "ready\n"
    with open_run(run) as history:
        assert history.status == "running"
        assert history.attempts[0].pid == child.pid
        child.kill()
        end_child(child)
        assert history.status == "died"
        assert history.series(LOSS).steps.tolist() == list(range(10))
        assert "died" in repr(history)
    with writer(run, resume=True) as w:
        assert w.last_step == 9
        log(w, range(10, 20))
    with open_run(run) as history:
        assert [attempt.status for attempt in history.attempts] == ["died", "finished"]
        assert history.series(LOSS).steps.tolist() == list(range(20))
    assert verify(run).problems == []
    assert [file.name for file in run.iterdir()] == ["run.vitals"]


def test_on_another_host_the_heartbeat_decides(run, monkeypatch):
    now = [1000.0]
    w = RunWriter.create(run, INFO, clock=lambda: now[0])
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    with History(run, clock=lambda: now[0]) as history:
        assert history.status == "running"
        now[0] += HEARTBEAT_STALE_S + 1
        assert history.status == "died"
        w.commit()
        assert history.status == "running"
    w.close()


def test_a_closed_writer_says_so(run):
    w = writer(run)
    w.close()
    w.close()
    with pytest.raises(StoreError, match="closed"):
        log(w, [1])
    assert "closed" in repr(w)


def test_the_writer_may_be_used_from_another_thread(run):
    import threading

    w = writer(run)
    thread = threading.Thread(target=lambda: (log(w, range(5)), w.commit()))
    thread.start()
    thread.join()
    w.close()
    with open_run(run) as history:
        assert len(history.steps()) == 5


def test_rows_of_a_killed_attempt_are_sealed_by_the_next(run):
    child = start_child(CHILD.replace("range(10)", "range(100)"), run)
    child.stdout.readline()
    child.kill()
    end_child(child)
    assert verify(run).counts["rows"] == 100
    with writer(run, resume=True) as w:
        w.append(row(100, (), []))
    assert verify(run).counts["rows"] == 0
    with open_run(run) as history:
        assert len(history.series(LOSS).steps) == 100


def test_an_open_history_sees_the_run_go_on(run):
    with writer(run) as w:
        log(w, range(10))
    with open_run(run) as history:
        assert history.status == "finished"
        with writer(run, resume=True) as w:
            log(w, range(10, 20))
            w.commit()
            assert history.status == "running"
            assert len(history.series(LOSS).steps) == 20
        assert history.status == "finished"
        assert len(history.series(LOSS).steps) == 20
