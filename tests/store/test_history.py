import numpy as np
import pytest
from runs_for_tests import header, row, scalars, start_child, writer

from torchvitals.record import ConfigError, HistogramRow, Key, RunNotFound, UnknownKey
from torchvitals.record.bins import NUM_BINS, bin_index
from torchvitals.store import Listed, list_runs, open_run


def test_keys_are_filtered(run):
    keys = [
        Key(k, s, t) for k in ("gradient", "update") for s in ("a.0", "b.1") for t in ("x", "y")
    ]
    with writer(run) as w:
        w.append(row(0, keys, 1))
        w.append(scalars(0, loss=1.0))
    with open_run(run) as history:
        assert history.keys() == [*keys, Key.scalar("loss")]
        assert history.keys("update", r"^b\.", "y") == [Key("update", "b.1", "y")]
        assert history.keys(site="0$", stat="x") == [keys[0], keys[4]]
        assert history.matrix("update", "y", sites="1").sites == ["b.1"]
        assert history.matrix("update", "nothing").values.shape == (0, 0)
        with pytest.raises(ConfigError, match=r"re\.escape"):
            history.keys(site="(")


def test_unknown_keys_suggest_close_ones(run):
    with writer(run) as w:
        w.append(row(0, header(3), 1))
    with open_run(run) as history:
        with pytest.raises(UnknownKey, match=r"Did you mean gradient/layers\.1/rms"):
            history.series("gradient/layer.1/rms")
        with pytest.raises(UnknownKey, match=r"no column absurd.* It has 3 others"):
            history.series("absurd")
        with pytest.raises(UnknownKey, match="no histograms"):
            history.histogram("layers.0", "gradient")
        with pytest.raises(UnknownKey):
            history.series("gradient/layers.1/p50")
        with pytest.raises(UnknownKey):
            history.series("gradient/layers.1/absmax")


def test_absmax_is_computed(run):
    low, high = Key("gradient", "fc", "min"), Key("gradient", "fc", "max")
    with writer(run) as w:
        w.append(row(0, (low, high), [-3, 2]))
        w.append(row(1, (low, high), [-3, np.nan]))
        w.append(row(2, (low,), -7))
    with open_run(run) as history:
        steps, values = history.series("gradient/fc/absmax")
        assert steps.tolist() == [0, 1, 2]
        np.testing.assert_array_equal(values, [3, np.nan, 7])
        matrix = history.matrix("gradient", "absmax")
        assert matrix.sites == ["fc"]
        np.testing.assert_array_equal(matrix.values[:, 0], [3, np.nan, 7])


def test_percentiles_are_computed_from_histograms(run):
    rng = np.random.default_rng(0)
    keys = (Key("gradient", "fc", "min"), Key("gradient", "fc", "max"))
    samples = {step: rng.normal(0, 0.1 * (step + 1), 20_000) for step in (0, 10, 20)}
    with writer(run) as w:
        for step, sample in samples.items():
            counts = np.bincount(bin_index(sample), minlength=NUM_BINS).astype(np.uint32)
            w.append_histograms(HistogramRow(step, 0.0, (("gradient", "fc"),), counts[None]))
            if step < 20:
                w.append(row(step, keys, [sample.min(), sample.max()]))
    with open_run(run) as history:
        for name, q in (("p50", 50), ("p95", 95), ("p99.9", 99.9), ("p100", 100)):
            steps, values = history.series(f"gradient/fc/{name}")
            assert steps.tolist() == [0, 10, 20]
            want = [np.percentile(sample, q) for sample in samples.values()]
            np.testing.assert_allclose(
                values[: 3 if q < 100 else 2], want[: 3 if q < 100 else 2], rtol=0.15, atol=0.02
            )
        top = history.series("gradient/fc/p100").values[:2]
        assert (top <= np.float32([samples[0].max(), samples[10].max()])).all()
        assert history.matrix("gradient", "p50").sites == ["fc"]
        with pytest.raises(UnknownKey):
            history.series("gradient/fc/p101")


def test_each_call_sees_what_was_committed(run):
    w = writer(run, seal_rows=10)
    w.append(scalars(0, loss=0.0))
    w.commit()
    with open_run(run) as history:
        before = history.version()
        assert history.version() == before
        for step in range(1, 35):
            w.append(scalars(step, loss=float(step)))
            w.append(row(step, header(2), step))
            assert len(history.series("loss").steps) == step
            w.commit()
            assert history.version() != before
            before = history.version()
            assert history.series("loss").values.tolist() == list(range(step + 1))
            assert history.last_step == step
    w.close()


WRITE = """
import sys, numpy as np
from torchvitals.record import Key, Row, RunInfo
from torchvitals.store import RunWriter
header = tuple(Key("gradient", f"layers.{i}", "rms") for i in range(50))
with RunWriter.create(sys.argv[1], RunInfo(name="child"), seal_rows=32) as writer:
    writer.append(Row(0, 0.0, header, np.full(50, 0, np.float32)))
    writer.commit()
    print("ready", flush=True)
    for step in range(1, 3000):
        writer.append(Row(step, 0.0, header, np.full(50, step, np.float32)))
        if step % 7 == 0:
            writer.commit()
"""


def test_reading_while_another_process_writes(run):
    child = start_child(WRITE, run)
    assert child.stdout.readline() == "ready\n"
    seen = []
    with open_run(run) as history:
        while child.poll() is None:
            steps, values = history.series("gradient/layers.31/rms")
            assert steps.tolist() == list(range(len(steps)))
            assert values.tolist() == steps.tolist()
            seen.append(len(steps))
            assert len(history.row(len(steps) - 1)) == 50
    child.communicate()
    assert child.returncode == 0
    assert seen == sorted(seen)
    assert len(set(seen)) > 3
    with open_run(run) as history:
        assert len(history.steps()) == 3000


def test_a_history_serves_several_threads(run):
    from concurrent.futures import ThreadPoolExecutor

    with writer(run, seal_rows=20) as w:
        for step in range(100):
            w.append(row(step, header(40), np.arange(40) + step))
    with open_run(run) as history, ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda i: history.series(header(40)[i % 40]).values[0], range(200)))
        assert got == [i % 40 for i in range(200)]


def test_open_takes_the_folder_or_the_file(run):
    writer(run).close()
    for path in (run, run / "run.vitals", str(run)):
        with open_run(path) as history:
            assert history.path == run / "run.vitals"
            assert "finished, 0 keys, 1 attempt(s), last step None" in repr(history)
            assert history.steps().tolist() == []
            assert history.info.name == "test"


def test_a_path_without_a_run(run, tmp_path):
    writer(run).close()
    with pytest.raises(RunNotFound, match="no run at"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(RunNotFound, match=r"these below it are: .*gpt"):
        open_run(tmp_path)


def test_list_runs(run, tmp_path):
    writer(run).close()
    writer(tmp_path / "runs" / "deep" / "er").close()
    broken = tmp_path / "runs" / "broken"
    broken.mkdir()
    (broken / "run.vitals").write_bytes(b"no database" * 100)
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    found = list_runs(tmp_path)
    assert [one.path.name for one in found] == ["broken", "er", "gpt"]
    assert "not a torchvitals run" in found[0].problem
    assert found[2] == Listed(run, None)
    assert list_runs(tmp_path / "nowhere") == []


def test_reading_leaves_a_closed_run_alone(run):
    writer(run).close()
    before = (run / "run.vitals").read_bytes()
    with open_run(run) as history:
        history.keys()
    assert [file.name for file in run.iterdir()] == ["run.vitals"]
    assert (run / "run.vitals").read_bytes() == before
