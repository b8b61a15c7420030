"""Lightning: automatic optimization (a closure), accumulation, clipping, validation."""

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.parts = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        self.parts.append(loss.item())
        if len(self.parts) == 2:
            print("loss", (sum(self.parts) / 2).hex())
            self.parts = []
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


lightning.seed_everything(12, verbose=False)
inputs = torch.randn(64, 4)
data = TensorDataset(inputs, inputs[:, :1] - inputs[:, 1:2])
trainer = lightning.Trainer(
    max_epochs=10, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
    gradient_clip_val=1.0,
)  # fmt: skip
model = Lit()
trainer.fit(model, DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8))
print("eval", trainer.callback_metrics["val_loss"].item().hex())
