"""Lightning, watched by a callback: one line to add, one to remove."""

import logging
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Lightning's own imports
    import lightning

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchvitals
from torchvitals.integrations.lightning import VitalsCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Regression(lightning.LightningModule):
    """Learns the sum of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        """One batch."""
        inputs, targets = batch
        return nn.functional.mse_loss(self.net(inputs), targets)

    def validation_step(self, batch: list[torch.Tensor], _index: int) -> None:
        """One batch of the validation."""
        inputs, targets = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(inputs), targets))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


torch.manual_seed(0)
inputs = torch.randn(256, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
trainer = lightning.Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[VitalsCallback(run="runs/lightning", every=5)],
)
trainer.fit(Regression(), DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, 64))

history = torchvitals.open_run("runs/lightning")
loss, held_out = history.series("loss"), history.series("eval/val/loss")
print(f"loss {loss.values[0]:.3f} → {loss.values[-1]:.3f} in {history.last_step} steps")
print(f"validation {held_out.values[0]:.3f} → {held_out.values[-1]:.3f}")
