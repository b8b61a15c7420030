"""`Looking`: computes metrics of the user's own where tensors are seen. Behind both monitors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import finalize, ref

from torch import Tensor, nn

from torchvitals.monitor import metrics as m
from torchvitals.monitor.means import Means
from torchvitals.monitor.outputs import Outputs
from torchvitals.monitor.reference import Pairing, alike, pairs_of
from torchvitals.monitor.scaling import Scaling
from torchvitals.probes.activations import Activations
from torchvitals.probes.tree import ModuleSite
from torchvitals.record.key import ROOT
from torchvitals.stats.backend import Backend


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
        self.metrics = m.Metrics()
        self.book = m.MetricBook(on_trouble)
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
        self._scaling = Scaling()
        self._modules: dict[nn.Module, str] = {}
        self._means: Means | None = None
        """Measures the outputs whose mean is wanted, many at once."""
        self._mean_sites: set[str] = set()
        self._other_outputs = True

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
        """A step that is looked at begins."""
        if self.metrics.any_of(m.ACTIVATION, m.ACTIVATION_DIFFERENCE):
            if self.metrics.changed:
                self._prepare()
            self.resume()

    def resume(self) -> None:
        """Look, after looking away."""
        if self._means is not None:
            self._means.probe.open()
        if self._other_outputs:
            self.outputs.open()

    def pause(self) -> None:
        """Look away."""
        if self._means is not None:
            self._means.probe.close()
        self.outputs.close()

    def finish(self) -> dict[str, float]:
        """The step is over: what its metrics came to."""
        self.pause()
        self.pairing.clear()
        found = self.book.finish()
        if self._means is None:
            return found
        values = self._means.finish()
        values |= found
        return values

    def close(self) -> None:
        """Look no more."""
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

            probe = Activations(
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
            self._means = Means(probe, self.metrics)

    def _means_failed(self, error: Exception) -> None:
        self._means, self._mean_sites, self._other_outputs = None, set(), True
        self._on_trouble(f"means of activations could not be measured: {error}")

    def see_by_hand(self, name: str, tensor: Tensor, is_reference: bool) -> None:
        """Somebody says that this was put out."""
        means, self._mean_sites = self._mean_sites, set()
        try:
            self.see(name, tensor, is_reference)
        finally:
            self._mean_sites = means

    def see(self, name: str, tensor: Tensor, is_reference: bool) -> None:
        """A module put out this tensor."""
        if not self._looks():
            return
        if not is_reference and self.metrics.of(m.ACTIVATION, name):
            m.run_on_all(
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
            m.run_on_all(
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
        if len(found) < len(grads):
            sites = tuple(s for s, g in zip(sites, grads, strict=True) if g is not None)
        elif found:
            # Other tensors each step, of the same sizes.
            if self._slopes is None:
                self._slopes = self._backend.layout(found)
            found = self._backend.fixed(found, layout=self._slopes)
        m.run_on_all(
            self.metrics, self.book, m.GRADIENT, sites, found, backend=self._backend, log_as=kind,
            scale=1.0 / self._scaling.factor(),
        )  # fmt: skip
