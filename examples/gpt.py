"""A small GPT that learns to write Python, one character at a time.

python examples/gpt.py
vitals run examples/gpt.py
"""

import argparse
import inspect
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--text", type=Path, help="a file to learn from [Python's inspect.py]")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--block", type=int, default=64, help="characters seen at once")
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--eval-every", type=int, default=100)
parser.add_argument("--out", type=Path, default=Path("gpt.pt"))
args = parser.parse_args()


class Block(nn.Module):
    """Attention and an MLP, each on a residual path."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, characters, width) in and out."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """The head's weights are those of the embedding."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(characters, args.width)
        self.positions = nn.Embedding(args.block, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.heads) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, characters, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if name.endswith(("out.weight", "mlp.2.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * args.layers))
            elif parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of each next character."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


torch.manual_seed(0)
text = (args.text or Path(inspect.__file__)).read_text()
letters = sorted(set(text))
data = torch.tensor([letters.index(letter) for letter in text])
held_out, train = data[: len(data) // 10], data[len(data) // 10 :]
model = GPT(len(letters))
matrices = [p for p in model.parameters() if p.dim() > 1]
vectors = [p for p in model.parameters() if p.dim() == 1]
optimizer = torch.optim.AdamW(
    [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
    lr=args.lr,
    betas=(0.9, 0.95),
)


def rate(step: int) -> float:
    """A warm-up over a twentieth of the steps, then a cosine down to a tenth."""
    warm = max(1, args.steps // 20)
    done = (step - warm) / max(1, args.steps - warm)
    return (step + 1) / warm if step < warm else 0.55 + 0.45 * math.cos(math.pi * done)


schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


def batch_of(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pieces of the text, and the same pieces one character further on."""
    starts = torch.randint(len(part) - args.block, (args.batch,)).tolist()
    pieces = torch.stack([part[start : start + args.block + 1] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]


@torch.no_grad()
def evaluate() -> float:
    """The loss on text that was not learned from."""
    model.eval()
    total = 0.0
    for _ in range(5):
        inputs, targets = batch_of(held_out)
        total += F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item()
    model.train()
    return total / 5


losses = []
for step in range(1, args.steps + 1):
    inputs, targets = batch_of(train)
    loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    losses.append(loss.item())
    if step % args.eval_every == 0 or step == args.steps:
        print(f"step {step}: loss {losses[-1]:.4f}, held out {evaluate():.4f}")

written = torch.zeros(1, 1, dtype=torch.long)
model.eval()
with torch.no_grad():
    for _ in range(args.block - 1):
        chances = model(written)[:, -1].softmax(dim=-1)
        written = torch.cat([written, torch.multinomial(chances, 1)], dim=1)
print("".join(letters[number] for number in written[0].tolist()))
torch.save({"model": model.state_dict(), "losses": losses}, args.out)
