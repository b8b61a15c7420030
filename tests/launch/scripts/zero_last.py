"""zero_grad last, accumulation, an EMA copy, a schedule an epoch, pickles of its own classes."""

import copy
import io
import pickle

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(1)
net = Net()
ema, average = copy.deepcopy(net).eval(), AveragedModel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.95)
data = [(x, x[:, :1] - x[:, 1:2].tanh()) for x in torch.randn(10, 4, 8)]

with torch.no_grad():
    ema(data[0][0])  # called before the model is, and never trained
for _ in range(40):
    parts = []
    for index, (x, y) in enumerate(data, start=1):
        loss = nn.functional.mse_loss(net(x), y)
        parts.append(loss.item())
        (loss / 4).backward()
        if index % 4 == 0 or index == len(data):
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(net)
            with torch.no_grad():
                for ours, theirs in zip(ema.parameters(), net.parameters(), strict=True):
                    ours.lerp_(theirs, 0.1)
                ema(x)
            print("loss", (sum(parts) / len(parts)).hex())
            parts = []
    schedule.step()

saved = io.BytesIO()
torch.save(net, saved)
saved.seek(0)
assert type(torch.load(saved, weights_only=False)) is Net
assert type(pickle.loads(pickle.dumps(copy.deepcopy(net)))) is Net
print("ema", ema.head.weight.sum().item().hex(), __name__, Net.__module__)
