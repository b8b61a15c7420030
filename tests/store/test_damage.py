"""Files that are damaged, foreign, too new, unwritable; disks that are full."""

import contextlib
import os
import shutil
import sqlite3
import subprocess

import numpy as np
import pytest
from runs_for_tests import header, row, scalars, writer

from torchvitals.record import CorruptRun, Event, HistogramRow, NewerRun, RunNotFound, StoreError
from torchvitals.record.bins import NUM_BINS
from torchvitals.store import list_runs, migrate, open_run, schema, verify


def fill(run, steps=100, **options):
    rng = np.random.default_rng(0)
    w = writer(run, seal_rows=32, **options)
    for step in range(steps):
        w.append(row(step, header(40), rng.standard_normal(40)))
        counts = rng.integers(0, 9, (2, NUM_BINS), dtype=np.uint32)
        w.append_histograms(HistogramRow(step, 0.0, (("gradient", "a"), ("gradient", "b")), counts))
    w.event(Event(1, 0.0, "note", "hello"))
    return w


def flip(run, table, column, where="1"):
    """Flip a bit in the middle of a blob."""
    db = sqlite3.connect(run / "run.vitals")
    query = f"SELECT rowid, {column} FROM {table} WHERE {where} ORDER BY 1 DESC LIMIT 1"
    rowid, blob = db.execute(query).fetchone()
    damaged = bytearray(blob)
    damaged[len(damaged) // 2] ^= 4
    db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (bytes(damaged), rowid))
    db.commit()
    db.close()


@pytest.mark.parametrize(
    ("table", "column"),
    [("parts", "data"), ("pyramids", "data"), ("blocks", "axis"), ("layouts", "columns")],
)
def test_verify_finds_a_flipped_bit(run, table, column):
    fill(run).close()
    assert verify(run).ok
    assert "100" not in str(verify(run).problems)
    flip(run, table, column)
    report = verify(run)
    assert not report.ok
    assert any("damaged" in problem for problem in report.problems)
    assert "problem(s)" in str(report)


def test_verify_finds_a_flipped_bit_in_a_raw_row(run):
    w = fill(run, steps=40)
    w.commit()
    del w._connection  # killed: nothing is sealed
    w._lock.release()
    flip(run, "rows", "data")
    assert any("Raw row" in problem for problem in verify(run).problems)
    with writer(run, resume=True) as again:
        again.append(scalars(1000, loss=1.0))
    with open_run(run) as history:
        assert history.series("loss").values.tolist() == [1]


def test_verify_finds_what_does_not_fit(run):
    fill(run).close()
    db = sqlite3.connect(run / "run.vitals")
    db.execute("UPDATE blocks SET low_step = 7 WHERE id = 1")
    db.execute("DELETE FROM parts WHERE block = 2 AND part = 0")
    db.execute("INSERT INTO parts VALUES (999, 0, x'00')")
    db.execute(
        "UPDATE pyramids SET data = (SELECT data FROM pyramids WHERE block = 1) WHERE block = 3"
    )
    db.execute("UPDATE events SET data = '{'")
    db.execute("UPDATE blocks SET attempt = 9 WHERE id = 4")
    db.commit()
    db.close()
    text = str(verify(run))
    for part in (
        "its axis says otherwise",
        "Part 0 of block 2 is missing",
        "block 999",
        "no JSON",
        "attempt 9",
    ):
        assert part in text


def test_a_damaged_block_is_never_read_as_numbers(run):
    fill(run).close()
    flip(run, "parts", "data", "block = 1")
    with open_run(run) as history:
        key = history.keys()[-1]
        with pytest.raises(CorruptRun, match=r"part 1 of block 1.*verify"):
            history.series(key)
        assert len(history.series(key, start=32).steps) == 68


@pytest.mark.parametrize("position", [0.3, 0.6, 0.9])
def test_a_flipped_byte_in_the_file_is_found_or_harmless(run, position):
    fill(run, steps=300).close()
    file = run / "run.vitals"
    data = bytearray(file.read_bytes())
    with open_run(run) as history:
        before = history.matrix("gradient", "rms").values
    data[int(len(data) * position)] ^= 0xFF
    file.write_bytes(data)
    if verify(run).ok:  # a byte that nothing uses
        with open_run(run) as history:
            np.testing.assert_array_equal(history.matrix("gradient", "rms").values, before)


@pytest.mark.parametrize("keep", [0.25, 0.5, 0.9])
def test_a_truncated_file_is_reported(run, keep):
    fill(run, steps=300).close()
    file = run / "run.vitals"
    os.truncate(file, int(file.stat().st_size * keep))
    assert not verify(run).ok


def test_foreign_files(tmp_path):
    text = tmp_path / "text" / "run.vitals"
    text.parent.mkdir()
    text.write_text("hello " * 1000)
    with pytest.raises(CorruptRun, match="not a torchvitals run"):
        open_run(text.parent)
    with pytest.raises(CorruptRun, match="not a torchvitals run"):
        writer(text.parent)
    assert not verify(text).ok
    other = tmp_path / "other.db"
    db = sqlite3.connect(other)
    db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(CorruptRun, match="not a torchvitals run"):
        open_run(other)
    db = sqlite3.connect(other)
    db.execute("PRAGMA application_id = 42")
    db.close()
    with pytest.raises(CorruptRun, match="another application"):
        writer(other, resume=True)
    assert text.read_text().startswith("hello")


def test_an_empty_file(tmp_path):
    file = tmp_path / "run.vitals"
    file.touch()
    with pytest.raises(CorruptRun, match="empty"):
        open_run(tmp_path)
    assert not verify(tmp_path).ok
    with writer(tmp_path) as w:  # a writer killed at birth leaves such a file
        w.append(scalars(0, loss=1.0))
    assert verify(tmp_path).ok
    with pytest.raises(RunNotFound):
        verify(tmp_path / "nowhere")


def test_a_newer_file(run):
    writer(run).close()
    db = sqlite3.connect(run / "run.vitals")
    db.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION + 1}")
    db.close()
    for attempt in (lambda: open_run(run), lambda: writer(run, resume=True), lambda: verify(run)):
        with pytest.raises(NewerRun, match="pip install --upgrade torchvitals"):
            attempt()
    assert "upgrade" in list_runs(run)[0].problem


def test_an_older_file_is_migrated_by_writing(run, monkeypatch):
    with writer(run) as w:
        w.append(scalars(0, loss=1.0))
    monkeypatch.setattr(
        schema, "MIGRATIONS", [*schema.MIGRATIONS, "ALTER TABLE events ADD COLUMN extra TEXT"]
    )
    with open_run(run) as history:  # readers don't need it
        assert history.last_step == 0
    assert migrate(run) == 1
    assert migrate(run) == 2
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, "CREATE TABLE more (x)"])
    with writer(run, resume=True) as w:
        w.append(scalars(1, loss=1.0))
    with open_run(run) as history:
        assert history._connection.execute("PRAGMA user_version").fetchone() == (3,)
        assert history.steps().tolist() == [0, 1]
    monkeypatch.setattr(schema, "OLDEST_READABLE", 4)
    with pytest.raises(StoreError, match=r"torchvitals\.store\.migrate"):
        open_run(run)
    with pytest.raises(RunNotFound):
        migrate(run / "nowhere")


def test_a_failed_migration_changes_nothing(run, monkeypatch):
    writer(run).close()
    monkeypatch.setattr(
        schema, "MIGRATIONS", [*schema.MIGRATIONS, "CREATE TABLE more (x); nonsense"]
    )
    with pytest.raises(StoreError, match="syntax error"):
        migrate(run)
    monkeypatch.undo()
    with open_run(run) as history:
        assert history.keys() == []


@pytest.fixture
def read_only(tmp_path):
    """Makes a folder read-only: by permissions, or for root by a read-only mount if it may."""
    mounts = []

    def make(folder):
        folder.chmod(0o555)
        for file in folder.iterdir():
            file.chmod(0o444)
        if os.access(folder, os.W_OK):
            mount = ["mount", "--bind", "-o", "ro", str(folder), str(folder)]
            if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
                mounts.append(folder)
        return folder

    yield make
    for folder in mounts:
        subprocess.run(["umount", str(folder)], check=True)
    for folder in tmp_path.rglob("*"):
        folder.chmod(0o755)


def test_a_read_only_folder(run, read_only):
    fill(run).close()
    read_only(run)
    with open_run(run) as history:
        assert len(history.steps()) == 100
        assert history.status == "finished"
    assert verify(run).ok


def test_a_copied_file_in_wal_mode_without_its_journal(run, tmp_path, read_only, monkeypatch):
    w = fill(run)
    with open_run(run):  # an open reader keeps the file in WAL mode
        w.close()
        copy = tmp_path / "copy"
        copy.mkdir()
        shutil.copy(run / "run.vitals", copy)
    db = sqlite3.connect(f"file:{copy}/run.vitals?immutable=1", uri=True)
    assert db.execute("PRAGMA journal_mode").fetchone() is not None
    db.close()
    # Root may write anywhere: refuse the first way in, as a read-only medium does.
    from torchvitals.store import connect

    real = connect._open_reader

    def refuse(path, options):
        if "immutable" not in options:
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorname = "SQLITE_CANTOPEN"
            raise error
        return real(path, options)

    monkeypatch.setattr(connect, "_open_reader", refuse)
    monkeypatch.setattr(os, "access", lambda *_: False)
    read_only(copy)
    with open_run(copy) as history:
        assert len(history.steps()) == 100


def test_a_journal_that_cannot_be_read_is_not_ignored(run, monkeypatch):
    w = fill(run)
    w.commit()
    from torchvitals.store import connect

    def refuse(path, options):
        raise sqlite3.OperationalError("unable to open database file")

    with monkeypatch.context() as patch:
        patch.setattr(connect, "_open_reader", refuse)
        with pytest.raises(StoreError, match="copy the folder to a writable place"):
            open_run(run)
    w.close()


def test_an_unwritable_place(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Can't create"):
        writer(tmp_path / "file" / "run")


def test_a_full_database_loses_only_what_was_not_committed(run):
    w = writer(run, seal_rows=16)
    keys = header(500)
    for step in range(20):
        w.append(row(step, keys, step))
    w.commit()
    pages = w._connection.execute("PRAGMA page_count").fetchone()[0]
    w._connection.execute(f"PRAGMA max_page_count = {pages + 4}")

    def overfill():
        for step in range(20, 500):
            w.append(row(step, header(500, first=step), step))

    with pytest.raises(StoreError, match=r"disk is full.*Free some space"):
        overfill()
    assert w.last_step == 19
    assert not w._connection.in_transaction
    with open_run(run) as history:
        assert history.steps().tolist() == list(range(20))
    w._connection.execute("PRAGMA max_page_count = 1000000")
    for step in range(20, 60):  # space was freed: the writer goes on
        w.append(row(step, header(500, first=step), step))
    w.close()
    with open_run(run) as history:
        assert history.steps().tolist() == list(range(60))
    assert verify(run).problems == []


def test_a_real_full_disk(tmp_path):
    """On a tmpfs of 1 MB where mounting is allowed, else with SQLite's own page limit."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        w = writer(disk / "run")
        if not mounted:
            w._connection.execute("PRAGMA max_page_count = 100")
        rng = np.random.default_rng(0)
        committed = -1

        def overfill():
            nonlocal committed
            for step in range(committed + 1, 5000):
                w.append(row(step, header(300), rng.standard_normal(300)))
                w.commit()
                committed = step

        for _ in range(2):  # still full the second time: refused again, nothing breaks
            with pytest.raises(StoreError, match=r"full|writing failed"):
                overfill()
        assert committed > 0
        with open_run(disk / "run") as history:
            assert history.steps().tolist() == list(range(committed + 1))
        with contextlib.suppress(StoreError):  # may need room to seal; the rows stay
            w.close()
        with open_run(disk / "run") as history:
            assert history.steps().tolist() == list(range(committed + 1))
        assert verify(disk / "run").problems == []
    finally:
        if mounted:
            subprocess.run(["umount", str(disk)], check=True)
