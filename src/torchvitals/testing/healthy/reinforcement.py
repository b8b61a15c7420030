"""REINFORCE and an actor-critic that balance a pole: noisy losses that mean little."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn

import torchvitals
from torchvitals.testing.healthy.hand import Hand
from torchvitals.testing.outcome import Outcome


class Poles:
    """Many poles on carts at once (the classic equations of motion), 0.02 s a turn."""

    def __init__(self, count: int, seed: int) -> None:
        self._draw = torch.Generator().manual_seed(seed)
        self.count = count
        self.state = torch.zeros(count, 4)

    def reset(self) -> Tensor:
        """All upright, nearly."""
        self.state = torch.rand(self.count, 4, generator=self._draw) * 0.1 - 0.05
        return self.state

    def turn(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Push left (0) or right (1); the next states, and which poles still stand."""
        place, speed, angle, spin = self.state.unbind(-1)
        force = action.float() * 20 - 10
        pull = (force + 0.05 * spin**2 * angle.sin()) / 1.1
        bend = (9.8 * angle.sin() - angle.cos() * pull) / (
            0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1)
        )
        push = pull - 0.05 * bend * angle.cos() / 1.1
        self.state = torch.stack(
            [place + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * bend], -1
        )
        return self.state, (self.state[:, 0].abs() < 2.4) & (self.state[:, 2].abs() < 0.21)


TURNS = 60
SCALE = torch.tensor([1.0, 1.0, 8.0, 1.0])


def _episode(policy: nn.Module, poles: Poles) -> tuple[Tensor, Tensor, Tensor]:
    """States, actions and whether each pole stood before the turn: (turns, poles, …)."""
    states, actions, stood = [], [], []
    state, standing = poles.reset() * SCALE, torch.ones(poles.count, dtype=torch.bool)
    for _ in range(TURNS):
        with torch.no_grad():
            action = policy(state).softmax(-1).multinomial(1).squeeze(-1)
        states.append(state)
        actions.append(action)
        stood.append(standing)
        state, upright = poles.turn(action)
        state = state * SCALE
        standing = standing & upright
        if not standing.any():
            break
    return torch.stack(states), torch.stack(actions), torch.stack(stood).float()


def _log_chance(logits: Tensor, actions: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, actions[..., None]).squeeze(-1)


def _returns(stood: Tensor) -> Tensor:
    total, found = torch.zeros(stood.shape[1]), []
    for reward in stood.flip(0):
        total = reward + 0.97 * total
        found.append(total)
    return torch.stack(found[::-1])


def reinforce(seed: int, folder: Path, steps: int | None) -> Outcome:
    """The policy gradient with the batch's mean return as baseline."""
    steps = steps or 200
    width = 32 if seed % 2 else 64
    policy = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    poles = Poles(8, seed)
    hand = Hand(seed, steps)
    lengths: list[float] = []
    with torchvitals.watch(policy, optimizer, run=folder, every=5, total_steps=steps) as monitor:
        for _ in range(steps):
            policy.eval()
            states, actions, stood = _episode(policy, poles)
            policy.train()
            returns = _returns(stood)
            worth = (returns - returns.mean()) / (returns.std() + 1e-6)
            optimizer.zero_grad()
            chosen = _log_chance(policy(states), actions)
            loss = -(chosen * worth * stood).sum() / stood.sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            lengths.append(float(stood.sum(0).mean()))
            monitor.log(loss=loss.detach(), reward=lengths[-1])
            hand.note(loss)
    return _outcome(hand, lengths)


class ActorCritic(nn.Module):
    """One trunk, two heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, width), nn.Tanh())
        self.actor = nn.Linear(width, 2)
        self.critic = nn.Linear(width, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the actions and the worth of the states."""
        features = self.trunk(states)
        return self.actor(features), self.critic(features).squeeze(-1)


def actor_critic(seed: int, folder: Path, steps: int | None) -> Outcome:
    """The advantage over what a critic expects, and a bonus for staying undecided."""
    steps = steps or 200
    model = ActorCritic(32 if seed % 2 else 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    poles = Poles(8, seed)
    hand = Hand(seed, steps)
    lengths: list[float] = []
    act = _First(model)
    with torchvitals.watch(model, optimizer, run=folder, every=5, total_steps=steps) as monitor:
        for _ in range(steps):
            model.eval()
            states, actions, stood = _episode(act, poles)
            model.train()
            returns = _returns(stood) / 10
            logits, expected = model(states)
            chances = logits.softmax(-1)
            entropy = -(chances * chances.log()).sum(-1)
            better = (returns - expected).detach()
            pieces = (
                -_log_chance(logits, actions) * better
                + 0.5 * (returns - expected) ** 2
                - 0.01 * entropy
            )
            loss = (pieces * stood).sum() / stood.sum()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lengths.append(float(stood.sum(0).mean()))
            monitor.log(loss=loss.detach(), reward=lengths[-1])
            hand.note(loss)
    return _outcome(hand, lengths)


class _First(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = [model]

    def forward(self, states: Tensor) -> Tensor:
        logits: Tensor = self.model[0](states)[0]
        return logits


def _outcome(hand: Hand, lengths: list[float]) -> Outcome:
    tail = lengths[-max(1, len(lengths) // 10) :]
    reward = math.fsum(tail) / len(tail)
    return hand.outcome(test_accuracy=reward / TURNS, reward=reward)
