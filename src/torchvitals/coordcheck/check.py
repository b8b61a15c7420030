"""`coordinate_check`: trains a model at several widths and measures how its updates go with width.

A few steps at each width are enough: under a parametrisation that keeps its promise (μP) every
term is as large at width 4096 as at 64, and the learning rate found on the small model serves the
large one. Where a line rises, the large model blows up; where it falls, a layer stops learning.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._pytree import tree_map_only

from torchvitals.coordcheck.arguments import (
    MakeOptimizer,
    builder,
    check_functions,
    check_modules,
    first_batches,
    measured_steps,
    the_loss,
    the_model,
    the_optimizer,
    whole_seeds,
    whole_widths,
)
from torchvitals.coordcheck.measure import Measurer
from torchvitals.coordcheck.quiet import own_random_state
from torchvitals.coordcheck.table import CoordinateRow, CoordinateTable
from torchvitals.probes.activations import tensors_in
from torchvitals.record import ConfigError

Loss = Callable[[Any, Any], Tensor]


def coordinate_check(
    make_model: Callable[[int], nn.Module],
    widths: Sequence[int],
    batches: Iterable[Any] | Callable[[], Iterable[Any]],
    *,
    optimizer: str | MakeOptimizer = "adam",
    lr: float = 1e-2,
    steps: int = 3,
    at: Sequence[int] | None = None,
    seeds: int | Sequence[int] = 3,
    loss: Loss | None = None,
    modules: str | None = None,
    alignment: bool = True,
    progress: bool = True,
) -> CoordinateTable:
    """Train `make_model(width)` for a few steps at each width and seed; measure its terms.

    `batches` are taken in turn and start over; after t updates the model and its copy at
    initialisation are compared on the batch that comes next. Both are quiet then: no dropout.
    Everything is seeded, and the global random state is left as it was.

    optimizer   a function of the model, or "adam", "adamw", "sgd" with `lr`
    at          numbers of updates after which to measure; 0 … steps unless told
    seeds       how many, or which
    loss        a function of model and batch; unless told, a batch of (inputs, targets) gives the
                cross-entropy with whole targets and the squared error with others, and a dict or a
                single tensor goes to a model that returns its own loss
    modules     a regular expression on names; unless told, all modules with parameters of their own
    alignment   whether to compute operator norms
    """
    chosen_widths, chosen_seeds = whole_widths(widths), whole_seeds(seeds)
    when = measured_steps(steps, at)
    check_modules(modules)
    check_functions(make_model, loss)
    build = builder(optimizer, lr)
    loss = loss or usual_loss
    given = first_batches(batches, steps + 1)

    def chosen(name: str, module: nn.Module) -> bool:
        if modules is not None:
            return re.match(modules, name) is not None
        return any(True for _ in module.parameters(recurse=False))

    def rows_of(width: int, seed: int) -> Iterator[CoordinateRow]:
        torch.manual_seed(seed)
        model = the_model(make_model(width), width)
        initial = copy.deepcopy(model).requires_grad_(False)
        measurer = Measurer(model, initial, chosen=chosen, alignment=alignment)
        update = the_optimizer(build(model))
        device = next((parameter.device for parameter in model.parameters()), None)
        for step in range(steps + 1):
            advance(f"width {width}, seed {seed}")
            batch = _to(given[step % len(given)], device)
            if step in when:
                for module, term, value in measurer.measure(partial(_called, loss, batch)):
                    yield CoordinateRow(width, seed, step, module, term, value)
            if step < steps:
                model.train()
                update.zero_grad()
                the_loss(loss(model, batch)).backward()  # type: ignore[no-untyped-call]
                update.step()

    rows: list[CoordinateRow] = []
    with _bar(len(chosen_widths) * len(chosen_seeds) * (steps + 1), progress) as advance:
        for width in chosen_widths:
            for seed in chosen_seeds:
                with own_random_state():
                    rows += rows_of(width, seed)
    return CoordinateTable(rows)


def usual_loss(model: nn.Module, batch: Any) -> Tensor:
    """The loss of a batch whose shape says what it means."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, targets = batch
        output = _first(model(inputs))
        if targets.is_floating_point():
            return F.mse_loss(output, targets)
        return F.cross_entropy(output.reshape(-1, output.shape[-1]), targets.reshape(-1))
    output = model(**batch) if isinstance(batch, Mapping) else model(batch)
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    value = _first(output) if found is None else found
    if value.dim() > 0:
        raise ConfigError(
            f"the model gave a tensor of shape {tuple(value.shape)}, not a loss; use batches of "
            "(inputs, targets), or loss=lambda model, batch: …"
        )
    return value


def need_plots(path: str | PathLike[str]) -> None:
    """MissingExtra or ConfigError where a table could not be drawn into that file."""
    from torchvitals.coordcheck.plot import check_path

    check_path(path)


def _first(output: Any) -> Tensor:
    found = next((tensor for _, tensor in tensors_in(output)), None)
    if found is None:
        raise ConfigError(f"the model returned no tensor but {type(output).__name__}")
    return found


def _called(loss: Loss, batch: Any, model: nn.Module) -> Tensor:
    return loss(model, batch)


def _to(batch: Any, device: torch.device | None) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)


def _bar(total: int, wanted: bool) -> AbstractContextManager[Callable[[str], None]]:
    """A bar on stderr, where that is a terminal."""
    if not wanted or not sys.stderr.isatty():
        return nullcontext(lambda _text: None)
    from torchvitals.coordcheck.progress import Bar

    return Bar(total)
