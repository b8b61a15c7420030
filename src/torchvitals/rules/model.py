"""`Model`: what is known of the watched model: parameters, modules, their order and types."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import prod

from torchvitals.record.run_info import GroupInfo, ParameterInfo, RunInfo

NORMS = ("Norm",)
RECURRENT = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")


class Model:
    """Answers about names. A run without a description of its model has empty lists."""

    def __init__(self, info: RunInfo, activation_order: Callable[[], list[str]]) -> None:
        self._info = info
        self._activation_order = activation_order

    @cached_property
    def _parameters(self) -> dict[str, ParameterInfo]:
        return {p.name: p for model in self._info.models for p in model.parameters}

    @cached_property
    def trainable(self) -> list[str]:
        """Parameters that are not frozen on purpose, in the order of their registration."""
        return [p.name for p in self._parameters.values() if p.requires_grad]

    @cached_property
    def weights(self) -> list[str]:
        """Those with two or more dimensions, without the scales of norms and embeddings."""
        return [
            name
            for name in self.trainable
            if len(self._parameters[name].shape) >= 2 and prod(self._parameters[name].shape) >= 16
        ]

    @cached_property
    def optimizers(self) -> set[tuple[str, ...]]:
        """Which optimizers there are: by their type and the number of groups before them."""
        starts = [k for k, group in enumerate(self._info.groups) if group.index == 0]
        return {(self._info.groups[k].optimizer, str(k)) for k in starts}

    def shape(self, parameter: str) -> tuple[int, ...]:
        """Its shape; () when it is not known."""
        known = self._parameters.get(parameter)
        return () if known is None else known.shape

    def size(self, parameter: str) -> int:
        """Its number of elements."""
        return prod(self.shape(parameter))

    def dtype(self, parameter: str) -> str:
        """For instance ``bfloat16``."""
        known = self._parameters.get(parameter)
        return "" if known is None else known.dtype

    @cached_property
    def _owners(self) -> dict[str, str]:
        return {
            name: module.name
            for model in self._info.models
            for module in model.modules
            for name in module.parameters
        }

    def module_of(self, parameter: str) -> str:
        """The module that owns it."""
        return self._owners.get(parameter, parameter.rpartition(".")[0])

    @cached_property
    def types(self) -> dict[str, str]:
        """Module name → type."""
        return {module.name: module.type for model in self._info.models for module in model.modules}

    def type_of(self, site: str) -> str:
        """The type of a module, or of the module that owns a parameter."""
        module = site if site in self.types else self.module_of(site)
        return self.types.get(module.split(":out[")[0], "")

    def is_norm(self, site: str) -> bool:
        """Whether it is, or belongs to, a normalisation layer."""
        return "Norm" in self.type_of(site)

    def is_embedding(self, site: str) -> bool:
        """Whether it is, or belongs to, an embedding."""
        return "Embedding" in self.type_of(site)

    def is_recurrent(self, site: str) -> bool:
        """Whether it belongs to an RNN, LSTM or GRU."""
        return self.type_of(site) in RECURRENT

    def is_bare(self, parameter: str) -> bool:
        """Whether a module with children of its own holds it: a bare nn.Parameter."""
        owner = self.module_of(parameter)
        prefix = "" if owner.startswith("[") else f"{owner}."
        return any(name != owner and name.startswith(prefix) for name in self.types) and (
            "Attention" not in self.types.get(owner, "")
        )

    @cached_property
    def has_norms(self) -> bool:
        """Whether any layer normalises."""
        return any("Norm" in kind for kind in self.types.values())

    def has_type(self, *words: str) -> bool:
        """Whether a module's type has one of these words in its name."""
        return any(word in kind for kind in self.types.values() for word in words)

    @cached_property
    def order(self) -> dict[str, float]:
        """Depth of each parameter: by when its module was first called, the input first.

        One whose module was not seen (a bare parameter, a compiled model) stands just before the
        parameter registered after it.
        """
        called = {name: float(at) for at, name in reversed(list(enumerate(self._called())))}
        order: dict[str, float] = {}
        follows = float(len(called))
        for name in reversed(list(self._parameters)):
            known = called.get(self.module_of(name))
            follows = follows - 1e-3 if known is None else known
            order[name] = follows
        return order

    def _called(self) -> list[str]:
        return list(dict.fromkeys(self._activation_order()))

    def depth(self, site: str) -> float:
        """Where a parameter or module stands between input and output."""
        if site in self.order:
            return self.order[site]
        called = self._called()
        name = site.split(":out[", maxsplit=1)[0]
        return float(called.index(name)) if name in called else float(len(called))

    @cached_property
    def group_of(self) -> dict[str, GroupInfo]:
        """Parameter → its group."""
        return {name: group for group in self._info.groups for name in group.parameters}

    @cached_property
    def optimizer(self) -> str:
        """Type of the optimizer of most parameters; empty when none was given."""
        groups = self._info.groups
        return max(groups, key=lambda group: len(group.parameters)).optimizer if groups else ""

    def option(self, name: str) -> object:
        """A number of the largest parameter group (eps, betas, weight_decay …)."""
        groups = self._info.groups
        if not groups:
            return None
        return max(groups, key=lambda group: len(group.parameters)).options.get(name)

    @property
    def is_adam(self) -> bool:
        """Whether steps are scaled by moments or signs: the gradient's size does not count."""
        words = ("Adam", "Lion", "RMSprop", "Adafactor", "NAdam", "RAdam", "Sophia", "Muon", "LAMB")
        return any(word.lower() in self.optimizer.lower() for word in words)
