"""The Trainer of transformers on a tiny GPT-2, watched by a callback."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the library's own imports
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import torch

import torchvitals
from torchvitals.integrations.transformers import VitalsCallback

torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=64,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=1,
    )
)
starts = torch.randint(64, (128, 1))
tokens = (starts + torch.arange(24)) % 64  # counts on: easy to learn
data = [{"input_ids": row, "labels": row} for row in tokens]
arguments = TrainingArguments(
    output_dir="out",
    max_steps=20,
    per_device_train_batch_size=8,
    learning_rate=3e-3,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(
    model,
    arguments,
    train_dataset=data,
    callbacks=[VitalsCallback(run="runs/transformers", every=5, attention=True)],
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    trainer.train()

history = torchvitals.open_run("runs/transformers")
loss = history.series("loss")
print(f"loss {loss.values[0]:.3f} → {loss.values[-1]:.3f} in {history.last_step} steps")
print(f"{len(history.keys('attention', stat='entropy'))} attention heads seen")
