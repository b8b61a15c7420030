"""Every way to call attention is seen, its numbers are right, and the training never notices."""

import copy
import io
import threading
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from torchvitals.probes import attention_calls as calls
from torchvitals.probes.attention import STATS, Attention
from torchvitals.probes.probe import Notes
from torchvitals.record import Key, is_missing

TORCH_SDPA = torch._C._nn.scaled_dot_product_attention
TORCH_FORWARD = F.multi_head_attention_forward
BIAS = vars(CausalBias)["__torch_function__"]


def boom(error):
    raise error


@pytest.fixture(autouse=True)
def nothing_left():
    torch.manual_seed(0)
    yield
    assert F.scaled_dot_product_attention is TORCH_SDPA
    assert F.multi_head_attention_forward is TORCH_FORWARD
    assert scaled_dot_product_attention is TORCH_SDPA
    assert vars(CausalBias)["__torch_function__"] is BIAS
    assert not calls._listeners


def probe_of(model, **options):
    names = {module: name or "[root module]" for name, module in model.named_modules()}
    return Attention(names, **{"on_error": boom, **options})


def read(probe, *raws):
    """{site: {stat: value}} of the only step, or of each."""
    table = probe.values(raws, Notes.of(len(raws), 0))
    assert table.dtype == np.float32
    assert table.shape == (len(raws), len(probe.header))
    steps = []
    for row in table:
        found = {}
        for key, value, missing in zip(probe.header, row, is_missing(row), strict=True):
            assert key.kind == "attention"
            if not missing:
                found.setdefault(key.site, {})[key.stat] = float(value)
        steps.append(found)
    return steps[0] if len(steps) == 1 else steps


def seen(model, *inputs, **options):
    probe = probe_of(model, **options)
    probe.open()
    model(*inputs)
    probe.close()
    return read(probe, probe.take())


def rms(x):
    return x.detach().double().square().mean().sqrt().item()


def expected(query, key, value, output, mask=None, group=1):
    """One {stat: value} a head of (batch, heads, length, width), from whole matrices in float64."""
    out = []
    for head in range(query.shape[1]):
        kv = head // group
        q, k = query[:, head].detach().double(), key[:, kv].detach().double()
        z = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if mask is not None:
            z = z.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else z + mask
        p = z.softmax(dim=-1)
        entropy = -torch.special.xlogy(p, p).sum(dim=-1).mean()
        out.append(
            {
                "entropy": entropy.item(),
                "max_logit": z.max().item(),
                "query_rms": rms(q),
                "key_rms": rms(k),
                "value_rms": rms(value[:, kv]),
                "output_rms": rms(output[:, head]),
            }
        )
    return out


def assert_heads(found, name, heads, rel=1e-4):
    assert set(found) == {f"{name}.head_{i}" for i in range(len(heads))}
    for i, head in enumerate(heads):
        assert found[f"{name}.head_{i}"] == pytest.approx(head, rel=rel, abs=1e-5)


class Attend(nn.Module):
    """Projections and one attention, causal."""

    def __init__(self, width=16, heads=4, groups=None, dropout=0.0, function=None):
        super().__init__()
        self.heads, self.groups, self.dropout = heads, groups or heads, dropout
        self.size = width // heads
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * self.groups * self.size)
        self.out = nn.Linear(width, width)
        self.function = function

    def parts(self, x):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, self.groups, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(self, x):
        q, k, v = self.parts(x)
        function = self.function or F.scaled_dot_product_attention
        mixed = function(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True,
            enable_gqa=self.groups != self.heads,
        )  # fmt: skip
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, checkpointed=False, **options):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(16), Attend(**options)
        self.checkpointed = checkpointed

    def forward(self, x):
        y = self.norm(x)
        mixed = checkpoint(self.attn, y, use_reentrant=False) if self.checkpointed else self.attn(y)
        return x + mixed


def lower(length):
    return torch.ones(length, length, dtype=torch.bool).tril()


def truth(attend, x, group=1):
    q, k, v = attend.parts(x)
    out = TORCH_SDPA(q, k, v, is_causal=True, enable_gqa=group > 1)
    return expected(q, k, v, out, lower(x.shape[1]), group)


def test_a_call_is_seen_under_its_module():
    model, x = nn.Sequential(Block(), Block()), torch.randn(3, 7, 16)
    found = seen(model, x)
    first = {site: stats for site, stats in found.items() if site.startswith("0.")}
    assert_heads(first, "0.attn", truth(model[0].attn, model[0].norm(x)))
    assert len(found) == 8
    assert all(tuple(stats) == STATS for stats in found.values())


def test_groups_share_keys():
    model, x = Attend(groups=2), torch.randn(3, 7, 16)
    found = seen(model, x)
    assert_heads(found, "[root module]", truth(model, x, group=2))
    heads = [found[f"[root module].head_{i}"] for i in range(4)]
    assert heads[0]["key_rms"] == heads[1]["key_rms"] != heads[2]["key_rms"]


def test_micro_batches_add_up():
    model = Attend()
    model.function = lambda q, k, v, **_: F.scaled_dot_product_attention(q, k, v)
    probe = probe_of(model)
    xs = [torch.randn(n, 6, 16) for n in (1, 3, 2)]
    probe.open()
    for x in xs:
        model(x)
    together = probe.take()
    model(torch.cat(xs))
    whole = probe.take()
    nothing = probe.take()
    probe.close()
    parts = read(probe, together)
    for site, stats in read(probe, whole).items():
        assert parts[site] == pytest.approx(stats, rel=1e-5)
    assert read(probe, nothing) == {}
    assert probe.shape(together) == probe.shape(whole) != probe.shape(nothing)
    both = read(probe, together, whole)
    assert [set(step) for step in both] == [set(parts)] * 2


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", ["none", "padding", "causal", "both"])
@pytest.mark.parametrize("bias_kv", [False, True])
def test_multihead_attention(need_weights, batch_first, masked, bias_kv):
    model = nn.MultiheadAttention(
        16, 4, batch_first=batch_first, add_bias_kv=bias_kv, add_zero_attn=bias_kv
    )
    query, memory = torch.randn(3, 5, 16), torch.randn(3, 6, 16)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = True
    options = {"need_weights": need_weights}
    if masked in {"padding", "both"}:
        options["key_padding_mask"] = padding
    if masked in {"causal", "both"}:
        options["attn_mask"] = torch.ones(5, 6, dtype=torch.bool).triu(1)
    order = (lambda x: x) if batch_first else (lambda x: x.transpose(0, 1))
    probe = probe_of(model)
    plain = model(order(query), order(memory), order(memory), **options)
    probe.open()
    watched = model(order(query), order(memory), order(memory), **options)
    probe.close()
    assert torch.equal(plain[0], watched[0])
    assert need_weights is (watched[1] is not None)

    weight, bias = model.in_proj_weight.chunk(3), model.in_proj_bias.chunk(3)
    q, k, v = (
        F.linear(x, w, b) for x, w, b in zip((query, memory, memory), weight, bias, strict=True)
    )
    if bias_kv:
        k = torch.cat([k, model.bias_k.expand(3, 1, 16), torch.zeros(3, 1, 16)], dim=1)
        v = torch.cat([v, model.bias_v.expand(3, 1, 16), torch.zeros(3, 1, 16)], dim=1)
    allowed = torch.ones(3, 5, k.shape[1], dtype=torch.bool)
    if "key_padding_mask" in options:
        allowed[..., :6] &= ~padding[:, None]
    if "attn_mask" in options:
        allowed[..., :6] &= ~options["attn_mask"]
    q, k, v = (x.unflatten(-1, (4, 4)).transpose(1, 2) for x in (q, k, v))
    out = TORCH_SDPA(q, k, v, attn_mask=allowed[:, None])
    found = read(probe, probe.take())
    assert_heads(found, "[root module]", expected(q, k, v, out, allowed))


def test_weights_given_back_stay_the_same():
    model = nn.MultiheadAttention(16, 4, dropout=0.3, batch_first=True)
    x = torch.randn(2, 5, 16, requires_grad=True)
    results = []
    for watched in (False, True):
        probe = probe_of(model)
        if watched:
            probe.open()
        torch.manual_seed(3)
        out, weights = model(x, x, x, average_attn_weights=False)
        (out.sum() + weights.square().sum()).backward()
        results.append([out, weights, x.grad.clone(), torch.get_rng_state()])
        x.grad = None
        probe.close()
    assert all(map(torch.equal, *results))


def test_unbatched_multihead_attention():
    model, x = nn.MultiheadAttention(16, 4), torch.randn(5, 16)
    for need_weights in (True, False):
        probe = probe_of(model)
        probe.open()
        model(x, x, x, need_weights=need_weights)
        probe.close()
        assert len(read(probe, probe.take())) == 4


def test_encoder_layers():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    found = seen(model, torch.randn(2, 6, 16))
    names = {f"layers.{i}.self_attn.head_{j}" for i in range(2) for j in range(4)}
    assert set(found) == names
    assert seen(model.eval(), torch.randn(2, 6, 16)) == {}


def sdpa_attention_forward(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None
):
    """The shape of the function that models of the transformers library call."""
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling,
        is_causal=is_causal,
    )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None


class Hosted(Attend):
    def forward(self, x):
        q, k, v = self.parts(x)
        mask = torch.zeros(len(x), 1, x.shape[1], x.shape[1])
        mask.masked_fill_(~lower(x.shape[1]), torch.finfo(torch.float32).min)
        out, _ = sdpa_attention_forward(self, q, k, v, mask, scaling=0.5, is_causal=False)
        return self.out(out.flatten(-2))


def test_a_function_that_is_given_its_module():
    model, x = nn.Sequential(Hosted()), torch.randn(3, 7, 16)
    assert_heads(seen(model, x), "0", truth(model[0], x))

    class Outside:
        def attend(self, module, q):
            return sdpa_attention_forward(module, q, q, q, None, is_causal=False)

    probe = probe_of(model)
    probe.open()
    Outside().attend(model[0], torch.randn(1, 4, 3, 4))
    sdpa_attention_forward(nn.Identity(), *[torch.randn(1, 4, 3, 4)] * 3, None, is_causal=False)
    probe.close()
    assert len(read(probe, probe.take())) == 4


class Imported(nn.Module):
    """Took the function by name, long before."""

    def forward(self, x):
        return scaled_dot_product_attention(x, x, x)


def test_functions_imported_by_name_are_reached():
    assert set(seen(nn.Sequential(Imported()), torch.randn(2, 3, 5, 4))) == {
        f"0.head_{i}" for i in range(3)
    }


def test_three_dimensions():
    class Flat(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    model, x = Flat(), torch.randn(6, 5, 4)
    found = seen(model, x)
    assert_heads(found, "[root module]", expected(*[x[:, None]] * 3, TORCH_SDPA(x, x, x)[:, None]))
    model.num_heads = 3
    found, x = seen(model, x), x.view(2, 3, 5, 4)
    assert_heads(found, "[root module]", expected(x, x, x, TORCH_SDPA(x, x, x)))
    model.num_heads = 4  # does not fit
    assert len(seen(model, torch.randn(6, 5, 4))) == 1
    assert len(seen(model, torch.randn(5, 4))) == 1
    assert len(seen(model, torch.randn(2, 2, 3, 5, 4))) == 3


def test_keywords_and_causal_bias():
    class Keywords(nn.Module):
        def forward(self, x, bias=None):
            return F.scaled_dot_product_attention(query=x, key=x, value=x, attn_mask=bias)

    class Named(nn.Module):
        def forward(self, q, k, bias):
            return scaled_dot_product_attention(q, k, k, bias)

    x, longer = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    assert len(seen(Keywords(), x)) == 3
    bias = causal_upper_left(5, 5)
    masked = expected(x, x, x, TORCH_SDPA(x, x, x, is_causal=True), lower(5))
    assert_heads(seen(Named(), x, x, bias), "[root module]", masked)
    allowed = torch.ones(5, 7, dtype=torch.bool).tril(2)
    plain = Named()(x, longer, causal_lower_right(5, 7))
    out = TORCH_SDPA(x, longer, longer, attn_mask=allowed)
    torch.testing.assert_close(plain, out)
    found = seen(Named(), x, longer, causal_lower_right(5, 7))
    assert_heads(found, "[root module]", expected(x, longer, longer, out, allowed))


def test_only_training_modules_that_are_known():
    model, x = Block(), torch.randn(2, 5, 16)
    assert seen(model.eval(), x) == {}
    model.train()
    parent = Attention({model: "block"}, on_error=boom)
    parent.open()
    model(x)
    TORCH_SDPA(x, x, x)
    F.scaled_dot_product_attention(x, x, x)
    other = threading.Thread(target=lambda: model(x))
    other.start()
    other.join()
    parent.close()
    found = read(parent, parent.take())
    assert set(found) == {f"block.head_{i}" for i in range(4)}
    model(x)
    assert parent.take().parts == []


@pytest.mark.parametrize("checkpointed", [False, True])
def test_recomputation_is_not_counted(checkpointed):
    model, x = Block(checkpointed=checkpointed), torch.randn(2, 5, 16)
    probe = probe_of(model)
    probe.open()
    model(x).sum().backward()
    probe.close()
    raw = probe.take()
    ((_, sums),) = raw.parts
    assert sums[:, 1].tolist() == [10.0] * 4


@pytest.mark.parametrize("name", ["own", "torch", "weights"])
@pytest.mark.parametrize("bf16", [False, True])
def test_training_is_bit_identical(name, bf16):
    class Weights(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.MultiheadAttention(16, 4, dropout=0.2, batch_first=True)

        def forward(self, x):
            return self.attn(x, x, x)[0]

    make = {
        "own": lambda: Block(dropout=0.2),
        "torch": lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.2, batch_first=True),
        "weights": Weights,
    }[name]

    def train(watched):
        torch.manual_seed(1)
        model = make()
        probe = probe_of(model, budget=60)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            if watched:
                probe.open()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(torch.randn(3, 20, 16)).float().square().mean()
            loss.backward()
            probe.close()
            assert bool(probe.take().parts) is watched
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return [*losses, *model.state_dict().values(), torch.get_rng_state()]

    assert all(map(torch.equal, train(False), train(True)))


def test_errors_are_told_and_close_the_probe(monkeypatch):
    told = []
    model, x = Attend(), torch.randn(2, 5, 16)
    probe, other = probe_of(model, on_error=told.append), probe_of(model)
    plain = model(x)
    probe.open()
    other.open()
    monkeypatch.setattr(probe, "_add", lambda *_: boom(RuntimeError("no")))
    assert torch.equal(model(x), plain)
    assert torch.equal(model(x), plain)
    assert [str(error) for error in told] == ["no"]
    assert F.scaled_dot_product_attention is not TORCH_SDPA
    other.close()
    assert probe.take().parts == []
    assert other.take().parts


def test_errors_of_the_training_stay_its_own():
    probe = probe_of(nn.Identity())
    probe.open()
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 4))
    with pytest.raises(TypeError):
        F.multi_head_attention_forward()
    probe.close()


@pytest.mark.parametrize("first", [0, 1])
def test_two_probes_close_in_any_order(first):
    model, x = Attend(), torch.randn(2, 5, 16)
    probes = [probe_of(model), probe_of(model)]
    for probe in probes:
        probe.open()
        probe.open()
    model(x)
    probes[first].close()
    model(x)
    probes[1 - first].close()
    probes[first].close()
    counts = [probe.take().parts[0][1][0, 1].item() for probe in probes]
    assert counts[first] == 10
    assert counts[1 - first] == 20


def test_somebody_else_on_top():
    """Who replaces the function while ours stands there, and puts it back when ours is gone."""
    model, x = Attend(), torch.randn(2, 5, 16)
    probe = probe_of(model)
    probe.open()
    below = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = theirs = partial(below)
    model(x)
    probe.close()
    assert F.scaled_dot_product_attention is theirs
    model(x)
    probe.open()
    model(x)
    probe.close()
    assert probe.take().parts[0][1][0, 1].item() == 20
    F.scaled_dot_product_attention = below
    assert torch.equal(model(x), model(x))
    assert probe.take().parts == []
    probe.open()
    model(x)
    probe.close()
    assert probe.take().parts[0][1][0, 1].item() == 10


def test_heads_that_change_keep_their_columns():
    class Any(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    model = Any()
    probe = probe_of(model)
    probe.open()
    raws = []
    for heads in (2, 4, 1):
        model(torch.randn(2, heads, 5, 4))
        raws.append(probe.take())
    probe.close()
    assert len(read(probe, raws[0])) == 2
    first = probe.header
    assert len(read(probe, raws[1])) == 4
    second = probe.header
    assert second[: len(first)] == first
    assert first[0] == Key("attention", "[root module].head_0", "entropy")
    assert set(read(probe, raws[2])) == {"[root module].head_0"}
    assert probe.header is second


def test_values_without_a_distribution():
    class Masked(nn.Module):
        def forward(self, x, mask):
            return F.scaled_dot_product_attention(x, x, x, mask)

    x = torch.randn(2, 2, 5, 4)
    x[0, 0, 1, 2] = torch.nan
    found = seen(Masked(), x, torch.zeros(5, 5, dtype=torch.bool))
    head = found["[root module].head_0"]
    assert np.isnan(head["entropy"])
    assert np.isnan(head["max_logit"])
    good = torch.cat([x[0, 0, :1], x[0, 0, 2:], x[1, 0]])
    assert head["query_rms"] == pytest.approx(rms(good), rel=1e-5)


def test_a_budget_looks_at_some_queries():
    model, x = Attend(), torch.randn(2, 200, 16)
    probe = probe_of(model, budget=8 * 200 * 40)
    probe.open()
    model(x)
    probe.close()
    raw = probe.take()
    assert raw.parts[0][1][:, 1].tolist() == [2 * 40.0] * 4
    found = read(probe, raw)
    whole = seen(model, x, budget=None)
    for site, stats in whole.items():
        assert found[site]["entropy"] == pytest.approx(stats["entropy"], rel=0.03)
        assert found[site]["key_rms"] == stats["key_rms"]


def test_nothing_waits_for_the_values():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Reads(TorchDispatchMode):
        found = ()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.found = (*self.found, func.overloadpacket._qualified_op_name)
            return func(*args, **(kwargs or {}))

    model, x = Attend(groups=2), torch.randn(2, 5, 16)
    probe = probe_of(model)
    probe.open()
    with Reads() as reads:
        model(x)
        model(x)
        probe.take()
    probe.close()
    assert "aten::bmm" in reads.found
    assert not {"aten::_local_scalar_dense", "aten::item", "aten::nonzero"} & set(reads.found)
    assert probe.take_spent() > 0
    assert probe.take_spent() == 0


def test_compiled_calls_pass_through():
    torch.compiler.reset()
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    model, x = Attend(), torch.randn(2, 5, 16)
    probe = probe_of(model)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    plain = model(x)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), plain)
        probe.open()
        torch.testing.assert_close(compiled(x), plain)
        probe.close()
    assert probe.take().parts == []
    assert len(graphs) == 2
    model.compile(backend=backend)
    probe.open()
    assert F.scaled_dot_product_attention is TORCH_SDPA
    torch.compiler.reset()


def test_copies_and_tracing_while_open():
    model, x = Block(), torch.randn(2, 5, 16)
    probe = probe_of(model)
    probe.open()
    copy.deepcopy(model)(x)
    torch.save(model, io.BytesIO())
    with torch.device("meta"):
        F.scaled_dot_product_attention(*[torch.empty(1, 2, 3, 4)] * 3)
    assert probe.take().parts == []

    class Mapped(nn.Module):
        def forward(self, x):
            return torch.vmap(lambda q: F.scaled_dot_product_attention(q, q, q))(x)

    mapped = Mapped()
    other = probe_of(mapped)
    other.open()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        mapped(torch.randn(2, 3, 2, 5, 4))
    other.close()
    probe.close()
    assert other.take().parts == []
