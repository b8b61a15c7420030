"""Rules against independent references in numpy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchvitals.guard import AdaGC, Custom, Limit, MeanStd, MedianMad, Rolling, ZClip
from torchvitals.guard.rules import Stats, make_rule
from torchvitals.record import ConfigError

norms = st.floats(1e-6, 1e6)
lists = st.lists(norms, min_size=2, max_size=300)


@given(lists)
def test_mean_std_is_numpys_over_all_values(values):
    rule = MeanStd(3.0, memory=None, warmup=2, least=1.0)
    for value in values:
        rule.learn(value)
    logs = np.log(values)
    expected = math.exp(min(logs.mean() + 3.0 * logs.std(ddof=1), 700))
    assert rule.judge(1.0).threshold == pytest.approx(expected, rel=1e-6)


@given(lists)
def test_mean_std_on_raw_values(values):
    rule = MeanStd(2.0, memory=None, warmup=2, least=1.0, log=False)
    for value in values:
        rule.learn(value)
    expected = np.mean(values) + 2.0 * np.std(values, ddof=1)
    assert rule.judge(1.0).threshold == pytest.approx(expected, rel=1e-6)


@given(st.lists(norms, min_size=30, max_size=120))
def test_mean_std_fades_exponentially_beyond_its_memory(values):
    rule = MeanStd(1.0, memory=10, warmup=2, least=1.0)
    mean = var = 0.0
    for n, value in enumerate(values, start=1):
        rule.learn(value)
        # Written out: weights of a fading mean, and the mean square around it.
        w = 1 / min(n, 10)
        weights = (1 - w) * var + w * (1 - w) * (math.log(value) - mean) ** 2
        mean, var = (1 - w) * mean + w * math.log(value), weights
    expected = math.exp(mean + math.sqrt(var * 10 / 9))
    assert rule.judge(1.0).threshold == pytest.approx(expected, rel=1e-6)


@given(st.lists(norms, min_size=4, max_size=300), st.integers(4, 130), st.booleans())
def test_rolling_and_median(values, window, log):
    seen = np.array(values[-window:])
    seen = np.log(seen) if log else seen
    for kind in (Rolling, MedianMad):
        rule = kind(6.0, window=window, warmup=2, log=log, least=1.0)
        for value in values:
            rule.learn(value)
        if kind is Rolling:
            limit = seen.mean() + 6 * seen.std(ddof=1)
        else:
            middle = np.median(seen)
            limit = middle + 6 * 1.4826 * np.median(np.abs(seen - middle))
        expected = math.exp(min(limit, 700)) if log else limit
        assert rule.judge(1.0).threshold == pytest.approx(expected, rel=1e-6)


def test_rolling_waits_for_half_a_window():
    rule = Rolling()
    for _ in range(63):
        rule.learn(1.0)
        assert not rule.judge(1e9).flagged
    rule.learn(1.0)
    assert rule.judge(1.1).flagged


def zclip_reference(values, k=2.5, alpha=0.97, warmup=25):
    """As published: what each value is clipped to."""
    first, mean, var, out = [], 0.0, 0.0, []
    for value in values:
        if len(first) < warmup:
            first.append(value)
            mean, var = np.mean(first), np.var(first)
            out.append(value)
            continue
        std = math.sqrt(var)
        z = (value - mean) / (std + 1e-6)
        clipped = mean + std * k * k / z if z > k else value
        out.append(clipped)
        var = alpha * var + (1 - alpha) * (clipped - mean) ** 2
        mean = alpha * mean + (1 - alpha) * clipped
    return out


@given(st.lists(st.floats(0.01, 100.0), min_size=26, max_size=200))
def test_zclip_clips_as_published(values):
    rule, got = ZClip(), []
    for value in values:
        judged = rule.judge(value)
        taken = judged.target if judged.flagged else value
        rule.learn(taken)
        got.append(taken)
    assert got == pytest.approx(zclip_reference(values), rel=1e-6)


def test_adagc_as_published():
    rng = np.random.default_rng(0)
    rule = AdaGC(warmup=10)
    means = None
    for step in range(1, 60):
        norms = rng.gamma(2.0, size=5)
        factors = rule.factors(norms)
        if step <= 10:
            assert factors is None
            clipped = norms
            means = norms if means is None else np.minimum(means, norms)
        else:
            clipped = np.minimum(norms, 1.05 * means)
            np.testing.assert_allclose(norms * factors, clipped)
            means = 0.98 * means + 0.02 * clipped
        rule.learn_norms(clipped)
        np.testing.assert_allclose(rule._means, means)


def test_adagc_leaves_tensors_without_a_gradient_alone():
    rule = AdaGC(warmup=1)
    rule.learn_norms(np.array([1.0, np.nan]))
    rule.learn_norms(np.array([np.nan, 2.0]))
    np.testing.assert_array_equal(rule.factors(np.array([10.5, np.nan])), [0.1, 1.0])


@given(st.floats(1.0, 1e3), st.floats(1e-3, 1e6))
def test_limit(high, value):
    assert Limit(high).judge(value).flagged == (value > high)


def test_a_callable_gets_statistics_of_what_was_good():
    asked = []
    rule = Custom(lambda stats, value: asked.append(stats) or value > 10 * stats.mean, warmup=3)
    for value in (1.0, 2.0, 3.0):
        assert not rule.judge(1e9).flagged
        rule.learn(value)
    assert not asked
    assert rule.judge(21.0).flagged
    assert not rule.judge(19.0).flagged
    assert asked[0] == Stats(3, 2.0, 1.0, 3.0)


RULES = [MeanStd(3.0), MedianMad(), Rolling(), ZClip(), Limit(2.0), Custom(lambda s, v: v > s.mean)]


@settings(max_examples=25)
@given(st.lists(norms, min_size=1, max_size=150), st.integers(0, 150))
def test_a_state_restored_midway_judges_the_same(values, cut):
    for rule in RULES:
        whole, first = rule.fresh(), rule.fresh()
        for at, value in enumerate(values):
            if at == cut:
                second = rule.fresh()
                second.load_state_dict(first.state_dict())
                first = second
            assert repr(whole.judge(value)) == repr(first.judge(value))
            whole.learn(value)
            first.learn(value)


def test_fresh_has_the_settings_and_none_of_the_values():
    for rule in RULES:
        rule.learn(3.0)
        again = rule.fresh()
        settings = {k: v for k, v in vars(rule).items() if not k.startswith("_")}
        assert {k: v for k, v in vars(again).items() if not k.startswith("_")} == settings
        assert again.stats().get("count", 0) == 0


def test_reset_warms_up_again():
    rule = MeanStd(warmup=5)
    for _ in range(10):
        rule.learn(1.0)
    assert rule.judge(100.0).flagged
    rule.reset()
    assert not rule.judge(100.0).flagged


def test_a_norm_of_zero_teaches_logarithms_nothing():
    rule = MeanStd(warmup=2)
    rule.learn(0.0)
    assert rule.stats()["count"] == 0
    assert not rule.judge(0.0).flagged


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MeanStd(0), "k must be positive and finite, got 0"),
        (lambda: MeanStd("3"), "k must be a number, got '3'"),
        (lambda: MeanStd(math.inf), "k must be positive and finite, got inf"),
        (lambda: MeanStd(warmup=1), "warmup must be at least 2, got 1"),
        (lambda: MeanStd(warmup=2.5), "warmup must be a whole number, got 2.5"),
        (lambda: MeanStd(memory=1), "memory must be at least 2, got 1"),
        (lambda: MeanStd(least=0.5), "least must be at least 1, got 0.5"),
        (lambda: Rolling(window=3), "window must be at least 4, got 3"),
        (lambda: Rolling(window=8, warmup=9), "warmup must fit into window=8, got 9"),
        (lambda: Rolling(least=0.1), "least must be at least 1, got 0.1"),
        (lambda: ZClip(alpha=1.0), "alpha must lie between 0 and 1, got 1.0"),
        (lambda: AdaGC(0.9), "k must be at least 1 for rule='adagc', got 0.9"),
        (lambda: AdaGC(beta=2.0), "beta must lie between 0 and 1, got 2.0"),
        (lambda: Limit(-1.0), "limit must be positive and finite, got -1.0"),
        (lambda: make_rule("median"), "rule must be one of .*, got 'median'"),
        (lambda: make_rule(True), "rule must be one of .*, got True"),
        (lambda: make_rule(None), "rule must be one of .*, got None"),
        (lambda: make_rule(5.0, k=2.0), "k can't be set here: rule is a fixed limit"),
        (lambda: make_rule(MeanStd(), k=2.0), r"k can't be set here: MeanStd\(…\) is a rule"),
        (lambda: make_rule("zclip", log=True), "log can't be set here: rule='zclip' takes k, warm"),
        (lambda: make_rule(lambda s, v: True, log=True), "log can't be set here: rule is a call"),
    ],
)  # fmt: skip
def test_wrong_settings_say_what_is_wrong(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


def test_words_and_numbers_make_rules():
    assert make_rule("mean_std", k=3.0, warmup=5, log=False).log is False
    assert make_rule(7).high == 7.0
    assert make_rule(lambda s, v: False, k=3.0, warmup=4).warmup == 4
