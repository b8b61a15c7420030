"""monitor_scaled_dot_product_attention against a direct computation in float64."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchvitals import ModuleMonitor, MonitorMixin, monitor_scaled_dot_product_attention

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


def test_wrong_shapes_are_told():
    monitor = watched(nn.Linear(1, 1))
    monitor.begin_step(0)
    with pytest.raises(ValueError, match="heads, length, width"):
        monitor_scaled_dot_product_attention(monitor, "a", *torch.ones(3, 2, 2))
