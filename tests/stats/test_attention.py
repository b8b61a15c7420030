"""Blocks of logits give what the whole softmax matrix gives, in a fraction of its memory."""

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from torchvitals.record import ConfigError
from torchvitals.stats.attention import MIN_QUERIES, ONE_HOT, attention_stats


def reference(query, key, attn_mask=None, is_causal=False, scale=None):
    """(entropies, largest logits) of each query by the definition, in float64 numpy.

    Neither for queries without keys, nor with NaN or +Inf: those are NaN and −inf.
    """
    q, k = query.detach().double().numpy(), key.detach().double().numpy()
    if q.ndim > 2:
        k = np.repeat(k, q.shape[-3] // k.shape[-3], axis=-3)
    with np.errstate(invalid="ignore"):
        z = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            z = np.where(attn_mask.numpy(), z, -np.inf)
        else:
            z = z + attn_mask.double().numpy()
    if is_causal:
        z = np.where(np.tri(*z.shape[-2:], dtype=bool), z, -np.inf)
    entropy = np.full(z.shape[:-1], np.nan)
    largest = np.full(z.shape[:-1], -np.inf)
    for index in np.ndindex(z.shape[:-1]):
        row = z[index]
        if np.isnan(row).any() or (row == np.inf).any() or not np.isfinite(row).any():
            continue
        p = np.exp(row - row.max())
        p = (p / p.sum())[p > 0]
        entropy[index] = -(p * np.log(p)).sum()
        largest[index] = row.max()
    return entropy, largest


def check(stats, entropy, largest, tolerance=2e-5):
    """Against (batch…, heads, L)."""
    queries = slice(stats.queries.start, None, stats.queries.step)
    entropy = entropy[..., queries].reshape(-1, *entropy[..., queries].shape[-2:])
    largest = largest[..., queries].reshape(entropy.shape)
    there = ~np.isnan(entropy)
    np.testing.assert_array_equal(stats.num_rows.numpy(), there.sum(axis=(0, 2)))
    expected = np.where(there, entropy, 0.0).sum(axis=(0, 2))
    found = stats.entropy_sum.numpy()
    rows = np.maximum(there.sum(axis=(0, 2)), 1)
    np.testing.assert_allclose(found / rows, expected / rows, atol=tolerance, rtol=tolerance)
    some = there.any(axis=(0, 2))
    np.testing.assert_array_equal(np.isnan(stats.entropy.numpy()), ~some)
    top = largest.max(axis=(0, 2), initial=-np.inf)
    np.testing.assert_allclose(stats.max_logit.numpy(), top, rtol=tolerance, atol=tolerance)


SIZES = st.integers(1, 9)


@st.composite
def cases(draw):
    batch = draw(st.sampled_from([(), (1,), (2,), (3,), (2, 3)]))
    groups, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    length, keys, width = draw(SIZES), draw(SIZES), draw(st.integers(1, 8))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))
    torch.manual_seed(draw(st.integers(0, 1000)))
    size = draw(st.sampled_from([0.1, 1.0, 8.0]))
    query = (size * torch.randn(*batch, groups * group, length, width)).to(dtype)
    key = (size * torch.randn(*batch, groups, keys, width)).to(dtype)
    arguments = {"enable_gqa": group > 1}
    if draw(st.booleans()):
        # As most models lay it out: heads beside their width in memory.
        query = query.transpose(-2, -3).contiguous().transpose(-2, -3)
    kind = draw(st.sampled_from(["none", "causal", "bool", "float"]))
    if kind == "causal":
        arguments["is_causal"] = True
    elif kind != "none":
        full = (*batch, groups * group, length, keys)
        dims = draw(st.integers(2, len(full)))
        keep = draw(st.lists(st.booleans(), min_size=dims, max_size=dims))
        shape = [n if kept else 1 for n, kept in zip(full[-dims:], keep, strict=True)]
        allowed = torch.rand(shape) < draw(st.sampled_from([0.2, 0.7, 1.0]))
        if kind == "bool":
            arguments["attn_mask"] = allowed
        else:
            bias = torch.randn(shape).to(dtype)
            arguments["attn_mask"] = bias.masked_fill(~allowed, -torch.inf)
    if draw(st.booleans()):
        arguments["scale"] = draw(st.sampled_from([0.05, 0.3, 1.0]))
    return query, key, arguments


@settings(max_examples=200)
@given(
    cases(),
    st.sampled_from([1, 7, 40, 200, 1 << 22]),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_agrees_with_the_definition(case, limit, most):
    query, key, arguments = case
    stats = attention_stats(
        query, key, limit_elements=limit, max_queries=most, keep_rows=True, **arguments
    )
    named = {name: value for name, value in arguments.items() if name != "enable_gqa"}
    entropy, largest = reference(query, key, **named)
    check(stats, entropy, largest)
    queries = slice(stats.queries.start, None, stats.queries.step)
    np.testing.assert_allclose(
        stats.rows.numpy(), entropy[..., queries], atol=2e-5, rtol=2e-5, equal_nan=True
    )
    if query.dtype is torch.float64:
        check(stats, entropy, largest, tolerance=1e-12)


@settings(max_examples=50)
@given(cases())
def test_the_same_as_torch_multiplies(case):
    """What the reference calls attention is what torch computes: masks and groups mean the same."""
    query, key, arguments = case
    query, key = query.double(), key.double()
    if arguments.get("attn_mask") is not None and arguments["attn_mask"].dtype is not torch.bool:
        arguments["attn_mask"] = arguments["attn_mask"].double()
    identity = torch.eye(key.shape[-2], dtype=torch.float64).expand(*key.shape[:-1], -1)
    p = torch.nn.functional.scaled_dot_product_attention(query, key, identity, **arguments)
    entropy = -torch.special.xlogy(p, p).sum(dim=-1)
    rows = attention_stats(query, key, keep_rows=True, **arguments).rows
    there = ~rows.isnan()
    torch.testing.assert_close(rows[there], entropy[there], atol=1e-9, rtol=1e-9)


def test_one_hot_and_uniform():
    key = torch.eye(4).expand(2, 3, 4, 4)
    sharp = attention_stats(100 * key, key, scale=1.0)
    assert (sharp.entropy < 1e-30).all()
    assert sharp.one_hot_frac.tolist() == [1.0] * 3
    assert sharp.max_logit.tolist() == [100.0] * 3
    flat = attention_stats(torch.zeros(2, 3, 5, 4), key)
    torch.testing.assert_close(flat.entropy, torch.full((3,), np.log(4)), check_dtype=False)
    assert flat.one_hot_frac.tolist() == [0.0] * 3
    # One key with just the share, three alike with the rest.
    logit = np.log(3 * ONE_HOT / (1 - ONE_HOT))
    for factor, expected in ((1.01, 1.0), (0.99, 0.0)):
        query = torch.eye(4)[None, :1] * logit * factor
        assert attention_stats(query, key[0, :1], scale=1.0).one_hot_frac.tolist() == [expected]


def test_masked_and_broken_queries_are_left_out():
    torch.manual_seed(0)
    query, key = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 6, 4)
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[1] = False
    query[0, 0, 3, 0] = torch.nan
    query[0, 1, 4] = torch.inf
    stats = attention_stats(query, key, attn_mask=mask, keep_rows=True)
    assert stats.num_rows.tolist() == [3, 3]
    assert stats.rows[0, 0].isnan().tolist() == [False, True, False, True, False]
    assert stats.entropy.isfinite().all()
    check(stats, *reference(query, key, mask))
    nothing = attention_stats(query, key, attn_mask=torch.zeros(1, 6, dtype=torch.bool))
    assert nothing.num_rows.tolist() == [0, 0]
    assert nothing.entropy.isnan().all()
    assert nothing.max_logit.tolist() == [-torch.inf] * 2


def test_smallest_float_as_a_mask():
    """As transformers does it: such a row is uniform, for torch and for us."""
    query, key = torch.randn(2, 1, 3, 4), torch.randn(2, 1, 5, 4)
    mask = torch.zeros(2, 1, 3, 5)
    mask[..., 2:] = torch.finfo(torch.float32).min
    mask[1] = torch.finfo(torch.float32).min
    rows = attention_stats(query, key, attn_mask=mask, keep_rows=True).rows
    assert (rows[0] <= np.log(2) + 1e-6).all()
    torch.testing.assert_close(rows[1], torch.full((1, 3), np.log(5), dtype=torch.float32))


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 2, 0, 4)])
def test_nothing_to_look_at(shape):
    stats = attention_stats(torch.randn(shape), torch.randn(*shape[:2], 5, 4), is_causal=True)
    assert stats.num_rows.tolist() == [0, 0]
    no_keys = attention_stats(torch.randn(2, 2, 3, 4), torch.randn(2, 2, 0, 4))
    assert no_keys.num_rows.tolist() == [0, 0]


def test_layouts():
    torch.manual_seed(0)
    query, key = torch.randn(6, 5, 4), torch.randn(6, 7, 4)
    mask = torch.rand(6, 5, 7) < 0.8
    heads = attention_stats(query, key)
    assert heads.entropy.shape == (6,)
    folded = attention_stats(query, key, attn_mask=mask, num_heads=3, keep_rows=True)
    apart = attention_stats(
        query.view(2, 3, 5, 4), key.view(2, 3, 7, 4), attn_mask=mask.view(2, 3, 5, 7)
    )
    assert torch.equal(folded.entropy_sum, apart.entropy_sum)
    assert folded.rows.shape == (2, 3, 5)
    alike = attention_stats(query, key, attn_mask=mask[:1], num_heads=3)
    assert torch.equal(
        alike.entropy_sum,
        attention_stats(
            query.view(2, 3, 5, 4), key.view(2, 3, 7, 4), attn_mask=mask[0]
        ).entropy_sum,
    )
    one = attention_stats(query[0], key[0], keep_rows=True)
    torch.testing.assert_close(one.entropy, heads.entropy[:1])
    assert one.rows.shape == (1, 5)
    # One key head for all queries needs no flag, as in torch.
    shared = attention_stats(query[None], key[None, :1])
    check(shared, *reference(query[None], key[None, :1].expand(1, 6, 7, 4)))
    # What is alike in the whole batch may come once.
    for once in (query[None], query):
        wide = attention_stats(once, key.expand(2, 6, 7, 4), keep_rows=True)
        assert wide.rows.shape == (2, 6, 5)
        torch.testing.assert_close(wide.entropy, heads.entropy)


def test_evenly_spaced_queries():
    torch.manual_seed(0)
    query, key = torch.randn(2, 3, 1000, 8), torch.randn(2, 3, 1000, 8)
    everything = attention_stats(query, key, is_causal=True)
    assert everything.queries == range(1000)
    some = attention_stats(query, key, is_causal=True, max_queries=100)
    assert some.queries == range(4, 1000, 10)
    torch.testing.assert_close(some.entropy, everything.entropy, rtol=0.02, atol=0)
    budgeted = attention_stats(query, key, is_causal=True, budget=6 * 1000 * 50)
    assert len(budgeted.queries) == 50
    assert len(attention_stats(query, key, budget=1).queries) <= MIN_QUERIES
    assert len(attention_stats(query, key, budget=1, max_queries=3).queries) == 3
    assert attention_stats(query, key, budget=1 << 40).queries == range(1000)


def test_errors():
    query, key = torch.randn(2, 6, 5, 4), torch.randn(2, 2, 5, 4)
    with pytest.raises(ConfigError, match=r"6 query heads .* 2 key heads; .*enable_gqa=True"):
        attention_stats(query, key)
    with pytest.raises(ConfigError, match=r"6 query heads do not go with 4 key heads$"):
        attention_stats(query, torch.randn(2, 4, 5, 4), enable_gqa=True)
    with pytest.raises(ConfigError, match="same width"):
        attention_stats(query, torch.randn(2, 6, 5, 3))
    with pytest.raises(ConfigError, match="max_queries must be at least 1, got 0"):
        attention_stats(query, query, max_queries=0)


def test_inputs_generator_and_graph_stay_as_they_are():
    query, key = (torch.randn(1, 2, 6, 4, requires_grad=True) for _ in range(2))
    mask = torch.randn(6, 6)
    before = [x.detach().clone() for x in (query, key, mask)]
    state = torch.get_rng_state()
    stats = attention_stats(query, key, attn_mask=mask, keep_rows=True)
    assert not stats.entropy_sum.requires_grad
    assert not stats.rows.requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, (query, key, mask), before))


def test_autocast_does_not_reach_it():
    torch.manual_seed(0)
    query, key = torch.randn(1, 2, 16, 8), torch.randn(1, 2, 16, 8)
    plain = attention_stats(query, key)
    with torch.autocast("cpu", torch.bfloat16):
        cast = attention_stats(query, key)
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(cast.entropy_sum, plain.entropy_sum)


class Allocations(TorchDispatchMode):
    """Bytes of the storages that operators made and that are still alive, at their peak."""

    def __init__(self, *known):
        super().__init__()
        self.alive, self.peak = 0, 0
        self._seen = {x.untyped_storage().data_ptr(): None for x in known}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._seen and storage.nbytes():
                    self._seen[storage.data_ptr()] = storage
                    self.alive += storage.nbytes()
                    weakref.finalize(storage, self._free, storage.data_ptr(), storage.nbytes())
                    self._seen[storage.data_ptr()] = None
        self.peak = max(self.peak, self.alive)
        return out

    def _free(self, pointer, size):
        self.alive -= size
        self._seen.pop(pointer, None)


def full_matrix(query, key):
    z = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    z = z.masked_fill_(~torch.ones(z.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    p = z.softmax(dim=-1)
    return -torch.special.xlogy(p, p).sum(dim=-1).mean(dim=(0, 2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory(dtype, causal):
    torch.manual_seed(0)
    query, key = (torch.randn(2, 1024, 12, 64, dtype=dtype).transpose(1, 2) for _ in range(2))
    softmax_bytes = 2 * 12 * 1024 * 1024 * 4
    with Allocations(query, key) as ours:
        stats = attention_stats(query, key, is_causal=causal)
    assert ours.peak <= softmax_bytes / 4
    assert stats.num_rows.tolist() == [2 * 1024] * 12
    # The promise itself, with a little room for what is per query.
    assert ours.peak <= 4 * (1 << 22) * 1.1
    with Allocations(query, key) as less:
        attention_stats(query, key, is_causal=causal, limit_elements=1 << 20)
    assert less.peak <= 4 * (1 << 20) * 1.25


def test_the_memory_test_can_count():
    query = torch.randn(1, 2, 64, 8)
    gc.collect()
    with Allocations(query) as counted:
        full_matrix(query, query)
    matrix = 2 * 64 * 64 * 4
    assert 2 * matrix <= counted.peak <= 5 * matrix
