"""`Measurer`: a model and its start see the same batch, quietly; every module is decomposed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from torchvitals.coordcheck.calls import Call, Recorder
from torchvitals.coordcheck.decompose import decompose, image_dims, rule_of
from torchvitals.coordcheck.pairing import ModulePair, paired
from torchvitals.coordcheck.quiet import exact, own_random_state, quiet
from torchvitals.coordcheck.terms import Decomposition, Pair, rms

Forward = Callable[[nn.Module], Any]
Sizes = Iterator[tuple[str, str, float]]


class Measurer:
    """Compares a model with its copy at initialisation."""

    def __init__(
        self,
        model: nn.Module,
        initial: nn.Module,
        *,
        chosen: Callable[[str, nn.Module], bool],
        alignment: bool,
    ) -> None:
        self._model, self._initial = model, initial
        self._all, places = paired(model, initial)
        self._pairs: Mapping[str, ModulePair] = {
            name: pair for name, pair in places.items() if chosen(name, pair[0])
        }
        self._alignment = alignment
        self._image_dims = image_dims(model)

    def measure(self, forward: Forward) -> list[tuple[str, str, float]]:
        """(module, term, value) of a pass that `forward` makes of each model."""
        watched = frozenset(module for pair in self._pairs.values() for module in pair)
        recorder = Recorder(lambda: watched, needs_output=lambda module: not rule_of(module))
        with quiet(self._all), torch.no_grad():
            try:
                recorder.open()
                for model in (self._model, self._initial):
                    # What draws random numbers all the same draws them alike in both.
                    with own_random_state():
                        forward(model)
                calls = recorder.take()
            finally:
                recorder.close()
            # In one go: a generator must not leave its caller in our modes between two values.
            with exact():
                return list(self._sizes(calls))

    def _sizes(self, calls: Mapping[nn.Module, list[Call | None]]) -> Sizes:
        for name, (module, initial) in self._pairs.items():
            sizes: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
            for now, before in zip_longest(calls.get(module, ()), calls.get(initial, ())):
                if now is not None:
                    pair = Pair(module, initial, now, before, self._image_dims)
                    self._add(sizes, name, decompose(pair))
            for (site, term), parts in sizes.items():
                yield site, term, float(torch.cat(parts).mean())

    def _add(
        self, sizes: dict[tuple[str, str], list[Tensor]], name: str, found: Decomposition
    ) -> None:
        for path, whole in found.outputs.items():
            site = f"{name}:out{path}" if path else name
            terms = found.weight if found.weight is not None and not path else whole
            tensors = {"effective": terms.effective, "activation": whole.now}
            if terms.propagating is not None:
                tensors["propagating"] = terms.propagating
                tensors["change"] = whole.effective + terms.propagating
            for term, tensor in tensors.items():
                sizes[site, term].append(rms(tensor, terms.dims).flatten().double())
        if self._alignment and found.operators is not None:
            ratios = found.alignments()
            for term, ratio in zip(("effective", "propagating"), ratios, strict=True):
                sizes[name, f"{term}_alignment"].append(torch.tensor([ratio]))
        for part, terms_inside in found.inner.items():
            self._add(sizes, f"{name}.{part}", terms_inside)
