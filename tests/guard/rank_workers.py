"""What each process of `test_processes.py` does."""

import logging
import math
import os

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.training import WAYS, Net, batch_of
from torchvitals import Guard
from torchvitals.guard import AdaGC, MeanStd

from .training import NAN, Training, same


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def ddp(make=adam):
    training = Training(make)
    model = DistributedDataParallel(training.model)
    return training, model


def ddp_step(training, model, batch, rank, guard=None, loss_of=None):
    """Rank r takes batch number 10 · batch + r."""
    number, kind = batch if isinstance(batch, tuple) else (batch, None)
    training.model, inner = model, training.model
    loss = training.loss((10 * number + rank, kind))
    training.model = inner
    loss.backward()
    if guard is not None and loss_of is not None:
        guard.tell_loss(loss_of(loss))
    training.optimizer.step()
    training.optimizer.zero_grad()


def one_rank_has_a_bad_batch(rank, _folder, kind):
    """The last rank alone; all must skip, and the rest is as if the batch had never been."""
    last = dist.get_world_size() - 1
    clean, model = ddp()
    for batch in [*range(8), 9, 10]:
        ddp_step(clean, model, batch, rank)
    sizes, gathered = [], dist.all_gather

    def counted(boxes, own, group=None):
        sizes.append(own.numel())
        return gathered(boxes, own, group=group)

    training, model = ddp()
    guard = Guard("skip", rule=MeanStd(6.0, warmup=4)).attach(training.optimizer, model)
    dist.all_gather = counted
    skipped = []
    for batch in [*range(8), (8, kind if rank == last else None), 9, 10]:
        ddp_step(training, model, batch, rank)
        skipped.append(guard.last_step_skipped)
    dist.all_gather = gathered
    found = {
        "skipped": skipped,
        "same": same(clean.everything(), training.everything()),
        "norm": guard.last_norm,
        "culprits": guard.verdicts[-1].culprits,
        "sizes": sizes,
        "weights": [p.detach().numpy().tobytes() for p in training.model.parameters()],
    }
    guard.detach()
    return found


def one_rank_has_a_bad_loss(rank, _folder):
    """Its gradients are fine: nothing but the exchange can tell the others."""
    training, model = ddp()
    guard = Guard("skip").attach(training.optimizer, model)
    skipped = []
    for batch in range(6):

        def loss_of(loss, batch=batch):
            return math.nan if batch == 3 and rank == 1 else loss

        ddp_step(training, model, batch, rank, guard, loss_of)
        skipped.append(guard.last_step_skipped)
    culprits = guard.verdicts[-1].culprits
    guard.detach()
    weights = [p.detach().numpy().tobytes() for p in training.model.parameters()]
    return skipped, culprits, weights


def losses_differ(rank, _folder):
    """One rank's losses rise; the mean decides, on all ranks in the same step."""
    training, model = ddp()
    guard = Guard(rollback_every=10).attach(training.optimizer, model)
    steps = []
    for batch in range(80):
        ddp_step(training, model, batch, rank)
        guard.tell_loss(1.0 if batch < 50 or rank == 0 else 60.0, late=True)
        if guard.counts["rollback"] and not steps:
            steps.append(batch)
            break
    note = guard.verdicts[-1].note if guard.verdicts else ""
    guard.detach()
    weights = [p.detach().numpy().tobytes() for p in training.model.parameters()]
    return steps, note, weights


def sharded(rank, _folder, shape, rule):
    """FSDP2 (a mesh of two dimensions: HSDP): partial norms add up to the whole model's."""
    from torch.distributed.fsdp import fully_shard

    names = ("shard",) if len(shape) == 1 else ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    whole = Training(adam)  # the same on every rank, trained on all ranks' batches
    training = Training(adam)
    fully_shard(training.model, mesh=mesh)
    training.optimizer = adam(training.model.parameters())
    made = AdaGC(warmup=3) if rule == "adagc" else MeanStd(6.0, warmup=4)
    guard = Guard(rule=made).attach(training.optimizer, training.model)
    world = dist.get_world_size()
    norms, expected, skipped, clips = [], [], [], []
    for batch in range(8):
        bad = batch == 6
        losses = [
            whole.loss((10 * batch + r, NAN if bad and r == world - 1 else None))
            for r in range(world)
        ]
        (sum(losses) / world).backward()
        squares = [p.grad.double().square().sum() for p in whole.model.parameters()]
        expected.append(math.sqrt(float(sum(squares))))
        whole.optimizer.zero_grad()
        kind = NAN if bad and rank == world - 1 else None
        training.loss((10 * batch + rank, kind)).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        norms.append(guard.last_norm)
        skipped.append(guard.last_step_skipped)
        clips.append(guard.counts["clip"])
        for ours, theirs in zip(whole.model.parameters(), training.model.parameters(), strict=True):
            ours.data.copy_(theirs.full_tensor())
    guard.detach()
    return norms, expected, skipped, clips


def split_layers(rank, _folder, way, world_size):
    """Tensor parallel, alone and within FSDP2: some parameters are split, others held by all."""
    ways = {"tensor_parallel": 1, "fsdp2_and_tensor_parallel": world_size // 2}
    parts = ways[way]
    torch.manual_seed(0)
    whole = Net()
    torch.manual_seed(0)
    model = WAYS[way](Net(), world_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = Guard("skip", rule=MeanStd(6.0, warmup=3)).attach(optimizer, model)
    norms, expected, skipped = [], [], []
    for batch in range(1, 7):
        # One data-parallel part alone has the bad batch.
        factor = [1e6 if batch == 5 and part == parts - 1 else 1.0 for part in range(parts)]
        for part in range(parts):
            x, y = batch_of(batch, part, parts)
            ((whole(x) - y).square().mean() * factor[part] / parts).backward()
        squares = [p.grad.double().square().sum() for p in whole.parameters()]
        expected.append(math.sqrt(float(sum(squares))))
        whole.zero_grad()
        mine = rank // 2 if parts > 1 else 0
        x, y = batch_of(batch, mine, parts)
        ((model(x) - y).square().mean() * factor[mine]).backward()
        optimizer.step()
        optimizer.zero_grad()
        norms.append(guard.last_norm)
        skipped.append(guard.last_step_skipped)
        for ours, theirs in zip(whole.parameters(), model.parameters(), strict=True):
            full = theirs.full_tensor() if hasattr(theirs, "full_tensor") else theirs
            ours.data.copy_(full)
    guard.detach()
    return norms, expected, skipped


def sharded_rollback(rank, _folder):
    """Broken weights under FSDP2: every rank goes back, in place, to the same state."""
    from torch.distributed.fsdp import fully_shard

    training = Training(adam)
    fully_shard(training.model)
    training.optimizer = adam(training.model.parameters())
    guard = Guard(rollback_every=5, keep=3).attach(training.optimizer, training.model)
    kept = {}
    for batch in range(40):
        if batch == 25 and rank == 0:
            with torch.no_grad():
                training.model[0].weight.to_local().fill_(float("nan"))
        training.loss(10 * batch + rank).backward()
        kept[batch + 1] = [p.full_tensor().clone() for p in training.model.parameters()]
        training.optimizer.step()
        training.optimizer.zero_grad()
        if guard.counts["rollback"]:
            break
    back = int(guard.verdicts[-1].note.split("state of ")[1].split()[0])
    now = [p.full_tensor() for p in training.model.parameters()]
    equal = all(torch.equal(a, b) for a, b in zip(now, kept[batch + 1 - back], strict=True))
    guard.detach()
    return batch, back, equal


def one_rank_goes(rank, folder):
    """Rank 1 ends; rank 0 goes on and decides alone."""
    texts = []

    class Heard(logging.Handler):
        def emit(self, record):
            texts.append(record.getMessage())

    logging.getLogger("torchvitals").addHandler(Heard())
    training = Training(adam)
    guard = Guard("skip", timeout_s=20.0).attach(training.optimizer, training.model)
    training.run(range(3))
    if rank == 1:
        (folder / "rank-1").write_bytes(b"\x80\x04N.")
        os._exit(0)
    norms = []
    for batch in range(3, 6):
        training.step(batch)
        norms.append(guard.last_norm)
    training.step((6, NAN))
    alone = Training(adam)
    with Guard("skip", agree=False).attach(alone.optimizer) as other:
        alone.run(range(6))
        expected = other.last_norm
    return norms[-1], expected, guard.last_step_skipped, texts
