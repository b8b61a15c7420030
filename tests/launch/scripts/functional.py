"""`functional_call` with tensors of its own, which are in no module."""

import torch
from torch import nn
from torch.func import functional_call


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.second = nn.Linear(12, 1)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


torch.manual_seed(5)
net = Net()
weights = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
optimizer = torch.optim.Adam(weights.values(), lr=1e-2)
for _ in range(240):
    x = torch.randn(8, 6)
    loss = (functional_call(net, weights, (x,)) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
