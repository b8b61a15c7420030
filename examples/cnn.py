"""A small residual network that tells drawn shapes apart.

python examples/cnn.py
vitals run examples/cnn.py
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--images", type=int, default=4000)
parser.add_argument("--size", type=int, default=24, help="of an image, in pixels")
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--out", type=Path, default=Path("cnn.pt"))
args = parser.parse_args()

SHAPES = ("disc", "ring", "square", "cross")


def draw(num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes of any colour, place and size in front of noise."""
    labels = torch.randint(len(SHAPES), (num,))
    rows = torch.arange(args.size).view(1, -1, 1)
    columns = torch.arange(args.size).view(1, 1, -1)
    radius = args.size * (0.15 + 0.15 * torch.rand(num, 1, 1))
    y, x = args.size * (0.35 + 0.3 * torch.rand(2, num, 1, 1))
    down, right = (rows - y).abs() / radius, (columns - x).abs() / radius
    far, near = torch.maximum(down, right), torch.minimum(down, right)
    round_ = (down.square() + right.square()).sqrt()
    shapes = (round_ < 1, (round_ < 1) & (round_ > 0.6), far < 1, (far < 1) & (near < 0.3))
    mask = torch.stack(shapes)[labels, torch.arange(num)].unsqueeze(1)
    colour = torch.rand(num, 3, 1, 1) + 0.5
    return 0.3 * torch.randn(num, 3, args.size, args.size) + mask * colour, labels


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Half the size when the stride is two."""
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


torch.manual_seed(0)
images, labels = draw(args.images)
train = DataLoader(TensorDataset(images, labels), args.batch, shuffle=True, drop_last=True)
test = DataLoader(TensorDataset(*draw(args.images // 4)), 2 * args.batch)
model = nn.Sequential(
    nn.Conv2d(3, args.width, 3, padding=1, bias=False),
    nn.BatchNorm2d(args.width),
    nn.ReLU(),
    Residual(args.width, args.width, 1),
    Residual(args.width, 2 * args.width, 2),
    Residual(2 * args.width, 4 * args.width, 2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(4 * args.width, len(SHAPES)),
)
optimizer = torch.optim.SGD(
    model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True
)
schedule = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, args.lr, epochs=args.epochs, steps_per_epoch=len(train)
)
criterion = nn.CrossEntropyLoss()

losses = []
for epoch in range(1, args.epochs + 1):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    right = total = 0
    with torch.no_grad():
        for inputs, targets in test:
            outputs = model(inputs)
            total += criterion(outputs, targets).item() * len(targets)
            right += int((outputs.argmax(1) == targets).sum())
    num = len(test.dataset)
    print(f"epoch {epoch}: loss {losses[-1]:.4f}, test {total / num:.4f}, {right / num:.1%} right")
torch.save({"model": model.state_dict(), "losses": losses}, args.out)
