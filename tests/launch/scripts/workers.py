"""Loader workers started anew, which import the script to find its dataset; stdin; an exit code."""

import argparse
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        return torch.full((4,), float(index)) / 60


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=float, help="an option with the name of one of ours")
    parser.add_argument("--code", type=int)
    options = parser.parse_args()
    torch.manual_seed(len(sys.stdin.read()))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.run)
    loader = DataLoader(
        Numbers(), batch_size=6, shuffle=True, num_workers=1, multiprocessing_context="spawn",
        persistent_workers=True,
    )  # fmt: skip
    for _ in range(8):
        for x in loader:
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print("loss", loss.item().hex())
    print(sys.argv[0] == __file__, sys.argv[1:], __name__, sys.path[0], __spec__, __builtins__)
    print(sorted(name for name in globals() if name.startswith("__")))
    sys.exit(options.code)


if __name__ == "__main__":
    main()
