"""`Looking`: computes metrics of the user's own where tensors are seen. Behind both monitors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from torchvitals.monitor import metrics as m
from torchvitals.monitor.outputs import Outputs
from torchvitals.monitor.reference import Pairing, alike, pairs_of
from torchvitals.monitor.scaling import Scaling
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
        self._backend = backend
        self._looks = looks
        """Whether what happens now is looked at."""
        self._scaling = Scaling()

    def watch(
        self,
        modules: Mapping[nn.Module, str],
        parameters: Mapping[str, Tensor],
        *,
        is_reference: bool = False,
    ) -> None:
        """Look at a model, by these names."""
        self.outputs.know(modules, is_reference=is_reference)
        if is_reference:
            self.reference_parameters = dict(parameters)
        else:
            self.parameters = dict(parameters)

    def forget_reference(self) -> None:
        """Compare with nothing."""
        self.outputs.forget(is_reference=True)
        self.reference_parameters = {}
        self.pairing.clear()

    def open(self) -> None:
        """A step that is looked at begins."""
        if self.metrics.any_of(m.ACTIVATION, m.ACTIVATION_DIFFERENCE):
            self.outputs.open()

    def close(self) -> None:
        """It is over."""
        self.outputs.close()
        self.pairing.clear()

    def see(self, name: str, tensor: Tensor, is_reference: bool) -> None:
        """A module put out this tensor."""
        if not self._looks():
            return
        if not is_reference and self.metrics.of(m.ACTIVATION, name):
            m.run_on_all(self.metrics, self.book, m.ACTIVATION, [(name, tensor)], self._backend)
        differences = self.metrics.of(m.ACTIVATION_DIFFERENCE, name)
        if differences and self.reference_parameters:
            pair = self.pairing.meet(name, tensor, is_reference)
            if pair is not None:
                ours, theirs = pair[0].detach(), alike(pair[1], pair[0])
                for metric in differences:
                    self.book.run(metric, name, ours, theirs)

    def at_parameters(self) -> None:
        """Compute the parameter metrics."""
        named = list(self.parameters.items())
        m.run_on_all(self.metrics, self.book, m.PARAMETER, named, self._backend)
        if self.metrics.any_of(m.PARAMETER_DIFFERENCE):
            for name, ours, theirs in pairs_of(self.parameters, self.reference_parameters):
                for metric in self.metrics.of(m.PARAMETER_DIFFERENCE, name):
                    self.book.run(metric, name, ours, theirs)

    def at_gradients(self, kind: str = m.GRADIENT) -> None:
        """Compute the gradient metrics, logged as that kind."""
        if not self.metrics.any_of(m.GRADIENT):
            return
        grads = [(n, p.grad) for n, p in self.parameters.items() if p.grad is not None]
        m.run_on_all(
            self.metrics, self.book, m.GRADIENT, grads, self._backend, log_as=kind,
            scale=1.0 / self._scaling.factor(),
        )  # fmt: skip
