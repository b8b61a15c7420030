"""Every command in this process: what it prints, and its exit codes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.cli.conftest import Vitals
from tests.views.made_runs import WEIGHTS, write_columns
from tests.views.test_own_metrics import train
from torchvitals import __version__
from torchvitals.cli.main import COMMANDS
from torchvitals.record import Key, RunInfo
from torchvitals.store import RunWriter, open_run


def strict(text: str) -> Any:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_version(run: Vitals) -> None:
    assert run("--version").output == f"torchvitals {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_name_the_command(run: Vitals, command: str) -> None:
    done = run(command, "--help")
    assert done.exit_code == 0
    _, _, examples = done.output.partition("Examples:")
    assert f"vitals {command}" in examples
    assert "--json" in done.output


def test_the_help_lists_every_command(run: Vitals) -> None:
    text = run("--help").output
    for command in COMMANDS:
        assert f"\n  {command} " in text


def test_a_wrong_command_gets_the_closest(run: Vitals) -> None:
    done = run("shwo")
    assert done.exit_code == 2
    assert "Did you mean show?" in done.stderr
    assert "There are demo, run, ui, ls" in run("xyzzy").stderr


@pytest.mark.parametrize("kind", ["gradient", "parameter", "activation"])
def test_runs_of_a_module_monitor_are_shown(run: Vitals, tmp_path: Path, kind: str) -> None:
    path = str(train(tmp_path / "run"))
    done = run("show", path, "--kind", kind)
    assert "at step 4, worst first" in done.output
    assert "Nothing of kind" not in done.output
    whole = run("show", path).output
    assert "3 steps, 14 columns" in whole
    for title in ("Gradients", "Activations", "Parameters"):
        assert f"{title} at step 4" in whole


@pytest.mark.usefixtures("runs")
class TestLs:
    def test_lists_runs(self, run: Vitals) -> None:
        done = run("ls")
        assert done.exit_code == 0
        lines = done.output.splitlines()
        assert lines[0].split()[:4] == ["run", "status", "steps", "loss"]
        assert [line.split()[:4] for line in lines[1:]] == [
            ["made", "finished", "40", "0.800"],
            ["other/plain", "finished", "40", "0.800"],
        ]
        assert "█" in lines[1]

    def test_another_folder_and_json(self, run: Vitals) -> None:
        found = strict(run("ls", "runs/other", "--json").output)
        assert [line["name"] for line in found] == ["plain"]
        assert found[0]["steps"] == 40

    def test_broken_files_are_listed_with_their_problem(self, run: Vitals, runs: Path) -> None:
        (runs / "bad").mkdir()
        (runs / "bad" / "run.vitals").write_bytes(b"nothing of the kind")
        done = run("ls")
        assert done.exit_code == 0
        assert "bad" in done.output
        assert "is not a torchvitals run file" in " ".join(done.output.split())

    def test_an_empty_folder_says_how_to_begin(self, run: Vitals, tmp_path: Path) -> None:
        (tmp_path / "none").mkdir()
        done = run("ls", "none")
        assert done.exit_code == 0
        assert "vitals demo" in done.output
        assert 'torchvitals.watch(model, optimizer, run="none/first")' in done.output
        assert strict(run("ls", "none", "--json").output) == []

    def test_no_folder_is_a_wrong_argument(self, run: Vitals) -> None:
        done = run("ls", "nowhere")
        assert done.exit_code == 2
        assert "'nowhere' is not a folder" in done.stderr


@pytest.mark.usefixtures("runs")
class TestShow:
    @pytest.mark.parametrize("name", ["made", "runs/made", "runs/made/run.vitals"])
    def test_by_name_folder_or_file(self, run: Vitals, name: str) -> None:
        done = run("show", name)
        assert done.exit_code == 0
        assert done.output.startswith("runs/made  finished · 40 steps")

    @pytest.mark.parametrize(
        ("option", "told"),
        [
            (("--site", "nowhere"), "No layers were measured at sites that match 'nowhere'"),
            (("--stat", "nothing"), "No stats nothing were measured; without --site and --stat"),
        ],
    )
    def test_options_that_nothing_matches(
        self, run: Vitals, option: tuple[str, str], told: str
    ) -> None:
        assert told in " ".join(run("show", "made", *option).output.split())
        assert "No layers" not in run("show", "made").output

    def test_summary_then_the_worst_layers(self, run: Vitals) -> None:
        text = run("show", "made").output
        for part in (
            "Net, 600 parameters in 6 tensors",
            "CPU with 4 threads, on lab",
            "python3 train.py --name 'a b'",
            "0123456789 on main, with local changes",
            "best 0.800 at step 40",
            "1 frozen · 0 vanishing · 0 exploding",
            "clip ratio",
            "not finite     none",
        ):
            assert part in text, part
        titles = [line.split()[0] for line in text.splitlines() if line.endswith("worst first")]
        assert titles == ["Updates", "Gradients", "Activations", "Parameters"]
        after = text.partition("Updates at step 40")[2].splitlines()
        assert after[3].startswith(WEIGHTS[4])
        assert after[3].endswith("frozen")

    def test_one_kind(self, run: Vitals) -> None:
        text = run("show", "made", "--kind", "gradient", "--top", "2").output
        assert text.startswith("Gradients at step 40, worst first")
        assert "and 4 more (--top 6)" in text
        assert "Updates" not in text

    def test_kinds_without_ranking(self, run: Vitals) -> None:
        text = run("show", "made", "--kind", "scalar", "--kind", "summary").output
        assert "Logged numbers" in text
        assert "monitor/overhead_s" in text
        both = run("show", "made", "--kind", "optimizer").output
        assert "group0/lr" in both
        assert "√(g²/v)" in both

    def test_a_step(self, run: Vitals) -> None:
        done = run("show", "made", "--step", "10")
        assert "as of step 10" in done.output
        assert "Gradients at step 10" in done.output
        assert "4.00" not in run("show", "made", "--step", "40").output.splitlines()[0]

    def test_stat_and_site(self, run: Vitals) -> None:
        text = run("show", "made", "--stat", "max", "--site", r"blocks\.3").output
        assert WEIGHTS[3] in text
        assert WEIGHTS[2] not in text
        assert "|max| furthest from the median" in text
        # Updates have no such stat here: without --kind they are left out.
        assert "Updates" not in text

    def test_json(self, run: Vitals) -> None:
        found = strict(run("show", "made", "--json", "--top", "1").output)
        assert found["summary"]["last_step"] == 40
        assert found["summary"]["loss"]["key"] == "loss"
        assert [table["kind"] for table in found["tables"]] == [
            "update",
            "gradient",
            "activation",
            "parameter",
        ]
        assert found["tables"][0]["lines"][0]["site"] == WEIGHTS[4]
        assert found["tables"][0]["lines"][0]["note"] == "frozen"

    def test_json_spells_what_is_not_finite(self, run: Vitals, runs: Path) -> None:
        write_columns(runs / "bad", {Key.scalar("loss"): [1.0, float("nan"), float("-inf")]})
        loss = strict(run("show", "bad", "--json").output)["summary"]["loss"]
        assert (loss["first"], loss["last"], loss["num_bad"]) == (1.0, "-Infinity", 2)

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("maed", "Did you mean runs/made?"),
            ("runs/mad", "Did you mean runs/made?"),
            ("zzzzzz", "There are runs/made, runs/other/plain."),
            ("runs", "These below it are runs: runs/made, runs/other/plain."),
        ],
    )
    def test_a_wrong_run_gets_suggestions(self, run: Vitals, name: str, hint: str) -> None:
        done = run("show", name)
        assert done.exit_code == 2
        assert done.stderr == f"vitals: there is no run {name!r} here. {hint}\n"

    def test_what_was_not_measured_is_said(self, run: Vitals, runs: Path) -> None:
        write_columns(runs / "few", {Key.scalar("loss"): [1.0]})
        done = run("show", "few", "--kind", "gradient")
        assert done.exit_code == 0
        assert "Nothing of kind gradient was measured; this run has scalar." in done.output

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            (["--kind", "weights"], "'weights' is not one of"),
            (["--top", "0"], "0 is not in the range"),
            (["--step", "-1"], "-1 is not in the range"),
            (["--site", "("], "is not a regular expression"),
            (["--kind", "gradient", "--stat", "nrom"], "there is no stat 'nrom'"),
        ],
    )
    def test_wrong_options(self, run: Vitals, options: list[str], reason: str) -> None:
        done = run("show", "made", *options)
        assert done.exit_code == 2
        assert reason in done.stderr

    def test_no_runs_at_all(
        self, run: Vitals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert "'vitals demo' makes one" in run("show", "gpt").stderr


@pytest.mark.usefixtures("runs")
class TestExport:
    def test_csv_to_stdout(self, run: Vitals) -> None:
        done = run("export", "made", "--to", "csv", "--kind", "scalar")
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        assert len(rows) == 40
        with open_run("runs/made") as history:
            steps, values = history.series("loss")
        assert [int(row["step"]) for row in rows] == steps.tolist()
        # CSV writes the shortest text of the float32: reading it as one gives the same bits.
        import numpy as np

        assert [np.float32(row["value"]) for row in rows] == values.tolist()
        assert done.stderr == ""

    def test_files_and_their_summary(self, run: Vitals, tmp_path: Path) -> None:
        done = run("export", "made", "--to", "parquet", "-o", "out.parquet", "--json")
        found = strict(done.stdout)
        table = parquet.read_table(tmp_path / "out.parquet")
        assert table.num_rows == found["num_rows"] == found["num_values"]
        assert found["size_bytes"] == (tmp_path / "out.parquet").stat().st_size
        assert (found["format"], found["wide"], found["run"]) == ("parquet", False, "runs/made")
        assert list(tmp_path.glob("*.part")) == []

    def test_wide_with_choices(self, run: Vitals) -> None:
        done = run(
            "export", "made", "--to", "jsonl", "--wide", "--kind", "gradient", "--stat", "norm",
            "--site", r"\.3\.",
        )  # fmt: skip
        rows = [strict(line) for line in done.stdout.splitlines()]
        assert len(rows) == 40
        assert set(rows[0]) == {"step", "time", f"gradient/{WEIGHTS[3]}/norm"}

    def test_what_was_written_is_said_on_stderr(self, run: Vitals) -> None:
        done = run("export", "made", "--to", "csv", "-o", "out.csv", "--kind", "scalar")
        assert done.stdout == ""
        assert done.stderr.startswith("Wrote 40 values of 1 column to out.csv (")

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            (["--to", "parquet"], "name a file with -o FILE"),
            (["--to", "csv", "--json"], "name a file with -o FILE"),
            (["--to", "xml"], "'xml' is not one of"),
            ([], "Missing option '--to'"),
            (["--to", "csv", "--stat", "nrom"], "no column of this run fits stat nrom"),
            (["--to", "csv", "-o", "runs/made/run.vitals"], "is the run itself"),
        ],
    )
    def test_wrong_options(self, run: Vitals, options: list[str], reason: str) -> None:
        done = run("export", "made", *options)
        assert done.exit_code == 2
        assert reason in done.stderr

    def test_a_folder_that_is_not_there(self, run: Vitals) -> None:
        done = run("export", "made", "--to", "csv", "-o", "no/where.csv")
        assert done.exit_code == 1
        assert done.stderr == "vitals: can't write no/where.csv: No such file or directory\n"

    def test_a_failed_export_leaves_the_old_file(
        self, run: Vitals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "out.csv").write_text("old")

        def full(*_arguments: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("torchvitals.views.export_csv.CsvFile.long", full)
        done = run("export", "made", "--to", "csv", "-o", "out.csv")
        assert done.exit_code == 1
        assert "No space left on device" in done.stderr
        assert (tmp_path / "out.csv").read_text() == "old"
        assert list(tmp_path.glob("*.part")) == []

    def test_without_pyarrow_the_pip_line(
        self, run: Vitals, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
        done = run("export", "made", "--to", "parquet", "-o", "out.parquet")
        assert done.exit_code == 1
        assert "pip install torchvitals[parquet]" in done.stderr


@pytest.mark.usefixtures("runs")
class TestVerify:
    def test_a_whole_file(self, run: Vitals) -> None:
        done = run("verify", "made")
        assert done.exit_code == 0
        assert done.output.startswith("runs/made/run.vitals is as it was written: 1 attempt, ")
        assert strict(run("verify", "made", "--json").output)["ok"] is True

    def test_damage_is_told_in_sentences(self, run: Vitals, runs: Path) -> None:
        file = runs / "made" / "run.vitals"
        data = bytearray(file.read_bytes())
        for at in range(len(data) // 2, len(data), 512):
            data[at] ^= 0x55
        file.write_bytes(data)
        done = run("verify", "made")
        assert done.exit_code == 1
        first, *problems = done.output.splitlines()
        assert first.startswith("runs/made/run.vitals has ")
        assert problems
        assert all(line.startswith("  ") for line in problems)
        found = run("verify", "made", "--json")
        assert found.exit_code == 1
        assert strict(found.output)["problems"]

    def test_no_run_file_at_all(self, run: Vitals, runs: Path) -> None:
        (runs / "made" / "run.vitals").write_bytes(b"not a database at all")
        done = run("verify", "made")
        assert done.exit_code == 1
        assert "is not a torchvitals run file" in done.output
        show = run("show", "made")
        assert show.exit_code == 1
        assert show.stderr.startswith("vitals: runs/made/run.vitals is not a torchvitals run file")


def test_a_run_that_has_stored_nothing_yet(run: Vitals, in_tmp: Path) -> None:
    RunWriter.create(in_tmp / "runs" / "young", RunInfo(name="young")).close()
    done = run("show", "young")
    assert done.exit_code == 0
    assert done.output.startswith("runs/young  finished · no step yet")
    assert run("ls").exit_code == 0
    assert strict(run("show", "young", "--json").output)["tables"] == []
    assert run("export", "young", "--to", "csv").stdout == "step,time,kind,site,stat,value\n"
    assert "this run has nothing yet" in run("show", "young", "--kind", "gradient").output
