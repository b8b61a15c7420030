"""`RefinedCoordinateCheck`: the terms of every module of a run, while a monitor watches it.

The monitor's reference module, most often the model as it was at initialisation, sees the same
batch as the model; then `refined_coordinate_check()` logs what moved each module's output:

    RCC (W_t-W_0)x_t/{m}/l2norm    effective: its own weights     RCC x_t/{m}/l2norm
    RCC W_0(x_t-x_0)/{m}/l2norm    propagating: its input         RCC (x_t-x_0)/{m}/l2norm

and for Linear and LayerNorm the same without bias under ``{m}.weight``. Values are L2 norms over
the features, one a position; the monitor takes their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import zip_longest
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from torchvitals.coordcheck.calls import Call, Recorder
from torchvitals.coordcheck.decompose import decompose, image_dims, rule_of
from torchvitals.coordcheck.pairing import paired
from torchvitals.coordcheck.quiet import exact, quiet
from torchvitals.coordcheck.terms import Decomposition, Dims, Pair, norms, rms
from torchvitals.record import ROOT, ConfigError

EFFECTIVE, PROPAGATING = "RCC (W_t-W_0)x_t", "RCC W_0(x_t-x_0)"
EXTRAS = ("rms", "alignment")
NEEDED = ("module", "reference_module", "current_step", "is_monitoring", "log_tensor")
"""What a `Watcher` has that can be asked for before its module is set."""

Values = Iterator[tuple[str, Tensor]]


class Watcher(Protocol):
    """What a check needs of a monitor."""

    @property
    def module(self) -> nn.Module | None: ...  # noqa: D102
    @property
    def reference_module(self) -> nn.Module | None: ...  # noqa: D102
    @property
    def module_names(self) -> Mapping[nn.Module, str]: ...  # noqa: D102
    @property
    def current_step(self) -> int | None: ...  # noqa: D102
    def is_monitoring(self) -> bool: ...  # noqa: D102
    def log_tensor(self, key: str, tensor: Tensor) -> Any: ...  # noqa: D102


class RefinedCoordinateCheck:
    """Sees the calls of both models in monitored steps, and logs their terms when asked.

    `also` adds keys beyond the usual ones: "rms" (…/rms beside each …/l2norm: l2/√fan_out) and
    "alignment" (…/alignment beside the terms of a weight).
    """

    def __init__(self, monitor: Watcher, *, also: Iterable[str] = ()) -> None:
        if any(not hasattr(monitor, name) for name in NEEDED):
            raise ConfigError(
                "a coordinate check needs a monitor with a reference module, got "
                f"{type(monitor).__name__}; make a ModuleMonitor (the one that watch() gives has "
                "none), call its set_module(model) and set_reference_module('init'), and pass that"
            )
        self._monitor = monitor
        self._closed = False
        self._also = frozenset(also)
        if self._also - set(EXTRAS):
            raise ConfigError(f"also can hold {', '.join(EXTRAS)}, got {sorted(self._also)}")
        self._models: tuple[nn.Module | None, nn.Module | None] = (None, None)
        self._step: int | None = None
        self._pairs: dict[str, tuple[nn.Module, nn.Module]] = {}
        self._all: list[tuple[nn.Module, nn.Module]] = []
        """Those that are not checked, too: they run inside the others."""
        self._watched: frozenset[nn.Module] = frozenset()
        self._recorder = Recorder(self._wanted, needs_output=lambda module: not rule_of(module))
        self._recorder.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the hooks away and let go of both models."""
        self._closed = True
        self._recorder.close()
        self._models, self._pairs, self._watched = (None, None), {}, frozenset()
        self._all = []

    def refined_coordinate_check(self) -> None:
        """Log the terms of the calls since the last check. Before the optimizer's step.

        Both models must have seen the same batches, in the same order; any number of them. Nothing
        happens in steps that are not monitored.
        """
        monitor = self._monitor
        if self._closed:
            raise ConfigError(
                "this coordinate check was closed and sees no calls any more; make another one, "
                "RefinedCoordinateCheck(monitor), or close it after the last check"
            )
        if monitor.module is None:
            raise ConfigError(
                "Set the module to monitor before the coordinate check: monitor.set_module(model)"
            )
        if monitor.reference_module is None:
            raise ConfigError(
                "Set the reference module before the coordinate check: "
                "monitor.set_reference_module(copy.deepcopy(model))"
            )
        if not monitor.is_monitoring():
            return
        self._wanted()  # lets go of calls from an earlier step
        calls = self._recorder.take()
        for which, at in (("module to monitor", 0), ("reference module", 1)):
            if not any(pair[at] in calls for pair in self._pairs.values()):
                raise ConfigError(
                    f"the {which} was not called in step {monitor.current_step}; run both models "
                    "on the same batch between begin_step() and refined_coordinate_check()"
                )
        # Running modules again is no part of the step: the monitor must not see it.
        aside: Callable[[], AbstractContextManager[Any]]
        aside = getattr(monitor, "no_monitor", nullcontext)
        with aside(), quiet(self._all), exact(), torch.no_grad():
            values = list(self._values(calls))
        for key, value in values:
            monitor.log_tensor(key, value)

    def _wanted(self) -> Container[nn.Module]:
        """The modules to record right now."""
        monitor = self._monitor
        step = monitor.current_step
        if not monitor.is_monitoring():
            if self._step is not None and step != self._step:
                self._recorder.forget()
                self._step = None
            return ()
        models = (monitor.module, monitor.reference_module)
        if step != self._step:
            self._recorder.forget()
            self._step = step
            self._map(*models)
        elif models[0] is not self._models[0] or models[1] is not self._models[1]:
            self._map(*models)
        return self._watched

    def _map(self, module: nn.Module | None, reference: nn.Module | None) -> None:
        """Find the modules of both that belong together, by their place in the model."""
        self._models, self._pairs, self._all = (module, reference), {}, []
        if module is None or reference is None:
            # One of them may run before the other one is set.
            known = (one.modules() for one in (module, reference) if one is not None)
            self._watched = frozenset(inner for modules in known for inner in modules)
            return
        names = self._monitor.module_names
        self._all, places = paired(module, reference)
        for place, (inner, other) in places.items():
            name = names.get(inner)
            # Of the whole model there are the activations' differences.
            if name is not None and (place != ROOT or not any(inner.children())):
                self._pairs[name] = (inner, other)
        self._watched = frozenset(inner for pair in self._pairs.values() for inner in pair)

    def _values(self, calls: Mapping[nn.Module, list[Call | None]]) -> Values:
        module = self._models[0]
        dims = frozenset() if module is None else image_dims(module)
        for name, (module, reference) in self._pairs.items():
            # Calls are paired in their order: a module used twice, or several micro-batches.
            for now, before in zip_longest(calls.get(module, ()), calls.get(reference, ())):
                if now is not None:
                    pair = Pair(module, reference, now, before, dims)
                    whole = decompose(pair)
                    yield from self._logged(name, type(module), whole)
                    for part, found in whole.inner.items():
                        yield from self._logged(f"{name}.{part}", nn.Linear, found)

    def _logged(self, name: str, kind: type[nn.Module], found: Decomposition) -> Values:
        for path, terms in found.outputs.items():
            site = f"{name}:out{path}" if path else name
            yield from self._sized(f"{EFFECTIVE}/{site}", terms.effective, terms.dims)
            yield from self._sized(f"{PROPAGATING}/{site}", terms.propagating, terms.dims)
        yield from self._sized(f"RCC x_t/{name}", found.x, found.x_dims)
        yield from self._sized(f"RCC (x_t-x_0)/{name}", found.dx, found.x_dims)
        weight = found.weight
        if weight is None:
            return
        effective, propagating = f"{EFFECTIVE}/{name}.weight", f"{PROPAGATING}/{name}.weight"
        if issubclass(kind, nn.Linear | nn.LayerNorm):
            yield from self._sized(effective, weight.effective, weight.dims)
            yield from self._sized(propagating, weight.propagating, weight.dims)
            yield from self._sized(f"{effective}/W_t x_t", weight.now, weight.dims)
            yield from self._sized(f"{propagating}/W_0 x_0", weight.before, weight.dims)
        if issubclass(kind, nn.LayerNorm) and found.normalised is not None:
            x, dx = found.normalised
            yield from self._sized(f"{effective}/x_t", x, weight.dims)
            yield from self._sized(f"{propagating}/x_t-x_0", dx, weight.dims)
        if "alignment" in self._also and found.operators is not None:
            for key, ratio in zip((effective, propagating), found.alignments(), strict=True):
                yield f"{key}/alignment", torch.tensor(ratio)

    def _sized(self, key: str, tensor: Tensor | None, dims: Dims) -> Values:
        """The norms at every position; nothing where there is no such tensor."""
        if tensor is None or tensor.numel() == 0:
            return
        yield f"{key}/l2norm", norms(tensor, dims)
        if "rms" in self._also:
            yield f"{key}/rms", rms(tensor, dims)
