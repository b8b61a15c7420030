"""Metrics of your own on activations, parameters and gradients, with a ModuleMonitor.

python examples/metrics.py
"""

import torch
from torch import nn

from torchvitals import ModuleMonitor, stats

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

monitor = ModuleMonitor(monitor_step_fn=lambda step: step % 10 == 0, run="runs/example-metrics")
monitor.set_module(model)

# Any function of a tensor. It may return a tensor: its values are averaged over micro-batches.
monitor.add_activation_metric("l2norm", lambda x: x.norm(dim=-1))
monitor.add_activation_metric(
    "smallest", lambda x: x.amin(dim=-1), metric_regex="1$", metric_aggregation_fn=torch.min
)
monitor.add_parameter_metric(
    "opnorm", lambda p: torch.linalg.matrix_norm(p, ord=2), metric_regex=r".*weight"
)
# A statistic by its name is measured for all tensors in one pass of the kernel.
monitor.add_gradient_metric("norm", stats.norm)

for step in range(31):
    monitor.begin_step(step)
    for _ in range(2):  # two micro-batches
        inputs = torch.randn(32, 16)
        targets = inputs[:, :4].argmax(dim=1)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        (loss / 2).backward()
        monitor.log_scalar("loss", loss)
        monitor.after_micro_batch()
    monitor.monitor_gradients(before_clip=True)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    monitor.monitor_parameters()
    monitor.monitor_gradients()
    optimizer.step()
    optimizer.zero_grad()
    monitor.end_step()
    if monitor.is_step_monitored(step):
        metrics = monitor.get_step_metrics()  # a flat dict: wandb.log(metrics, step=step)
        print(
            f"step {step:3}: loss {metrics['loss']:.3f}, "
            f"first layer's activations {metrics['activation/0/l2norm']:.2f}, "
            f"its gradient {metrics['gradient/0.weight/norm']:.3f}, "
            f"the last one's operator norm {metrics['parameter/2.weight/opnorm']:.2f}"
        )

monitor.close()
print("vitals show runs/example-metrics --kind gradient")
