"""`Looking`: computes metrics of the user's own where tensors are seen. Behind both monitors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from reprlib import repr as shorter
from typing import Any
from weakref import finalize, ref

from torch import Tensor, nn

from torchvitals.monitor import metrics as m
from torchvitals.monitor.means import Calls, Means
from torchvitals.monitor.metric_book import MetricBook, run_on_all
from torchvitals.monitor.outputs import Outputs
from torchvitals.monitor.reference import Pairing, alike, pairs_of
from torchvitals.monitor.scaling import Scaling
from torchvitals.probes.activations import is_signal, tensors_in
from torchvitals.probes.compiled import anything_compiled, compiled_modules, is_compiled
from torchvitals.probes.tree import ModuleSite
from torchvitals.record import ROOT, ConfigError
from torchvitals.stats.backend import Backend

log = logging.getLogger("torchvitals")

OF_OUTPUTS = (m.ACTIVATION, m.ACTIVATION_DIFFERENCE)
NOT_IN_COMPILED = (
    "metrics of activations have no values: compiled code calls no hooks. Run the steps that are "
    'monitored uncompiled, with torch.compiler.set_stance("force_eager"), or monitor the model '
    "that was compiled in a run of its own"
)
NO_DIFFERENCES = {
    m.ACTIVATION_DIFFERENCE: ", or was not called in this step: monitor.run_reference(x) does it",
    m.PARAMETER_DIFFERENCE: "",
}


class Looking:
    """The metrics, what they gathered in the step under way, and the models they look at."""

    def __init__(
        self,
        backend: Backend,
        *,
        looks: Callable[[], bool],
        on_trouble: Callable[[str], None],
        offload: bool = False,
    ) -> None:
        self._scaling = Scaling()
        self.metrics = m.Metrics(on_gradients=self._scaling.open)
        self.book = MetricBook(on_trouble)
        self.outputs = Outputs(self.see)
        self.pairing = Pairing(offload=offload)
        self.parameters: dict[str, Tensor] = {}
        self.reference_parameters: dict[str, Tensor] = {}
        self._sites: tuple[str, ...] = ()
        self._weights: list[Tensor] = []
        """The parameters again, in the order of their `_sites`."""
        self._slopes: Any = None
        """What the backend prepares once for the gradients of all of them."""
        self._backend = backend
        self._on_trouble = on_trouble
        self._looks = looks
        """Whether what happens now is looked at."""
        self._modules: dict[nn.Module, str] = {}
        self._means: Means | None = None
        """Measures the outputs whose mean is wanted, many at once."""
        self._mean_sites: set[str] = set()
        self._other_outputs = True
        self._may_tell = True
        self._looked_for: set[str] = set()
        """Kinds of differences whose values were looked for in a step."""

    def watch(
        self,
        modules: Mapping[nn.Module, str],
        parameters: Mapping[str, Tensor],
        *,
        is_reference: bool = False,
    ) -> None:
        """Look at a model, by these names."""
        self.outputs.know(modules, is_reference=is_reference)
        if not is_reference:
            self._modules = dict(modules)
        if is_reference:
            self.reference_parameters = dict(parameters)
        else:
            self.parameters = dict(parameters)
            self._sites = tuple(parameters)
            self._weights = self._backend.fixed(parameters.values())
            self._slopes = None

    def forget_reference(self) -> None:
        """Compare with nothing."""
        self.outputs.forget(is_reference=True)
        self.reference_parameters = {}
        self.pairing.clear()

    def open(self) -> None:
        """Look from now on: a step begins, or looking away is over."""
        if self.metrics.any_of(m.GRADIENT):
            self._scaling.open()
        if self.metrics.any_of(*OF_OUTPUTS):
            if self.metrics.changed:
                self._prepare()
            if self._means is not None:
                self._means.probe.open()
            if self._other_outputs:
                self.outputs.open()

    def pause(self) -> None:
        """Look away."""
        if self._means is not None:
            self._means.probe.close()
        self.outputs.close()

    def drop(self) -> None:
        """The step was given up: what it gathered is nobody's."""
        self.pause()
        self.pairing.clear()
        self.book.drop()
        if self._means is not None:
            self._means.probe.take()

    def finish(self) -> dict[str, float]:
        """The step is over: what its metrics came to."""
        self.pause()
        self.pairing.clear()
        found = self.book.finish()
        if self._means is not None:
            values = self._means.finish()
            values |= found
            found = values
        self._tell_of_compiling(found)
        self._tell_of_reference(found)
        return found

    def _tell_of_compiling(self, found: Mapping[str, float]) -> None:
        """Compiled code calls no hooks: say so, once, where outputs were wanted and none came."""
        if not self._may_tell or not anything_compiled() or not self.metrics.any_of(*OF_OUTPUTS):
            return
        if any(key.startswith(m.ACTIVATION) for key in found):
            return
        self._may_tell = False  # looking for what was compiled takes its time
        inside = (compiled._orig_mod for compiled in compiled_modules())
        if any(map(is_compiled, self._modules)) or any(x in self._modules for x in inside):
            self._tell(NOT_IN_COMPILED)

    def _tell_of_reference(self, found: Mapping[str, float]) -> None:
        """Differences that nothing was compared for: say so when they are first wanted."""
        for kind, advice in NO_DIFFERENCES.items():
            if kind in self._looked_for or not self.metrics.any_of(kind):
                continue
            self._looked_for.add(kind)
            if not any(key.startswith(f"{kind}/") for key in found):
                why = "has other names or shapes" if self.reference_parameters else "is not set"
                text = f"{kind} metrics have no values: the reference model {why}{advice}"
                self._tell(text)

    def close(self) -> None:
        """Look no more."""
        self._scaling.close()
        self.pause()
        self.pairing.clear()

    def _prepare(self) -> None:
        """Sort out which outputs only have their mean taken: these need no call each."""
        self.metrics.changed = False
        wanted = {site: self.metrics.of(m.ACTIVATION, site) for site in self._modules.values()}
        means = {site for site, found in wanted.items() if any(x.is_mean for x in found)}
        # Sites of tuples have names of their own, known when they are seen: their metrics too.
        self._other_outputs = not self.metrics.only_means()
        self._means, self._mean_sites = None, means
        if means:
            me = ref(self)

            def failed(error: Exception) -> None:
                looking = me()
                if looking is not None:
                    looking._means_failed(error)

            probe = Calls(
                [ModuleSite(n, x, 0, (), ()) for x, n in self._modules.items() if n in means],
                set(),
                self._backend,
                [x for x, n in self._modules.items() if n == ROOT],
                stride=0,
                eval_mode=True,
                plain=True,
                on_error=failed,
                on_compile=lambda: None,
            )
            # A monitor that is dropped in the middle of a step takes its hook with it.
            finalize(self, probe.close)
            self._means = Means(probe, self.metrics, self.book.tell_empty)

    def _means_failed(self, error: Exception) -> None:
        self._means, self._mean_sites, self._other_outputs = None, set(), True
        self._tell(f"means of activations could not be measured: {error}")

    def _tell(self, text: str) -> None:
        log.warning("torchvitals: %s", text)
        self._on_trouble(text)

    def see_by_hand(self, name: str, output: Any, is_reference: bool) -> None:
        """Somebody says that this was put out: a tensor, or what holds some."""
        if isinstance(output, Tensor):
            found = {name: output}
        else:
            found = {f"{name}:out{path}": x for path, x in tensors_in(output) if is_signal(x)}
        if not found:
            raise ConfigError(
                f"activations of {name!r} are a tensor, or a tuple, list or dict that holds some, "
                f"got {shorter(output)}; hand over what the module returned"
            )
        means, self._mean_sites = self._mean_sites, set()
        try:
            for site, tensor in found.items():
                self.see(site, tensor, is_reference)
        finally:
            self._mean_sites = means

    def see(self, name: str, tensor: Tensor, is_reference: bool) -> None:
        """A module put out this tensor."""
        if not self._looks():
            return
        if not is_reference and self.metrics.of(m.ACTIVATION, name):
            run_on_all(
                self.metrics, self.book, m.ACTIVATION, (name,), (tensor,), backend=self._backend,
                skip_means=name.partition(":out")[0] in self._mean_sites,
            )  # fmt: skip
        differences = self.metrics.of(m.ACTIVATION_DIFFERENCE, name)
        if differences and self.reference_parameters:
            pair = self.pairing.meet(name, tensor, is_reference)
            if pair is not None:
                ours, theirs = pair[0].detach(), alike(pair[1], pair[0])
                for metric in differences:
                    self.book.run(metric, name, ours, theirs)

    def at_parameters(self) -> None:
        """Compute the parameter metrics."""
        if self.metrics.any_of(m.PARAMETER):
            run_on_all(
                self.metrics,
                self.book,
                m.PARAMETER,
                self._sites,
                self._weights,
                backend=self._backend,
            )
        if self.metrics.any_of(m.PARAMETER_DIFFERENCE):
            for name, ours, theirs in pairs_of(self.parameters, self.reference_parameters):
                for metric in self.metrics.of(m.PARAMETER_DIFFERENCE, name):
                    self.book.run(metric, name, ours, theirs)

    def at_gradients(self, kind: str = m.GRADIENT) -> None:
        """Compute the gradient metrics, logged as that kind."""
        if not self.metrics.any_of(m.GRADIENT):
            return
        sites, grads = self._sites, [p.grad for p in self._weights]
        found = [grad for grad in grads if grad is not None]
        factors: float | list[float] = 1.0
        if self._scaling.seen_any:
            factors = self._scaling.factors([p for p in self._weights if p.grad is not None])
        if len(found) < len(grads):
            sites = tuple(s for s, g in zip(sites, grads, strict=True) if g is not None)
        elif found and not isinstance(factors, list):
            # Other tensors each step, of the same sizes.
            if self._slopes is None:
                self._slopes = self._backend.layout(found)
            found = self._backend.fixed(found, layout=self._slopes)
        if not isinstance(factors, list):
            self._see_gradients(kind, sites, found, 1.0 / factors)
            return
        for factor in dict.fromkeys(factors):
            mine = [which for which, one in enumerate(factors) if one == factor]
            places = tuple(sites[which] for which in mine)
            self._see_gradients(kind, places, [found[which] for which in mine], 1.0 / factor)

    def _see_gradients(
        self, kind: str, sites: tuple[str, ...], grads: list[Tensor], scale: float
    ) -> None:
        run_on_all(
            self.metrics, self.book, m.GRADIENT, sites, grads, backend=self._backend, log_as=kind,
            scale=scale,
        )  # fmt: skip
