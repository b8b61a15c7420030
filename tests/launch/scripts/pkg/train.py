"""Run with -m; inside a function, the model an attribute."""

import sys

import torch
from torch import nn

from . import __doc__ as about


class Trainer:
    def __init__(self):
        torch.manual_seed(10)
        self.embedding = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11)
        self.optimizer = torch.optim.Adam(
            [
                {"params": self.embedding.parameters(), "lr": 0.1},
                {"params": self.head.parameters()},
            ]
        )

    def step(self, tokens):
        logits = self.head(self.embedding(tokens[:, :-1]))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    trainer = Trainer()
    for _ in range(240):
        tokens = (torch.randint(11, (4, 1)) + torch.arange(7)) % 11  # they count on
        print("loss", trainer.step(tokens).hex())
    print(sys.argv[0] == __file__, sys.argv[1:], __name__, __package__, __spec__.name, about)
