"""Where the rows of a block come from: this writer's memory, or the file."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from runs_for_tests import header, row, writer

from torchvitals.record import StoreError
from torchvitals.store import open_run, sealing, verify

COLUMNS = 40


@pytest.fixture
def read(monkeypatch):
    """How many rows each block took from the file."""
    numbers = []
    from_file = sealing.stored_rows

    def stored_rows(*arguments):
        rows = from_file(*arguments)
        numbers.append(len(rows))
        return rows

    monkeypatch.setattr(sealing, "stored_rows", stored_rows)
    return numbers


def values(step):
    return np.random.default_rng(step).standard_normal(COLUMNS).astype(np.float32)


def append(w, steps):
    for step in steps:
        w.append(row(step, header(COLUMNS), values(step)))


def check(run, steps):
    assert verify(run).ok
    with open_run(run) as history:
        found = history.matrix("gradient", "rms")
    places = [list(found.sites).index(key.site) for key in header(COLUMNS)]
    assert found.steps.tolist() == list(steps)
    expected = np.stack([values(step) for step in steps])
    np.testing.assert_array_equal(found.values[:, places], expected)


def test_a_writers_own_rows_are_not_read_again(run, read):
    with writer(run, seal_rows=32) as w:
        append(w, range(100))
    assert read == []
    check(run, range(100))


def test_rows_a_killed_writer_left_are_read(run, read):
    w = writer(run, seal_rows=32)
    append(w, range(20))
    w.commit()
    del w._connection
    w._lock.release()
    with writer(run, resume=True, seal_rows=32) as again:
        append(again, range(20, 100))
    assert read == [20]
    check(run, range(100))


def test_more_rows_than_are_remembered_are_read(run, read, monkeypatch):
    monkeypatch.setattr(sealing, "MOST_BYTES", 10 * 4 * COLUMNS)
    with writer(run, seal_rows=32) as w:
        append(w, range(100))
        assert w._sealing._bytes <= sealing.MOST_BYTES
    assert read == [32, 32, 32]  # the last four were still remembered
    check(run, range(100))


def test_what_was_rolled_back_is_not_sealed(run, read):
    with writer(run, seal_rows=32) as w:
        append(w, range(20))
        w.commit()
        w.append(row(20, header(COLUMNS), 7.0))
        pages = w._connection.execute("PRAGMA page_count").fetchone()[0]
        w._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="disk is full"):
            w.append(row(21, header(10_000), 7.0))
        w._connection.execute("PRAGMA max_page_count = 1000000")
        append(w, range(20, 100))
    assert read == [32]
    check(run, range(100))


def test_rows_that_cannot_be_sealed_are_not_remembered(run, read, monkeypatch):
    monkeypatch.setattr(sealing, "MOST_BYTES", 10 * 4 * COLUMNS)
    w = writer(run, seal_rows=32)
    append(w, range(20))
    w.commit()
    with closing(sqlite3.connect(run / "run.vitals")) as db:
        db.execute("UPDATE rows SET data = zeroblob(length(data)) WHERE seq = 3")
        db.commit()
    append(w, range(20, 60))
    assert w._sealing._fresh == {}
    assert w._sealing._bytes == 0
    w.close()
    assert any("Raw row 3" in problem for problem in verify(run).problems)
