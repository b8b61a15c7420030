"""monitor_scaled_dot_product_attention against a direct computation in float64."""

import math

import pytest
import torch
import torch_module_monitor as peer
from torch import nn
from torch.nn import functional as F

import torchvitals
from torchvitals import ModuleMonitor, MonitorMixin, monitor_scaled_dot_product_attention
from torchvitals.probes.attention import Attention as Probe
from torchvitals.probes.probe import Notes

HEADS, WIDTH = 3, 4


class Attention(nn.Module, MonitorMixin):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.qkv = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.dropout = dropout

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        if self.is_monitoring:
            monitor_scaled_dot_product_attention(
                self.get_module_monitor(), module=self, query=q, key=k, value=v, activation=y,
                is_causal=True, dropout_p=self.dropout, is_reference=self.is_reference_module,
            )  # fmt: skip
        self.seen = (q.detach(), k.detach())
        return y.transpose(1, 2).flatten(-2)


def reference(q, k, mask=None):
    logits = q.double() @ k.double().transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else logits + mask
    p = logits.softmax(-1)
    entropy = -(p * p.clamp_min(1e-300).log()).sum(-1)
    return entropy, logits


def watched(model, **kwargs):
    monitor = ModuleMonitor(run=False, **kwargs)
    monitor.set_module(model)
    return monitor


def test_every_key_and_its_value():
    model = nn.Sequential(Attention())
    monitor = watched(model)
    monitor.add_activation_metric("norm", lambda x: x.norm(dim=-1))
    entropies, tops, queries = [], [], []
    monitor.begin_step(0)
    for _ in range(2):
        model(torch.randn(2, 7, HEADS * WIDTH))
        q, k = model[0].seen
        entropy, logits = reference(q, k, torch.ones(7, 7, dtype=torch.bool).tril())
        entropies.append(entropy)
        tops.append(logits.amax(dim=(0, 2, 3)))
        queries.append(q)
    monitor.end_step()
    found = monitor.get_step_metrics()
    for head in range(HEADS):
        expected = torch.cat(entropies)[:, head].mean()
        assert found[f"attention_entropy/0.head_{head}"] == pytest.approx(float(expected), rel=1e-5)
        top = torch.stack(tops)[:, head].max()
        assert found[f"attention_max_logit/0.head_{head}"] == pytest.approx(float(top), rel=1e-5)
        norm = torch.cat(queries)[:, head].norm(dim=-1).mean()
        assert found[f"activation/0.head_{head}.query/norm"] == pytest.approx(float(norm), rel=1e-5)
        for which in ("key", "value", "activation"):
            assert f"activation/0.head_{head}.{which}/norm" in found


@pytest.mark.parametrize("dims", [2, 3, 4])
@pytest.mark.parametrize("boolean", [True, False])
def test_masks_of_any_shape_cross_attention_and_gqa(dims, boolean):
    batch, length, source = 2, 5, 9
    q = torch.randn(batch, 4, length, WIDTH)
    k = torch.randn(batch, 2, source, WIDTH)
    shape = {2: (), 3: (1,), 4: (batch, 4)}[dims]
    mask = torch.randn(*shape, length, source)
    if boolean:
        mask = mask > -0.5
        mask[..., 0] = True
    monitor = watched(nn.Linear(1, 1))
    monitor.begin_step(0)
    monitor_scaled_dot_product_attention(monitor, "attn", q, k, k, attn_mask=mask, enable_gqa=True)
    monitor.end_step()
    entropy, _ = reference(q, k.repeat_interleave(2, dim=1), mask)
    found = monitor.get_step_metrics()
    values = [found[f"attention_entropy/attn.head_{head}"] for head in range(4)]
    assert values == pytest.approx(entropy.mean(dim=(0, 2)).tolist(), rel=1e-4)


def test_dropout_takes_no_random_numbers_from_the_training():
    results = []
    for due in (True, False):
        torch.manual_seed(0)
        model = Attention(dropout=0.5)
        monitor = watched(model, monitor_step_fn=lambda _step, due=due: due)
        losses = []
        for step in range(3):
            monitor.begin_step(step)
            losses.append(model(torch.randn(2, 7, HEADS * WIDTH)).sum().item())
            monitor.end_step()
        results.append(losses)
    assert results[0] == results[1]


def test_the_references_entropy_is_not_mixed_in():
    model = nn.Sequential(Attention())
    monitor = watched(model, reference="init")
    monitor.add_activation_difference_metric("moved", lambda a, b: (a - b).norm(), ".*query")
    with torch.no_grad():
        model[0].qkv.weight.mul_(3.0)
    x = torch.randn(2, 7, HEADS * WIDTH)
    alone = {}
    for step, with_reference in enumerate((False, True)):
        monitor.begin_step(step)
        model(x)
        if with_reference:
            monitor.run_reference(x)
        monitor.end_step()
        found = monitor.get_step_metrics()
        alone[with_reference] = found["attention_entropy/0.head_0"]
    assert alone[False] == alone[True]
    assert found["activation_difference/0.head_0.query/moved"] > 0


class Plain(Attention):
    """As in torch-module-monitor's README: `is_reference` is not given."""

    module = None

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        if self.is_monitoring:
            monitor_scaled_dot_product_attention(
                self.get_module_monitor(), module=self.module or self,
                query=q, key=k, value=v, activation=y,
            )  # fmt: skip
        return y.transpose(1, 2).flatten(-2)


@pytest.mark.parametrize("name", [None, "by_name"])
def test_the_reference_is_known_without_being_told(name):
    model = nn.Sequential(Plain())
    model[0].module = name
    monitor = watched(model, reference="init")
    monitor.add_activation_metric("norm", lambda x: x.norm(dim=-1), r".*query")
    monitor.add_activation_difference_metric("moved", lambda a, b: (a - b).norm(), ".*query")
    with torch.no_grad():
        model[0].qkv.weight.mul_(3.0)
    x = torch.randn(2, 7, HEADS * WIDTH)
    found = []
    for step, with_reference in enumerate((False, True)):
        monitor.begin_step(step)
        model(x)
        if with_reference:
            monitor.run_reference(x)
        monitor.end_step()
        found.append(monitor.get_step_metrics())
    alone, both = found
    assert f"attention_entropy/{name or 0}.head_0" in alone
    assert both.items() >= alone.items()
    moved = {f"activation_difference/{name or 0}.head_{i}.query/moved" for i in range(HEADS)}
    assert both.keys() - alone.keys() == moved
    assert all(both[key] > 0 for key in moved)


def test_the_monitor_itself_knows_the_reference_too():
    model = nn.Sequential(nn.Linear(1, 1))
    monitor = watched(model, reference="init")
    q, k = torch.randn(2, 2, HEADS, 7, WIDTH)
    monitor.begin_step(0)
    monitor_scaled_dot_product_attention(monitor, model[0], q, k, k)
    monitor_scaled_dot_product_attention(monitor, monitor.reference_module[0], 9 * q, k, k)
    monitor.end_step()
    entropy, _ = reference(q, k)
    found = monitor.get_step_metrics()
    assert found["attention_entropy/0.head_0"] == pytest.approx(float(entropy[:, 0].mean()))


def test_excluded_attention_trains_on_and_is_not_seen():
    model = nn.Sequential(Plain(), Plain())
    monitor = watched(model, excluded_modules_regex="0", reference="init")
    monitor.add_activation_metric("norm", lambda x: x.norm(dim=-1))
    monitor.begin_step(0)
    x = torch.randn(2, 7, HEADS * WIDTH)
    model(x)
    monitor.run_reference(x)
    # By hand, too.
    q = torch.randn(2, HEADS, 7, WIDTH)
    monitor_scaled_dot_product_attention(monitor, model[0], q, q, q)
    monitor_scaled_dot_product_attention(monitor, "0", q, q, q)
    monitor.end_step()
    found = monitor.get_step_metrics()
    assert "attention_entropy/1.head_0" in found
    assert not [key for key in found if "/0" in key]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_each_query_head_has_the_key_and_value_it_looks_at(groups):
    q, k, v = torch.randn(2, 4, 5, WIDTH), *torch.randn(2, 2, groups, 9, WIDTH)
    model = nn.Linear(1, 1)
    monitor = watched(model)
    monitor.add_activation_metric("rms", lambda x: x.square().mean(dim=-1).sqrt())
    monitor.add_activation_metric("square", lambda x: x.square())
    monitor.begin_step(0)
    monitor_scaled_dot_product_attention(monitor, "attn", q, k, v, enable_gqa=True)
    monitor.end_step()
    found = monitor.get_step_metrics()
    for which, tensor in {"query": q, "key": k, "value": v}.items():
        for head, part in enumerate(
            tensor.repeat_interleave(4 // tensor.shape[1], dim=1).unbind(1)
        ):
            expected = float(part.norm(dim=-1).mean()) / math.sqrt(WIDTH)
            assert found[f"activation/attn.head_{head}.{which}/rms"] == pytest.approx(expected)
    assert sum(".key/rms" in key for key in found) == 4

    # The probe says the same.
    class Grouped(nn.Module):
        def forward(self):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def failed(error):
        raise error

    model = Grouped()
    probe = Probe({model: "attn"}, on_error=failed)
    probe.open()
    model()
    probe.close()
    (row,) = probe.values([probe.take()], Notes.of(1, 0))
    columns = dict(zip(map(str, probe.header), row.tolist(), strict=True))
    for head in range(4):
        site = f"attention/attn.head_{head}"
        for which in ("query", "key", "value"):
            square = found[f"activation/attn.head_{head}.{which}/square"]
            assert columns[f"{site}/{which}_rms"] ** 2 == pytest.approx(square, rel=1e-5)
        entropy = found[f"attention_entropy/attn.head_{head}"]
        assert columns[f"{site}/entropy"] == pytest.approx(entropy, rel=1e-5)


def test_same_keys_and_values_with_grouped_queries_as_torch_module_monitor():
    q, k = torch.randn(2, 4, 5, WIDTH), torch.randn(2, 2, 5, WIDTH)
    found = []
    for library, options in ((peer, {}), (torchvitals, {"run": False})):
        monitor = library.ModuleMonitor(lambda _step: True, **options)
        monitor.set_module(nn.Linear(1, 1))
        monitor.add_activation_metric("norm", lambda x: x.norm(dim=-1))
        monitor.begin_step(0)
        library.monitor_scaled_dot_product_attention(
            monitor, "attn", q, k, k, enable_gqa=True, activation=q
        )
        monitor.end_step()
        found.append(monitor.get_step_metrics())
    theirs, ours = found
    ours = {key: value for key, value in ours.items() if "attention_max_logit" not in key}
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_a_query_head_that_is_everybodys():
    q, k = torch.randn(2, 1, 5, WIDTH), torch.randn(2, 3, 5, WIDTH)
    monitor = watched(nn.Linear(1, 1))
    monitor.begin_step(0)
    monitor_scaled_dot_product_attention(monitor, "attn", q, k, k)
    monitor.end_step()
    entropy, _ = reference(q.expand(2, 3, 5, WIDTH), k)
    found = monitor.get_step_metrics()
    values = [found[f"attention_entropy/attn.head_{head}"] for head in range(3)]
    assert values == pytest.approx(entropy.mean(dim=(0, 2)).tolist(), rel=1e-4)


@pytest.mark.parametrize("why", ["nan", "masked"])
def test_queries_without_a_distribution(why):
    q, k = torch.randn(2, 2, HEADS, 7, WIDTH)
    bad, mask = q.clone(), torch.ones(7, 7, dtype=torch.bool)
    if why == "nan":
        bad[:] = math.nan
    else:
        mask[:] = False
    monitor = watched(nn.Linear(1, 1))
    monitor.begin_step(0)
    monitor_scaled_dot_product_attention(monitor, "none", bad, k, k, attn_mask=mask)
    # In another call of the step there are some: these alone count.
    monitor_scaled_dot_product_attention(monitor, "some", bad, k, k, attn_mask=mask)
    monitor_scaled_dot_product_attention(monitor, "some", q, k, k)
    monitor.end_step()
    entropy, logits = reference(q, k)
    found = monitor.get_step_metrics()
    for head in range(HEADS):
        assert math.isnan(found[f"attention_entropy/none.head_{head}"])
        assert math.isnan(found[f"attention_max_logit/none.head_{head}"])
        mean, top = entropy[:, head].mean(), logits[:, head].max()
        assert found[f"attention_entropy/some.head_{head}"] == pytest.approx(float(mean))
        assert found[f"attention_max_logit/some.head_{head}"] == pytest.approx(float(top))


def test_calls_count_by_their_queries():
    short, long = torch.randn(2, HEADS, 1, WIDTH), torch.randn(2, HEADS, 9, WIDTH)
    k = torch.randn(2, HEADS, 9, WIDTH)
    monitor = watched(nn.Linear(1, 1))
    monitor.begin_step(0)
    for q in (short, long):
        monitor_scaled_dot_product_attention(monitor, "attn", q, k, k)
    monitor.end_step()
    entropy, _ = reference(torch.cat([short, long], dim=2), k)
    found = monitor.get_step_metrics()["attention_entropy/attn.head_0"]
    assert found == pytest.approx(float(entropy[:, 0].mean()))


@pytest.mark.parametrize("flat", ["query", "value", "activation"])
def test_wrong_shapes_are_told(flat):
    monitor = watched(nn.Linear(1, 1))
    monitor.begin_step(0)
    tensors = dict.fromkeys(("query", "key", "value", "activation"), torch.ones(3, 2, 2))
    tensors[flat] = torch.ones(2, 2)
    with pytest.raises(ValueError, match=rf"heads, length, width\), got .*{flat} \(2, 2\)"):
        monitor_scaled_dot_product_attention(monitor, "a", **tensors)
