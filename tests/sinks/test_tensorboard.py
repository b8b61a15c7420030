"""TensorBoard's own readers understand what was written."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import (
    HISTOGRAMS,
    SCALARS,
    TENSORS,
    EventAccumulator,
)
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.histogram import metadata as histogram_metadata
from tensorboard.util.tensor_util import make_ndarray

import torchvitals
from torchvitals.record import ROOT, HistogramRow
from torchvitals.record.bins import NUM_BINS, ZERO_BIN, bin_index
from torchvitals.sinks import TensorBoard
from torchvitals.sinks.buckets import buckets
from torchvitals.sinks.layout import tag

from .training import info, train


def read(folder: Path) -> EventAccumulator:
    everything = {SCALARS: 0, HISTOGRAMS: 0, TENSORS: 0}
    return EventAccumulator(str(folder), size_guidance=everything).Reload()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tensorboard") / "run"
    train(
        path,
        [
            "tensorboard",
            TensorBoard(path / "wide", series=r"^(gradient|update|parameter/.*/histogram)"),
        ],
    )
    return path


def test_scalars_stand_in_the_layout_of_the_guide(run: Path) -> None:
    tags = read(run / "tensorboard").Tags()[SCALARS]
    assert {
        "Loss/train", "Loss/validation", "Evaluation/validation/accuracy", "Gradients/norm_global",
        "Gradients/clip_ratio", "Gradients/summary/median", "Updates/summary/num_frozen",
        "Optimization/lr", "Optimization/update_ratio", "Performance/samples_per_sec",
        "Performance/step_s", "Performance/time/forward_s", "Performance/process_memory_mb",
        "Parameters/norm_global",
    } <= set(tags)  # fmt: skip
    assert len(tags) <= 60
    wide = read(run / "wide").Tags()
    assert "Gradients/per_layer/0.weight/norm" in wide[SCALARS]
    assert "Updates/per_layer/2.bias/ratio" in wide[SCALARS]
    assert "Gradients_Hist/per_layer/0.weight" in wide[HISTOGRAMS]
    assert "Parameters_Hist/per_layer/0.weight" in wide[HISTOGRAMS]


def test_values_and_steps_are_those_of_the_run(run: Path) -> None:
    found = read(run / "tensorboard")
    history = torchvitals.open_run(run)
    for key in ("loss", f"gradient/{ROOT}/norm", "optimizer/group0/lr", "clock/forward/wall_s"):
        steps, values = history.series(key)
        events = found.Scalars(tag(torchvitals.Key.parse(key)))
        assert [event.step for event in events] == steps.tolist()
        assert [event.value for event in events] == pytest.approx(values.tolist())
    memory = history.series("machine/process/rss_bytes").values
    (megabytes, *_) = found.Scalars("Performance/process_memory_mb")
    assert megabytes.value == pytest.approx(memory[0] / 1e6)


def test_there_is_one_event_a_step(run: Path) -> None:
    (path,) = (run / "tensorboard").iterdir()
    scalars = [
        event.step
        for event in EventFileLoader(str(path)).Load()
        if any(value.tag.startswith(("Loss", "Gradients/")) for value in event.summary.value)
    ]
    assert scalars == [1, 2, 3, 4, 5, 6]


def test_events_are_texts(run: Path) -> None:
    found = read(run / "tensorboard")
    assert "Events/checkpoint" in found.Tags()[TENSORS]
    (event,) = found.Tensors("Events/checkpoint")
    assert event.tensor_proto.string_val[0] == b"**checkpoint** saved"


def drawn(values: np.ndarray, tmp_path: Path) -> Path:
    counts = np.bincount(bin_index(values), minlength=NUM_BINS).astype(np.uint32)
    sink = TensorBoard(tmp_path)
    sink.open(info(), tmp_path)
    sink.histograms(HistogramRow(7, 5.0, (("gradient", "fc.weight"),), counts[None]))
    sink.close("finished")
    return tmp_path


def test_histograms_come_back_bucket_for_bucket(tmp_path: Path) -> None:
    torch.manual_seed(0)
    values = np.concatenate([torch.randn(5000).double().numpy(), np.zeros(300)])
    (event,) = read(drawn(values, tmp_path)).Histograms("Gradients_Hist/per_layer/fc.weight")
    histogram = event.histogram_value
    assert event.step == 7
    assert histogram.num == len(values)
    assert sum(histogram.bucket) == len(values)
    assert histogram.min <= values.min() < 0 < values.max() <= histogram.max
    assert histogram.sum == pytest.approx(values.sum(), abs=20)
    assert histogram.sum_squares == pytest.approx((values**2).sum(), rel=0.1)
    limits = np.array(histogram.bucket_limit)
    assert (np.diff(limits) > 0).all()
    for below, limit in ((-1.0, -1.0), (0.0, 0.0), (0.5, 0.5), (1.5, 1.5)):
        place = int(np.flatnonzero(limits == limit)[0])
        assert sum(histogram.bucket[: place + 1]) == np.count_nonzero(values <= below)


def test_the_page_itself_takes_them(tmp_path: Path) -> None:
    """What the histograms' tab is served from: migrated to tensors of (left, right, count)."""
    values = np.array([-3.0, -0.5, 0.0, 0.0, 1e-20, 0.25, 7.0])
    (path,) = drawn(values, tmp_path).iterdir()
    found = [v for event in EventFileLoader(str(path)).Load() for v in event.summary.value]
    (value,) = found
    assert value.metadata.plugin_data.plugin_name == histogram_metadata.PLUGIN_NAME
    table = make_ndarray(value.tensor)
    assert table.shape[1] == 3
    assert table[:, 2].sum() == len(values)
    assert (table[:, 0] <= table[:, 1]).all()
    assert np.isfinite(table).all()


def test_buckets_end_where_the_bins_do() -> None:
    counts = np.zeros(NUM_BINS, dtype=np.uint32)
    assert buckets(counts) is None
    counts[[0, ZERO_BIN, NUM_BINS - 1]] = 2, 3, 4
    found = buckets(counts)
    assert found is not None
    assert np.isfinite(found.edges).all()
    assert (np.diff(found.edges) > 0).all()
    assert found.counts.sum() == 9
    assert len(found.edges) == len(found.counts) + 1
    only_zeros = np.zeros(NUM_BINS, dtype=np.uint32)
    only_zeros[ZERO_BIN] = 5
    zeros = buckets(only_zeros)
    assert zeros is not None
    assert zeros.counts.tolist() == [5]
    assert zeros.edges[-1] == 0.0
    assert zeros.middles.tolist() == [0.0]
