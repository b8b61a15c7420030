"""The Trainer of transformers on a tiny GPT-2."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Tell(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print("loss", float(logs["loss"]).hex())


torch.manual_seed(13)
config = GPT2Config(
    vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1
)
model = GPT2LMHeadModel(config)
tokens = (torch.randint(32, (64, 1)) + torch.arange(12)) % 32  # counts on
data = [{"input_ids": row, "labels": row} for row in tokens]
arguments = TrainingArguments(
    output_dir="out", max_steps=80, per_device_train_batch_size=4, gradient_accumulation_steps=2,
    logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    eval_strategy="steps", eval_steps=20, learning_rate=3e-3,
)  # fmt: skip
trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:8], callbacks=[Tell()])
trainer.train()
