"""What the API answers is what `History` reads: NaN and Inf kept, nothing lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.dashboard.asking import BEARER, Api
from tests.views.made_runs import LAYERS, START, WEIGHTS, make_run, write_columns
from torchvitals.record import (
    Event,
    Evidence,
    Finding,
    HistogramRow,
    Key,
    ModelInfo,
    ModuleInfo,
    Row,
    RunInfo,
    Severity,
)
from torchvitals.record.bins import NUM_BINS, bin_index
from torchvitals.store import RunWriter, open_run

Serving = Callable[..., TestClient]


def test_the_list_of_runs(api: Api, folder: Path) -> None:
    make_run(folder / "other" / "older", status="failed")
    (folder / "broken").mkdir()
    (folder / "broken" / "run.vitals").write_bytes(b"not a run file at all" * 50)
    found = api.json("runs")
    assert [run["name"] for run in found["runs"]][-1] == "broken"
    by_name = {run["name"]: run for run in found["runs"]}
    gpt = by_name["gpt"]
    assert (gpt["status"], gpt["last_step"], gpt["total_steps"]) == ("finished", 120, 200)
    with open_run(folder / "gpt") as history:
        steps, loss = history.series("loss")
    assert gpt["loss"]["key"] == "loss"
    assert gpt["loss"]["last"] == pytest.approx(loss[-1])
    assert max(gpt["loss"]["spark"]["high"]) == pytest.approx(loss.max())
    assert len(gpt["loss"]["spark"]["steps"]) == 60
    assert by_name["other/older"]["status"] == "failed"
    assert by_name["broken"]["status"] == "broken"
    assert "not a torchvitals run file" in by_name["broken"]["problem"]
    assert steps[-1] == 120


def test_a_broken_file_says_so_and_breaks_nothing(api: Api, folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "run.vitals").write_bytes(b"not a run file at all" * 50)
    assert "not a torchvitals run file" in api.error(api.run("broken"), 422)
    assert "not a torchvitals run file" in api.error(f"{api.run('broken')}/series", 422, key="loss")
    assert api.json(api.run())["status"] == "finished"


def test_what_a_run_is_made_of(api: Api, folder: Path) -> None:
    found = api.json(api.run())
    assert (found["first_step"], found["last_step"], found["num_steps"]) == (1, 120, 120)
    assert found["axes"] == ["step", "time", "tokens", "samples"]
    assert [module["name"] for module in found["models"][0]["modules"]] == [
        "[root module]",
        *LAYERS,
    ]
    gradient = found["columns"]["gradient"]
    assert gradient["sites"] == ["[root module]", *WEIGHTS]
    assert [gradient["sites"][at] for at in gradient["stats"]["rms"]] == WEIGHTS
    assert [gradient["sites"][at] for at in gradient["computed"]["absmax"]] == WEIGHTS
    assert found["loss_key"] == "loss"
    low, high = found["healthy"]["update/ratio"]
    assert 0 < low < high < 1
    assert "pid" not in found["attempts"][0]


def test_sites_stand_in_depth_order(serving: Serving, tmp_path: Path) -> None:
    names = ["stem", "blocks.0", "blocks.0.attn", "blocks.10", "head"]
    modules = tuple(ModuleInfo(name=name, type="M", depth=1) for name in names)
    info = RunInfo(name="x", models=(ModelInfo(name="Net", modules=modules, parameters=()),))
    sites = ["head", "blocks.0.attn.head_1", "foreign", "blocks.10", "blocks.0.attn.head_0", "stem"]
    header = tuple(Key("activation", site, "std") for site in sites)
    with RunWriter.create(tmp_path / "runs" / "net", info) as writer:
        writer.append(Row(1, START, header, np.arange(6, dtype=np.float32)))
    api = Api(serving(tmp_path / "runs"))
    want = ["stem", "blocks.0.attn.head_1", "blocks.0.attn.head_0", "blocks.10", "head", "foreign"]
    got = api.frame(f"{api.run('net')}/matrix", kind="activation", stat="std")
    assert got.header["sites"] == want
    assert got.arrays["values"][:, 0].tolist() == [sites.index(site) for site in want]
    inside = api.frame(f"{api.run('net')}/matrix", kind="activation", stat="std", under="blocks.0")
    assert inside.header["sites"] == want[1:3]


def test_a_series_is_what_history_reads(api: Api, folder: Path) -> None:
    key = f"gradient/{WEIGHTS[2]}/norm"
    got = api.frame(f"{api.run()}/series", key=["loss", key, "nope"], points=50)
    with open_run(folder / "gpt") as history:
        for number, name in enumerate(("loss", key)):
            want = history.envelope(name, 50)
            for field in ("steps", "low", "high", "last", "flags", "count"):
                np.testing.assert_array_equal(got.arrays[f"{number}.{field}"], getattr(want, field))
    assert [one.get("arrays") for one in got.header["series"]] == ["0", "1", None]
    assert "no column nope" in got.header["series"][2]["error"]
    part = api.frame(f"{api.run()}/series", key="loss", start=10, stop=20)
    assert part.arrays["0.steps"].tolist() == list(range(10, 20))


def odd_run(path: Path, values: list[float | None]) -> Path:
    loss = [1.0] * len(values)
    return write_columns(path, {Key("gradient", "fc", "rms"): values, Key.scalar("loss"): loss})


ODD = st.sampled_from([None, float("nan"), float("inf"), float("-inf"), 1e30, -1e30, 0.0, 1.5])


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ODD, min_size=1, max_size=300), st.integers(1, 40))
def test_no_spike_and_no_nan_is_lost(
    serving: Serving,
    tmp_path_factory: pytest.TempPathFactory,
    values: list[float | None],
    points: int,
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    odd_run(folder / "odd", values)
    api = Api(serving(folder))
    there = np.array([v for v in values if v is not None])
    finite = there[np.isfinite(there)].astype(np.float32)
    flags = 0
    for test, bit in ((np.isnan, 1), (np.isposinf, 2), (np.isneginf, 4)):
        flags |= bit * bool(test(there).any())
    line = api.frame(f"{api.run('odd')}/series", key="gradient/fc/rms", points=points).arrays
    assert len(line["0.steps"]) <= points
    assert int(np.bitwise_or.reduce(line["0.flags"], initial=0)) == flags
    assert line["0.count"].sum() == len(there)
    if len(finite):
        assert np.nanmax(line["0.high"]) == finite.max()
        assert np.nanmin(line["0.low"]) == finite.min()
    heat = api.frame(f"{api.run('odd')}/matrix", kind="gradient", stat="rms", points=points).arrays
    assert int(np.bitwise_or.reduce(heat["flags"].ravel() & 127, initial=0)) == flags
    if len(finite):
        assert np.nanmax(np.abs(heat["values"])) == np.abs(finite).max()
    low, high = (
        api.frame(
            f"{api.run('odd')}/matrix", kind="gradient", stat="rms", points=points, show=show
        ).arrays["values"]
        for show in ("low", "high")
    )
    if len(finite):
        assert np.nanmin(low) == finite.min()
        assert np.nanmax(high) == finite.max()


def test_json_says_nan_and_not_measured(serving: Serving, tmp_path: Path) -> None:
    columns = {
        Key("gradient", "a", "rms"): [1.0, float("nan"), None],
        Key("gradient", "b", "rms"): [2.0, float("-inf"), 3.0],
    }
    write_columns(tmp_path / "runs" / "odd", columns)
    api = Api(serving(tmp_path / "runs"))
    run = api.run("odd")
    line = api.json(f"{run}/series", key="gradient/a/rms", format="json")["arrays"]
    assert line["0.last"] == [1.0, "NaN"]
    assert line["0.flags"] == [0, 1]
    heat = api.json(f"{run}/matrix", kind="gradient", stat="rms", format="json", show="last")
    assert heat["arrays"]["values"] == [[1.0, "NaN", None], [2.0, "-Infinity", 3.0]]
    assert heat["arrays"]["flags"] == [[0, 1, 128], [0, 4, 0]]


def test_a_matrix_is_what_history_reads(api: Api, folder: Path) -> None:
    got = api.frame(f"{api.run()}/matrix", kind="gradient", stat="norm", points=1000)
    with open_run(folder / "gpt") as history:
        want = history.matrix("gradient", "norm")
    order = [want.sites.index(site) for site in got.header["sites"]]
    np.testing.assert_array_equal(got.arrays["values"], want.values[:, order].T)
    np.testing.assert_array_equal(got.arrays["steps"], want.steps)
    one = api.frame(f"{api.run()}/matrix", kind="gradient", stat="norm", site=WEIGHTS[3])
    assert one.header["sites"] == [WEIGHTS[3]]
    thin = api.frame(f"{api.run()}/matrix", kind="gradient", stat="absmax", points=7)
    assert thin.arrays["values"].shape == (6, 7)
    np.testing.assert_allclose(thin.arrays["values"], 0.3)


def test_profiles_are_of_the_last_measured_step(api: Api, folder: Path) -> None:
    got = api.frame(f"{api.run()}/profile", kind="activation", stat="std", step=[50, 10_000])
    assert got.header["sites"] == LAYERS
    assert (got.header["asked"], got.header["steps"]) == ([50, 10_000], [50, 120])
    np.testing.assert_allclose(got.arrays["values"][0], 1 + 0.1 * np.arange(6), rtol=1e-6)
    assert not got.arrays["flags"].any()
    last = api.frame(f"{api.run()}/profile", kind="activation", stat="std")
    assert last.header["steps"] == [120]


@pytest.mark.parametrize(
    ("axis", "step", "place"),
    [("tokens", 100, 100 * 128 * 128), ("samples", 7, 7 * 128), ("step", 5, 5)],
)
def test_other_axes(api: Api, axis: str, step: int, place: float) -> None:
    got = api.frame(f"{api.run()}/series", key="loss", x=axis)
    at = got.arrays["0.steps"].tolist().index(step)
    assert got.arrays["0.x" if axis != "step" else "0.steps"][at] == pytest.approx(place, rel=1e-5)


def test_time_leaves_pauses_out(serving: Serving, tmp_path: Path) -> None:
    header = (Key.scalar("loss"),)
    path = tmp_path / "runs" / "resumed"
    for first, now in ((0, 1000.0), (10, 90_000.0)):
        writer = RunWriter.create(path, RunInfo(name="r"), resume=True, clock=lambda now=now: now)
        for step in range(first, first + 10 + (5 if first == 0 else 0)):
            writer.append(Row(step, now + 2 * (step - first), header, np.ones(1, np.float32)))
        writer.close()
    api = Api(serving(tmp_path / "runs"))
    got = api.frame(f"{api.run('resumed')}/series", key="loss", x="time").arrays
    assert got["0.steps"].tolist() == list(range(20))
    # 0 … 18 s, then the second attempt: it supersedes what the first did from step 10 on.
    np.testing.assert_allclose(got["0.x"], [*range(0, 20, 2), *range(18, 38, 2)])


def test_an_axis_that_is_not_there(serving: Serving, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "plain")
    api = Api(serving(tmp_path / "runs"))
    text = api.error(f"{api.run('plain')}/series", 400, key="loss", x="tokens")
    assert text == "this run has no axis 'tokens'; it has: step, time."


def test_histograms_add_up(serving: Serving, tmp_path: Path) -> None:
    site = (("gradient", "fc"),)
    values = np.random.default_rng(0).standard_normal((10, 400)).astype(np.float32)
    extremes = (Key("gradient", "fc", "min"), Key("gradient", "fc", "max"))
    with RunWriter.create(tmp_path / "runs" / "bins", RunInfo(name="bins")) as writer:
        for step, line in enumerate(values):
            counts = np.bincount(bin_index(line), minlength=NUM_BINS).astype(np.uint32)[None]
            writer.append_histograms(HistogramRow(step, START, site, counts))
            ends = np.array([line.min(), line.max()], dtype=np.float32)
            writer.append(Row(step, START, extremes, ends))
    api = Api(serving(tmp_path / "runs"))
    got = api.frame(f"{api.run('bins')}/histograms", kind="gradient", site="fc", points=5)
    assert got.arrays["steps"].tolist() == [0, 2, 4, 6, 8]
    assert got.arrays["counts"].sum(axis=1).tolist() == [800] * 5
    low, high = got.arrays["low"], got.arrays["high"]
    assert (low[1:] >= low[:-1]).all()
    assert (high >= low).all()
    assert got.arrays["counts"].shape == (5, len(low))
    assert got.arrays["counts"][:, [0, -1]].any(axis=0).all()
    at = got.header["percentiles"].index(50)
    middle = np.median(values.reshape(5, 800), axis=1)
    np.testing.assert_allclose(got.arrays["percentiles"][:, at], middle, atol=0.05)
    np.testing.assert_allclose(got.arrays["percentiles"][:, 0], values.reshape(5, 800).min(axis=1))
    everything = api.json(api.run("bins"))["columns"]["gradient"]
    assert everything["histograms"] == [0]


def test_the_overview_has_everything_about_the_run_itself(api: Api) -> None:
    got = api.frame(f"{api.run()}/overview", points=20)
    keys = [one["key"] for one in got.header["series"]]
    for key in ("loss", "eval/val/loss", "optimizer/group0/lr", "speed/run/tokens_per_s",
                "clock/forward/wall_s", "machine/process/rss_bytes",
                "gradient/[root module]/norm", "summary/update_ratio/median"):  # fmt: skip
        assert key in keys
    assert not [key for key in keys if WEIGHTS[0] in key]
    status = got.header["status"]
    assert (status["step"], status["total_steps"]) == (120, 200)
    assert status["shares"]["backward"] == pytest.approx(0.52, abs=0.01)
    assert status["memory"]["gpus"][0]["index"] == 0
    assert status["tokens_per_s"] == pytest.approx(128 * 128 / 0.31, rel=0.01)


def test_attention_is_a_grid(serving: Serving, tmp_path: Path) -> None:
    columns = {
        Key("attention", f"blocks.{layer}.attn.head_{head}", "entropy"): [1.0, layer + head / 10]
        for layer, heads in ((0, 2), (1, 3))
        for head in range(heads)
    }
    write_columns(tmp_path / "runs" / "heads", columns)
    write_columns(tmp_path / "runs" / "none", {Key.scalar("loss"): [1.0]})
    api = Api(serving(tmp_path / "runs"))
    got = api.json(f"{api.run('heads')}/attention")
    assert (got["step"], got["num_heads"]) == (1, 3)
    assert got["layers"] == ["blocks.0.attn", "blocks.1.attn"]
    assert got["stats"]["entropy"][0] == pytest.approx([0, 0.1, None])
    assert got["stats"]["entropy"][1] == pytest.approx([1, 1.1, 1.2])
    assert api.json(f"{api.run('heads')}/attention", step=0)["stats"]["entropy"][1] == [1, 1, 1]
    assert api.json(f"{api.run('none')}/attention")["layers"] == []


def finding(severity: Severity, **more: object) -> Finding:
    fields: dict[str, object] = {
        "name": "frozen_layer", "severity": severity, "sites": (WEIGHTS[1],), "first_step": 5,
        "last_step": 9, "explanation": "it does not move", "fix": "give it a learning rate",
        "evidence": (Evidence(text="ratio", key="loss", step=5, value=float("nan")),),
    }  # fmt: skip
    return Finding(**{**fields, **more})  # type: ignore[arg-type]


def test_findings_are_the_newest_of_their_events(serving: Serving, tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs" / "sick")
    with RunWriter.create(path, RunInfo(name="sick"), resume=True) as writer:

        def tell(ident: str, state: str, found: Finding) -> None:
            data = {"id": ident, "state": state, "finding": found.to_json()}
            writer.event(Event(41, START, "finding", "told", data))

        tell("a", "opened", finding(Severity.WARNING))
        tell("b", "opened", finding(Severity.ERROR))
        tell("c", "opened", finding(Severity.INFO))
        tell("a", "updated", finding(Severity.WARNING, last_step=30))
        tell("b", "resolved", finding(Severity.ERROR, resolved_step=40))
        writer.event(Event(41, START, "finding", "of another kind", {"odd": 1}))
        writer.event(Event(41, START, "checkpoint", "saved", {"path": "x"}))
    api = Api(serving(tmp_path / "runs"))
    got = api.json(f"{api.run('sick')}/findings")
    assert got["source"] == "stored"
    assert [(one["id"], one["state"]) for one in got["findings"]] == [
        ("a", "open"), ("c", "open"), ("b", "resolved"),
    ]  # fmt: skip
    assert got["findings"][0]["last_step"] == 30
    assert got["findings"][0]["evidence"][0]["value"] == "NaN"
    (line,) = api.json("runs")["runs"]
    assert (line["num_findings"], line["worst"]["severity"]) == (2, "warning")
    events = api.json(f"{api.run('sick')}/events")["events"]
    assert [event["kind"] for event in events] == ["checkpoint"]
    assert events[0]["data"] == {"path": "x"}
    assert len(api.json(f"{api.run('sick')}/events", kind="finding")["events"]) == 6


def test_names_are_text(serving: Serving, tmp_path: Path) -> None:
    """Whatever somebody calls a metric: it comes back as that, in JSON."""
    names = [
        '<img src=x onerror="alert(1)">',
        "../../etc/passwd",
        "a/b/c",
        "µ ☃ ",
        "%2e%2e",
        "a&b=c",
    ]
    write_columns(tmp_path / "runs" / "<b>", {Key.scalar(name): [1.0] for name in names})
    api = Api(serving(tmp_path / "runs"))
    assert list(api.ids()) == ["<b>"]
    assert api.json(api.run("<b>"))["columns"]["scalar"]["sites"] == names
    for name in names:
        got = api.frame(f"{api.run('<b>')}/series", key=name)
        assert got.header["series"] == [{"key": name, "arrays": "0"}]
        assert got.arrays["0.last"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("below", "arguments", "status", "text"),
    [
        ("series", {}, 400, "key= is missing"),
        ("series", {"key": "los"}, 404, "Did you mean loss"),
        ("series", {"key": "loss", "points": 0}, 400, "points must be 1 … 5000, got 0"),
        ("series", {"key": "loss", "points": "many"}, 400, "points must be a whole number"),
        ("series", {"key": "loss", "start": "9" * 30}, 400, "start is too large"),
        ("series", {"key": "loss", "x": "moons"}, 400, "x must be one of step, time"),
        ("series", {"key": "loss", "format": "xml"}, 400, "format must be one of"),
        ("series", {"key": [str(i) for i in range(101)]}, 400, "at most 100 key="),
        ("series", {"key": "k" * 3000}, 400, "longer than 2000"),
        ("series", {"key": "loss", "colour": "red"}, 400, "no argument 'colour' here"),
        ("matrix", {"stat": "rms"}, 400, "kind= is missing"),
        ("matrix", {"kind": "gradient", "stat": "rsm"}, 404, "Did you mean gradient/rms"),
        ("matrix", {"kind": "gradient", "stat": "rms", "site": "(("}, 404, "There is no 'rms'"),
        ("profile", {"kind": "moon", "stat": "rms"}, 404, "There is no 'rms' of 'moon'"),
        ("histograms", {"kind": "gradient", "site": "x"}, 404, "has no histograms"),
        ("nonsense", {}, 404, "no such address"),
    ],
)
def test_wrong_questions_get_clear_answers(
    api: Api, below: str, arguments: dict[str, object], status: int, text: str
) -> None:
    assert text in api.error(f"{api.run()}/{below}", status, **arguments)


def test_an_unchanged_run_is_not_sent_again(api: Api, folder: Path) -> None:
    path = f"/api/{api.run()}/series?key=loss"
    first = api.get(f"{api.run()}/series", key="loss")
    tag = first.headers["etag"]
    assert "no-cache" in first.headers["cache-control"]
    headers = {**BEARER, "If-None-Match": tag}
    again = api.client.get(path, headers=headers)
    assert (again.status_code, again.content) == (304, b"")
    with RunWriter.create(folder / "gpt", RunInfo(name="gpt"), resume=True) as writer:
        writer.append(Row(121, START, (Key.scalar("loss"),), np.ones(1, np.float32)))
    changed = api.client.get(path, headers=headers)
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


def test_an_etag_outlives_the_server(serving: Serving, folder: Path) -> None:
    """What a browser kept holds after a restart, and never for another state of the run."""
    tags = []
    for _ in range(2):
        api = Api(serving(folder))
        tags.append(api.get(api.run()).headers["etag"])
    assert tags[0] == tags[1]


def test_long_json_is_compressed_and_floats_are_not(api: Api) -> None:
    assert api.get(api.run()).headers["content-encoding"] == "gzip"
    assert "content-encoding" not in api.get(f"{api.run()}/overview").headers


def test_a_run_made_anew_is_read_anew(api: Api, folder: Path) -> None:
    assert api.json(api.run())["last_step"] == 120
    ident = api.ids()["gpt"]
    shutil.rmtree(folder / "gpt")
    make_run(folder / "gpt", steps=range(1, 8))
    assert api.json(f"runs/{ident}")["last_step"] == 7


def test_many_runs_with_few_open(serving: Serving, tmp_path: Path) -> None:
    for number in range(20):
        write_columns(tmp_path / "runs" / f"r{number}", {Key.scalar("loss"): [float(number)]})
    api = Api(serving(tmp_path / "runs"))
    ids = api.ids()
    assert len(ids) == 20
    for number in range(20):
        got = api.frame(f"runs/{ids[f'r{number}']}/series", key="loss")
        assert got.arrays["0.last"].tolist() == [number]


def test_an_empty_folder_has_no_runs(serving: Serving, tmp_path: Path) -> None:
    assert Api(serving(tmp_path)).json("runs")["runs"] == []


def test_a_run_without_a_row(serving: Serving, tmp_path: Path) -> None:
    """It has just begun: everything is answered, and nothing is there."""
    with RunWriter.create(tmp_path / "runs" / "new", RunInfo(name="new")):
        api = Api(serving(tmp_path / "runs"))
        run = api.run("new")
        (line,) = api.json("runs")["runs"]
        assert (line["status"], line["last_step"], line["loss"]) == ("running", None, None)
        found = api.json(run)
        assert (found["columns"], found["first_step"], found["num_steps"]) == ({}, None, 0)
        assert api.frame(f"{run}/overview").header["series"] == []
        assert api.json(f"{run}/findings")["findings"] == []
        assert api.json(f"{run}/attention")["layers"] == []
        api.error(f"{run}/matrix", 404, kind="gradient", stat="rms")
        api.error(f"{run}/profile", 404, kind="gradient", stat="rms")
        api.error(f"{run}/series", 404, key="loss")
