"""watch(attention=True): heads seen without a change to the model."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchvitals

LENGTH, WIDTH, HEADS = 12, 16, 4


class Own(nn.Module):
    """A hand-written causal attention."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)
        )
        self.seen = (q.detach(), k.detach())
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + y.transpose(1, 2).flatten(-2)


def model_of():
    torch.manual_seed(0)
    return nn.Sequential(
        Own(),
        nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.1, batch_first=True),
        nn.Linear(WIDTH, WIDTH),
    )


def losses_of(path=None, **kwargs):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = None
    if path is not None:
        monitor = torchvitals.watch(model, optimizer, run=path, every=2, **kwargs)
    torch.manual_seed(1)
    losses = []
    for _ in range(4):
        loss = model(torch.randn(3, LENGTH, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if monitor is not None:
        monitor.close()
    return losses, model


def test_every_head_of_every_attention_is_there_and_training_is_unchanged(tmp_path):
    original = F.scaled_dot_product_attention
    watched, model = losses_of(tmp_path / "run", attention=True)
    assert F.scaled_dot_product_attention is original
    assert watched == losses_of()[0]
    with torchvitals.open_run(tmp_path / "run") as history:
        sites = {key.site for key in history.keys("attention", stat="entropy")}
        assert sites == {f"{m}.head_{i}" for m in ("0", "1.self_attn") for i in range(HEADS)}
        assert history.steps("attention").tolist() == [1, 2, 4]
        q, k = (t.double() for t in model[0].seen)
        logits = q @ k.transpose(-1, -2) / 2.0
        logits = logits.masked_fill(~torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(), -1e300)
        p = logits.softmax(-1)
        entropy = -(p * p.clamp_min(1e-300).log()).sum(-1).mean(dim=(0, 2))
        row = history.row(4)
        for head in range(HEADS):
            found = row[torchvitals.Key("attention", f"0.head_{head}", "entropy")]
            assert found == pytest.approx(float(entropy[head]), rel=1e-4)
            rms = row[torchvitals.Key("attention", f"0.head_{head}", "query_rms")]
            assert rms == pytest.approx(float(q[:, head].square().mean().sqrt()), rel=1e-4)


def test_it_is_off_unless_asked_for(tmp_path):
    losses_of(tmp_path / "run")
    with torchvitals.open_run(tmp_path / "run") as history:
        assert not history.keys("attention")
