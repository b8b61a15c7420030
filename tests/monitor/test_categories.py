"""Loss by category: sums against plain float64, laws of merging, what is refused or copied."""

import math
import threading
from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchvitals.monitor import categories
from torchvitals.monitor.categories import OTHER, CategoryBook, CategorySums
from torchvitals.record import ConfigError


def sums_of(losses, category, weight=None, **kwargs):
    book = CategoryBook(**kwargs)
    book.add(losses, category, weight)
    return book.take()


def means_of(sums):
    return dict(zip(sums.labels, sums.means.tolist(), strict=True))


def reference(losses, labels, weight=None):
    """One sample at a time."""
    weight = [1.0] * len(losses) if weight is None else weight
    sums = defaultdict(lambda: np.zeros(4))
    for loss, label, each in zip(losses, labels, weight, strict=True):
        sums[str(label)] += [each, each * loss, 1, not math.isfinite(loss)]
    return {label: tuple(line) for label, line in sums.items()}


def same(got, expected):
    assert got.keys() == expected.keys()
    lines = [got[label] for label in expected]
    np.testing.assert_allclose(lines, list(expected.values()), rtol=1e-12)


# Whole numbers add up exactly in any order, so that laws hold to the last bit.
losses_ = st.one_of(
    st.integers(-1000, 1000).map(float), st.sampled_from([math.nan, math.inf, -math.inf])
)
labels_ = st.one_of(st.sampled_from(["a", "b", "ü", "", "3"]), st.integers(-5, 5), st.none())
samples = st.lists(st.tuples(losses_, labels_, st.integers(0, 9)), max_size=30)


def sums_of_samples(parts):
    book = CategoryBook()
    for part in parts:
        losses, labels, weight = zip(*part, strict=True) if part else ((), (), ())
        book.add(list(losses), list(labels), list(weight))
    return book.take()


@settings(max_examples=150)
@given(samples)
def test_sums_equal_a_plain_loop(part):
    got = sums_of_samples([part]).as_dict()
    with np.errstate(invalid="ignore"):
        same(got, reference(*zip(*part, strict=True)) if part else {})


@settings(max_examples=150)
@given(samples, samples, samples)
def test_merge_laws(a, b, c):
    x, y, z = (sums_of_samples([part]) for part in (a, b, c))
    merged = CategorySums.merged
    same(merged([x, y]).as_dict(), merged([y, x]).as_dict())
    left, right = merged([merged([x, y]), z]), merged([x, merged([y, z])])
    same(left.as_dict(), right.as_dict())
    same(merged([x, CategorySums.none()]).as_dict(), x.as_dict())
    assert merged([]).as_dict() == {}


@settings(max_examples=150)
@given(st.lists(samples, max_size=5))
def test_parts_added_or_merged_equal_the_whole(parts):
    whole = sums_of_samples([[sample for part in parts for sample in part]])
    same(sums_of_samples(parts).as_dict(), whole.as_dict())
    merged = CategorySums.merged(sums_of_samples([part]) for part in parts)
    same(merged.as_dict(), whole.as_dict())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_labels", [3, 700])
def test_random_losses_in_every_form_of_labels(dtype, num_labels):
    rng = np.random.default_rng(0)
    losses = torch.from_numpy(rng.gamma(2.0, size=5000)).to(dtype)
    weight = rng.random(5000)
    ids = rng.integers(-num_labels, num_labels, 5000)
    expected = reference(losses.double().tolist(), ids.tolist(), weight.tolist())
    forms = [
        ids,
        torch.from_numpy(ids),
        torch.from_numpy(ids).to(torch.int16),
        ids.tolist(),
        [str(label) for label in ids.tolist()],
        ids.astype(str),
        ids.astype(object),
        iter(ids.tolist()),
    ]
    for category in forms:
        same(sums_of(losses, category, weight).as_dict(), expected)
    same(sums_of(losses, ids, torch.from_numpy(weight)).as_dict(), expected)


@pytest.mark.parametrize(
    "ids",
    [
        np.array([-128, 127, 127], dtype=np.int8),
        np.array([0, 2**64 - 1, 2**64 - 1], dtype=np.uint64),
        np.array([2**64 - 2, 2**64 - 1, 2**64 - 1], dtype=np.uint64),
        np.array([-(2**63), 2**63 - 1, 2**63 - 1]),
        np.array([2**63 - 2, 2**63 - 1, 2**63 - 1]),
    ],
)
def test_integer_labels_of_any_size(ids):
    low, high = str(ids[0]), str(ids[1])
    assert sums_of([1.0, 2.0, 3.0], ids).as_dict() == {low: (1, 1, 1, 0), high: (2, 5, 2, 0)}


def test_batch_and_time():
    losses = torch.arange(6.0).reshape(2, 3)
    by_sample = {"a": (3, 3, 3, 0), "b": (3, 12, 3, 0)}
    assert sums_of(losses, ["a", "b"]).as_dict() == by_sample
    assert sums_of(losses, np.array([["a"], ["b"]])).as_dict() == by_sample
    assert sums_of(losses, "all").as_dict() == {"all": (6, 15, 6, 0)}
    by_value = {"0": (3, 6, 3, 0), "1": (3, 9, 3, 0)}
    tokens = torch.tensor([[0, 1, 0], [1, 0, 1]])
    assert sums_of(losses, tokens).as_dict() == by_value
    assert sums_of(losses, tokens.reshape(-1)).as_dict() == by_value
    weighted = {"a": (6, 6, 3, 0), "b": (3, 12, 3, 0)}
    assert sums_of(losses, ["a", "b"], [2, 1]).as_dict() == weighted
    assert sums_of(losses, ["a", "b"], torch.tensor([[2], [1]])).as_dict() == weighted
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert sums_of(losses, ["a", "b"], mask).as_dict() == {"a": (2, 1, 3, 0), "b": (1, 3, 3, 0)}
    assert sums_of(losses, "all", 0.5).as_dict() == {"all": (3, 7.5, 6, 0)}
    # As many samples as steps: labels belong to the leading dimension.
    square = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert sums_of(square, ["a", "b"]).as_dict() == {"a": (2, 3, 2, 0), "b": (2, 7, 2, 0)}
    # The transposed view is read in its own order.
    assert sums_of(square.T, ["a", "b"]).as_dict() == {"a": (2, 4, 2, 0), "b": (2, 6, 2, 0)}


@pytest.mark.parametrize(
    ("label", "text"), [("", ""), ("ü", "ü"), (7, "7"), (None, "None"), (torch.tensor(7), "7")]
)
def test_one_label_for_all_is_known_by_its_text(label, text):
    assert sums_of([1.0, 2.0], label).as_dict() == {text: (2, 3, 2, 0)}


def test_labels_of_one_text_are_one_category():
    labels = [3, "3", np.int64(3), np.str_("3")]
    assert sums_of([1.0] * 4, labels).as_dict() == {"3": (4, 4, 4, 0)}
    bools = sums_of([1.0, 2.0], torch.tensor([True, False])).as_dict()
    assert bools == {"True": (1, 1, 1, 0), "False": (1, 2, 1, 0)}
    book = CategoryBook()
    book.add([1.0] * 50, [float("nan") for _ in range(50)])
    assert book.take().as_dict() == {"nan": (50, 50, 50, 0)}
    assert len(book._places) == 0
    assert sums_of(2.5, "scalar").as_dict() == {"scalar": (1, 2.5, 1, 0)}


def test_nan_and_inf_are_kept_as_what_they_are():
    losses = torch.tensor([1.0, math.nan, 2.0, math.inf, -math.inf, math.inf, 5.0])
    sums = sums_of(losses, ["nan", "nan", "inf", "inf", "both", "both", "fine"])
    means = means_of(sums)
    assert math.isnan(means["nan"])
    assert means["inf"] == math.inf
    assert math.isnan(means["both"])
    assert means["fine"] == 5.0
    bad = {label: line[categories.NUM_NONFINITE] for label, line in sums.as_dict().items()}
    assert bad == {"nan": 1, "inf": 1, "both": 2, "fine": 0}
    masked = sums_of([math.nan, 1.0], "a", [0.0, 1.0])
    assert math.isnan(masked.means[0])
    assert math.isnan(sums_of([1.0], "a", [0.0]).means[0])


def test_float32_losses_are_summed_in_float64():
    losses = torch.full((200_000,), 0.1)
    exact = float(torch.tensor(0.1))
    assert sums_of(losses, "a").means[0] == pytest.approx(exact, rel=1e-12)


def test_each_report_starts_afresh_and_ends_where_it_was_cut():
    book = CategoryBook()
    book.add([1.0, 2.0], ["a", "b"])
    first = book.cut()
    book.add([10.0], "a")
    book.settle()
    second = book.cut()
    third = book.cut()
    book.add([100.0], "c")
    assert third().as_dict() == {}
    assert second().as_dict() == {"a": (1, 10, 1, 0)}
    assert first().as_dict() == {"a": (1, 1, 1, 0), "b": (1, 2, 1, 0)}
    assert first().as_dict() == {"a": (1, 1, 1, 0), "b": (1, 2, 1, 0)}
    assert book.take().as_dict() == {"c": (1, 100, 1, 0)}
    assert book.take().labels == ()


def test_buffers_may_be_overwritten_after_adding():
    book = CategoryBook()
    losses, ids, weight = torch.ones(2), torch.tensor([0, 1]), torch.ones(2)
    labels, array = ["a", "b"], np.array([0, 1])
    book.add(losses, ids, weight)
    book.add(losses.numpy(), labels, weight.numpy())
    book.add(losses, array)
    for each in (losses, ids, weight, array):
        each[:] = 9
    labels[:] = ["x", "x"]
    expected = {"0": (2, 2, 2, 0), "1": (2, 2, 2, 0), "a": (1, 1, 1, 0), "b": (1, 1, 1, 0)}
    assert book.take().as_dict() == expected


def test_losses_with_a_graph_let_go_of_it():
    weight = torch.ones(3, requires_grad=True)
    losses = weight * 2
    book = CategoryBook()
    book.add(losses, "a", weight)
    batch = book._waiting[0]
    assert not batch.losses.requires_grad
    assert not batch.weight.requires_grad
    assert book.take().as_dict() == {"a": (3, 6, 3, 0)}


def test_adding_reads_nothing_from_a_device():
    # A meta tensor has no values: whoever reads one gets an error.
    book = CategoryBook()
    there = torch.empty(4, 2, device="meta")
    ids = torch.empty(4, dtype=torch.long, device="meta")
    for _ in range(2 * categories.MAX_WAITING):
        book.add(there, ids, there)
    book.add(there, ids[0])
    assert len(book._waiting) == 2 * categories.MAX_WAITING + 1
    with pytest.raises(NotImplementedError, match="meta"):
        book.settle()


def test_on_the_host_little_waits_even_if_nobody_settles():
    book = CategoryBook()
    for number in range(1000):
        book.add([float(number)], number % 3)
        assert len(book._waiting) < categories.MAX_WAITING
    assert sum(line[1] for line in book.take().as_dict().values()) == sum(range(1000))


def test_adding_and_settling_on_two_threads_loses_nothing():
    book = CategoryBook()
    done = threading.Event()
    reports = []

    def recorder():
        while not done.is_set():
            book.settle()
            for sums in reports:
                sums()

    thread = threading.Thread(target=recorder)
    thread.start()
    for number in range(3000):
        book.add(np.full(7, float(number)), [number % 11] * 7)
        if number % 100 == 99:
            reports.append(book.cut())
    done.set()
    thread.join()
    for place, sums in enumerate(reports):
        numbers = range(100 * place, 100 * place + 100)
        expected = reference([float(n) for n in numbers] * 7, [n % 11 for n in numbers] * 7)
        assert sums().as_dict() == expected


def test_categories_past_the_limit_are_summed_up_together(caplog):
    book = CategoryBook(max_categories=3)
    book.add(torch.ones(10), torch.arange(10))
    book.add([5.0, 5.0, 5.0], ["2", "new", "newer"])
    expected = dict.fromkeys("01", (1, 1, 1, 0)) | {"2": (2, 6, 2, 0), OTHER: (9, 17, 9, 0)}
    assert book.take().as_dict() == expected
    book.add([1.0] * 100, [f"more {n}" for n in range(100)])
    assert book.take().as_dict() == {OTHER: (100, 100, 100, 0)}
    assert len(book._places) <= 3
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "torchvitals: more than 3 categories"
    ]


def test_many_categories_of_which_few_are_touched():
    book = CategoryBook()
    book.add(torch.ones(20_000), torch.arange(20_000))
    assert len(book.take().labels) == 20_000
    book.add([1.0, 2.0, math.nan], [7, 19_999, 7], [1.0, 3.0, 1.0])
    got = book.take().as_dict()
    same(got, {"7": (2, math.nan, 2, 1), "19999": (3, 6, 1, 0)})


def test_nothing_to_add():
    assert sums_of(torch.empty(0), []).labels == ()
    assert sums_of(torch.empty(0, 5), torch.empty(0, dtype=torch.long)).labels == ()
    assert sums_of([], "a", 1.0).as_dict() == {}


@pytest.mark.parametrize(
    ("losses", "category", "weight", "message"),
    [
        (torch.ones(3), ["a", "b"], None, r"category of shape \(2,\) does not fit losses of shape"),
        (torch.ones(3), ["a"], None, r"one a sample \(3\)"),
        (torch.ones(4, 3), [0, 1, 2], None, r"one a sample \(4\) or one a value \(12\)"),
        (torch.tensor(1.0), ["a", "b"], None, r'reduction="none"'),
        (torch.ones(3), "a", [1.0, 2.0], r"weight of shape \(2,\) does not fit"),
        (torch.ones(3), "a", [1.0, -2.0, 0.0], "weight must be finite and not negative, got -2.0"),
        (torch.ones(1), "a", torch.tensor([math.nan]), "got nan"),
        (torch.ones(1), "a", math.inf, "got inf; use 0 for what should not count"),
        (torch.ones(1), "a", "heavy", "weight must be numbers, one a sample, got str"),
        (["high"], "a", None, "losses must be numbers, one a sample, got list"),
        ([[1.0], [1.0, 2.0]], "a", None, "losses must be numbers of a regular shape"),
        ([torch.tensor(1.0)], "a", None, r"use torch.stack\(losses\)"),
        (torch.ones(1) * 1j, "a", None, "losses must be real numbers"),
        (torch.ones(2).to_sparse(), "a", None, "losses must be a dense tensor"),
        (None, "a", None, "losses must be numbers, one a sample, got NoneType"),
        (torch.ones(1), torch.ones(1), None, r"integer labels, got a tensor of torch.float32; use"),
        (torch.ones(1), np.ones(1), None, "integer labels, got an array of float64; use .astype"),
        (torch.ones(1), [torch.tensor(1)], None, r"use one integer tensor, for instance torch.st"),
        (torch.ones(1), {"a"}, None, "in their order, got a set; use a list"),
        (torch.ones(1), [["a"]], None, "takes hashable labels such as str or int, got list"),
    ],
)
def test_what_is_wrong_is_refused_with_advice(losses, category, weight, message):
    book = CategoryBook()
    with pytest.raises(ConfigError, match=message):
        book.add(losses, category, weight)
    assert book.take().labels == ()


class FakeDTensor(torch.Tensor):
    def to_local(self):
        raise AssertionError("nobody may call this")


def test_a_distributed_tensor_is_refused():
    with pytest.raises(ConfigError, match=r"give this rank's part: \.to_local\(\)"):
        CategoryBook().add(torch.ones(1).as_subclass(FakeDTensor), "a")


class OnDevice(torch.Tensor):
    """A tensor that says it is elsewhere: what it holds is looked at late."""

    @property
    def is_cpu(self):
        return False


def test_weights_on_a_device_are_checked_when_they_are_read():
    book = CategoryBook()
    weight = torch.tensor([1.0, -2.0]).as_subclass(OnDevice)
    book.add([1.0, 2.0], "a", weight)
    book.add([1.0, 2.0], "b", weight.abs())
    with pytest.raises(ConfigError, match="weight must be finite and not negative, got -2"):
        book.settle()
    assert book.take().as_dict() == {"b": (3, 5, 2, 0)}


@pytest.mark.parametrize("labels", [["a", ["b"]], ["a", torch.tensor(1)]])
def test_labels_found_wrong_late_leave_out_their_batch_only(labels, monkeypatch, caplog):
    book = CategoryBook()
    book.add([1.0, 1.0], labels)
    with pytest.raises(ConfigError, match="category"):
        book.settle()
    monkeypatch.setenv("TORCHVITALS_STRICT", "0")
    for _ in range(2):
        book.add([1.0, 1.0], labels)
        book.add([2.0], "a")
    assert book.take().as_dict() == {"a": (2, 4, 2, 0)}
    assert len(caplog.records) == 1
    assert "samples were left out of the sums by category: category" in caplog.text


def test_the_limit_must_leave_room():
    with pytest.raises(ConfigError, match="max_categories must be at least 1, got 0"):
        CategoryBook(max_categories=0)
