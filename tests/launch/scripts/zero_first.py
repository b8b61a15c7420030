"""zero_grad first, clipping, a schedule a batch, evaluation after each epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(72, 8)
labels = inputs[:, :3].argmax(1)
train = DataLoader(TensorDataset(inputs[:48], labels[:48]), batch_size=8, shuffle=True)
held_out = DataLoader(TensorDataset(inputs[48:], labels[48:]), batch_size=12)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=90)

for _ in range(15):
    model.train()
    for x, y in train:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        print("loss", loss.item().hex())
    model.eval()
    with torch.no_grad():
        losses = [criterion(model(x), y).item() for x, y in held_out]
    print("eval", (sum(losses) / len(losses)).hex())
