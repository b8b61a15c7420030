"""How far a model has moved from its initialisation: a reference model beside it.

python examples/reference_model.py
"""

import torch
from torch import nn

import torchvitals

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

# reference="init" keeps a copy of the model as it is now; all else is measured as ever.
with torchvitals.watch(
    model, optimizer, run="runs/example-reference", every=10, reference="init"
) as monitor:
    monitor.add_parameter_difference_metric("moved", lambda p, p0: (p - p0).norm() / p0.norm())
    monitor.add_activation_difference_metric("moved", lambda x, x0: (x - x0).norm(dim=-1))
    for step in range(1, 51):
        inputs = torch.randn(32, 16)
        monitor.run_reference(inputs)  # in eval mode: draws no random numbers, changes nothing
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(dim=1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.log(loss=loss)
        if step % 10 == 0:
            found = monitor.get_step_metrics()
            print(
                f"step {step:3}: loss {loss.item():.3f}, first layer moved by "
                f"{found['parameter_difference/0.weight/moved']:.1%} of its norm, the output by "
                f"{found['activation_difference/[root module]/moved']:.2f}"
            )

history = torchvitals.open_run("runs/example-reference")
print("steps measured:", history.steps("parameter_difference").tolist())
