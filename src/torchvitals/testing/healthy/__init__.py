"""Sixteen healthy kinds of training that rule systems like to call sick.

Each is a function ``(seed, folder, steps) -> Outcome``; `steps` None is its own length.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torchvitals.testing.healthy.adversarial import dcgan
from torchvitals.testing.healthy.experts import mixture_of_experts
from torchvitals.testing.healthy.generative import vae
from torchvitals.testing.healthy.loops import accumulation_amp_resume
from torchvitals.testing.healthy.optimizers import lion_or_muon
from torchvitals.testing.healthy.plain import (
    adamw_warmup,
    cyclical,
    high_dropout,
    sgd_cosine,
    sparse_cnn,
    wsd,
)
from torchvitals.testing.healthy.precise import regression
from torchvitals.testing.healthy.reinforcement import actor_critic, reinforce
from torchvitals.testing.healthy.tuning import frozen_or_lora, unfreezing
from torchvitals.testing.outcome import Outcome

HEALTHY: dict[str, Callable[[int, Path, int | None], Outcome]] = {
    "h01-sgd-cosine": sgd_cosine,
    "h02-adamw-warmup": adamw_warmup,
    "h03-lion-or-muon": lion_or_muon,
    "h04-cyclical": cyclical,
    "h05-wsd": wsd,
    "h06-high-dropout": high_dropout,
    "h07-frozen-or-lora": frozen_or_lora,
    "h08-unfreezing": unfreezing,
    "h09-dcgan": dcgan,
    "h10-reinforce": reinforce,
    "h11-actor-critic": actor_critic,
    "h12-vae": vae,
    "h13-experts": mixture_of_experts,
    "h14-sparse-cnn": sparse_cnn,
    "h15-regression": regression,
    "h16-accumulation-amp-resume": accumulation_amp_resume,
}
"""By key, in the order of the catalogue."""
