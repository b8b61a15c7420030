"""Dies in its dataset, with an exception behind the exception."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Broken(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        if index == 20:
            try:
                return {}["missing"]
            except KeyError as error:
                raise ValueError("sample 20 can't be read") from error
        return torch.ones(3) * index


torch.manual_seed(7)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for x in DataLoader(Broken(), batch_size=4):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
