from __future__ import annotations

from pathlib import Path

from tests.views.made_runs import make_run, write_columns
from torchvitals.record import Key, RunInfo
from torchvitals.store import RunWriter
from torchvitals.views.listing import listing


def test_runs_with_their_numbers(tmp_path: Path) -> None:
    make_run(tmp_path / "first")
    make_run(tmp_path / "deep" / "second", status="failed")
    lines = {line.name: line for line in listing(tmp_path)}
    assert sorted(lines) == ["deep/second", "first"]
    assert lines["first"].status == "finished"
    assert lines["deep/second"].status == "failed"
    assert lines["first"].steps == 40
    assert lines["first"].loss is not None
    assert abs(lines["first"].loss - 0.8) < 1e-6
    assert len(lines["first"].loss_spark) == 16
    assert lines["first"].duration_s is not None
    assert lines["first"].age_s is not None
    assert lines["first"].size_bytes > 0


def test_the_newest_is_last_and_broken_ones_after_it(tmp_path: Path) -> None:
    for name in ("zebra", "ant"):
        make_run(tmp_path / name)
    (tmp_path / "aaa").mkdir()
    (tmp_path / "aaa" / "run.vitals").write_text("no database")
    lines = listing(tmp_path)
    assert [line.name for line in lines] == ["zebra", "ant", "aaa"]
    assert lines[-1].status == "broken"
    assert "not a torchvitals run file" in (lines[-1].problem or "")


def test_damage_inside_is_found_when_it_is_read(tmp_path: Path) -> None:
    make_run(tmp_path / "run", steps=range(1, 3000))
    file = tmp_path / "run" / "run.vitals"
    data = bytearray(file.read_bytes())
    for at in range(16384 * 4, len(data), 1024):
        data[at] ^= 0xFF
    file.write_bytes(data)
    (line,) = listing(tmp_path)
    assert line.status == "broken"
    assert line.problem


def test_a_run_that_is_being_written(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "now", RunInfo(name="now")) as writer:
        (line,) = listing(tmp_path)
        assert line.status == "running"
        assert line.steps is line.loss is None
        assert writer.attempt == 1


def test_the_folder_itself_may_be_a_run(tmp_path: Path) -> None:
    write_columns(tmp_path, {Key.scalar("accuracy"): [0.5]})
    (line,) = listing(tmp_path)
    assert line.name == "."
    assert line.loss is None
    assert listing(tmp_path / "nowhere") == []
