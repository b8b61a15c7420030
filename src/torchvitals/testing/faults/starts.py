"""Architectures and initial weights from which learning does not get going."""

from __future__ import annotations

import torch
from torch import nn

from torchvitals.testing.data import Data
from torchvitals.testing.fault import Fault
from torchvitals.testing.settings import Settings


class ManySigmoids(Fault):
    """Twenty (mild: twelve) layers of sigmoids."""

    number, id, bases = 4, "sigmoid-layers", "M"
    names = ("vanishing_gradients", "activation_scale")

    def settings(self, settings: Settings) -> None:
        """Deep, and each layer takes three quarters of the gradient."""
        settings.activation = "sigmoid"
        settings.depth = 12 if self.mild else 20


class Forgetful(Fault):
    """A long tanh RNN whose recurrent weights are too small to carry anything."""

    number, id, bases = 5, "rnn-vanishing", "R"
    names = ("vanishing_gradients", "bad_init", "activation_scale")
    variant = {"activation": "tanh", "length": 60}  # noqa: RUF012

    def model(self, model: nn.Module, settings: Settings) -> nn.Module:
        """Spectral radius 0.1 (mild: 0.3)."""
        model.get_parameter("rnn.weight_hh_l0").data.mul_(0.3 if self.mild else 0.1)
        return model


class Chaotic(Fault):
    """Recurrent weights of spectral radius 2 and more, no clipping."""

    number, id, bases = 6, "rnn-exploding", "R"
    names = ("exploding_gradients", "bad_init")
    numeric_fix = True
    variant = {"activation": "tanh"}  # noqa: RUF012

    def settings(self, settings: Settings) -> None:
        """Plain gradients."""
        settings.clip_norm = None

    def model(self, model: nn.Module, settings: Settings) -> nn.Module:
        """Times 2 (mild) or 3: orthogonal before."""
        model.get_parameter("rnn.weight_hh_l0").data.mul_(2.0 if self.mild else 3.0)
        return model


class LargeInit(Fault):
    """Initial weights ten times too large."""

    number, id, bases = 7, "init-times-10", "M"
    names = ("bad_init", "activation_scale", "exploding_gradients", "loss_at_start")

    def model(self, model: nn.Module, settings: Settings) -> nn.Module:
        """All of them."""
        for parameter in model.parameters():
            parameter.data.mul_(5.0 if self.mild else 10.0)
        return model


class ConstantInit(Fault):
    """All weights start at the same value: all units of a layer stay the same."""

    number, id, bases = 8, "constant-init", "MC"
    names = ("bad_init",)

    def model(self, model: nn.Module, settings: Settings) -> nn.Module:
        """Biases 0; scales of norms stay."""
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.constant_(module.weight, 0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        return model


class NegativeBias(Fault):
    """Biases of −10 in front of the ReLUs: nothing comes through."""

    number, id, bases = 9, "bias-minus-10", "M"
    names = ("dead_units", "bad_init")

    def model(self, model: nn.Module, settings: Settings) -> nn.Module:
        """In every hidden layer."""
        for module in model.get_submodule("layers").modules():
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.bias, -10.0)
        return model


class RawIntoTanh(Fault):
    """tanh layers fed with features of size 100: saturated."""

    number, id, bases = 11, "tanh-unscaled", "M"
    names = ("saturation", "input_scale")

    def settings(self, settings: Settings) -> None:
        """In place of the ReLUs."""
        settings.activation = "tanh"

    def data(self, data: Data, settings: Settings) -> Data:
        """Every feature has its own scale and offset, as raw measurements have."""
        draw = torch.Generator().manual_seed(settings.seed)
        size = data.train.inputs.shape[1]
        scale = 10 ** (1 + 2 * torch.rand(size, generator=draw))
        offset = scale * torch.randn(size, generator=draw)
        for name in ("train", "val", "test"):
            part = getattr(data, name)
            setattr(data, name, part._replace(inputs=part.inputs * scale + offset))
        return data


class SharpAttention(Fault):
    """Query and key weights eight times too large: attention is all or nothing."""

    number, id, bases = 25, "query-key-times-8", "G"
    names = ("attention_logits", "attention_collapse", "bad_init")

    def model(self, model: nn.Module, settings: Settings) -> nn.Module:
        """In every layer."""
        for name, parameter in model.named_parameters():
            if name.endswith(("query.weight", "key.weight")):
                parameter.data.mul_(8.0)
        return model
