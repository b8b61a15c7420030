"""Mixed precision with a GradScaler, accumulation over two micro-batches."""

import torch
from torch import nn

torch.manual_seed(6)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
for _ in range(240):
    parts = []
    for _ in range(2):
        x = torch.randn(8, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(x).float() - x[:, :1]).square().mean()
        parts.append(loss.item())
        scaler.scale(loss / 2).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print("loss", (sum(parts) / 2).hex())
