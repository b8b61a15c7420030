"""What each process of `test_ranks.py` does, and how they are started: real ranks over gloo."""

import contextlib
import faulthandler
import gc
import logging
import os
import pickle
import signal
import time

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import distributed as dist

from torchvitals.monitor.categories import CategoryBook
from torchvitals.monitor.ranks import Ranks

PATIENCE_S = 180
"""For ranks that work: far more than they need, a busy machine is slow, not wrong."""

PRELOADED = [
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch._dynamo",
    "torchvitals.monitor.watch",
]
"""What ranks import, imported once: it takes longer than most of what they are started for."""

MEETING_S = 60
"""For gloo to connect the ranks. That is none of our code: when it fails, they meet once more."""


def run(world_size, worker, folder, *args):
    """Start the ranks; what each returned, None for one that was killed."""
    processes = _start(world_size, worker, folder, "first", args) or _start(
        world_size, worker, folder, "second", args
    )
    assert processes, "gloo connects no ranks here"
    try:
        for rank, process in enumerate(processes):
            process.join(PATIENCE_S)
            if process.exitcode is None:
                raise AssertionError(f"rank {rank} hangs\n{_stacks(folder)}")
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
    assert all(p.exitcode in {0, -signal.SIGKILL} for p in processes), [
        p.exitcode for p in processes
    ]
    files = [folder / f"rank-{rank}" for rank in range(world_size)]
    return [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]


def _start(world_size, worker, folder, meeting, args):
    """The ranks at work, or None when they did not find each other."""
    # A server that has imported torch once: a rank starts in milliseconds, not in seconds.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    processes = [
        context.Process(target=_rank, args=(rank, world_size, worker, folder, meeting, args))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + MEETING_S
    while len(list(folder.glob(f"{meeting}-met-*"))) < world_size:
        if time.monotonic() > end:
            print(f"the {meeting} meeting failed\n{_stacks(folder)}")
            for process in processes:
                process.kill()
                process.join()
            return None
        if any(process.exitcode for process in processes):
            break
        time.sleep(0.01)
    return processes


def _stacks(folder):
    """What every thread of every rank is doing: each is asked by a signal."""
    for file in folder.glob("stacks-*"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(file.name.split("-")[-1]), signal.SIGUSR1)
    time.sleep(2)
    return "\n".join(f"{file.name}:\n{file.read_text()}" for file in folder.glob("stacks-*"))


def _rank(rank, world_size, worker, folder, meeting, args):
    with (folder / f"stacks-of-rank-{rank}-{os.getpid()}").open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/{meeting}", rank=rank, world_size=world_size
        )
        (folder / f"{meeting}-met-{rank}").touch()
        result = worker(rank, folder, *args)
        file = folder / f"writing-{rank}"
        file.write_bytes(pickle.dumps(result))
        file.rename(folder / f"rank-{rank}")
        # After the worker's models are gone: what DDP holds of a group must not be the last of it.
        # torch then waits for the group's threads without letting go of the interpreter, which
        # they may need to end.
        gc.collect()
        if dist.is_initialized():
            dist.destroy_process_group()
        faulthandler.unregister(signal.SIGUSR1)


def data(seed, world_size):
    """Losses, labels, weights and each sample's rank: uneven, every third seed leaves one empty."""
    rng = np.random.default_rng(seed)
    num = int(rng.integers(50, 3000))
    labels = rng.integers(0, rng.integers(1, 200), num)
    losses = rng.gamma(2.0, size=num).astype(np.float32) * 10.0 ** rng.integers(-3, 4, num)
    weight = rng.integers(0, 50, num) * rng.random(num)
    ranks = rng.choice(world_size, num, p=rng.dirichlet(np.full(world_size, 0.5)))
    empty, full = rng.permutation(world_size)[[0, -1]]
    # Some labels live on one rank only.
    ranks[labels % 5 == 0] = full
    if seed % 3 == 0:
        ranks[ranks == empty] = full
    return losses, labels, weight, ranks


def sums_of_shards(rank, _folder, seeds):
    """Each seed's data, this rank's share of it in a few batches, summed over the ranks."""
    ranks = Ranks.join()
    book = CategoryBook()
    results = []
    for seed in seeds:
        losses, labels, weight, where = data(seed, ranks.world_size)
        mine = np.flatnonzero(where == rank)
        rng = np.random.default_rng([seed, rank])
        for part in np.array_split(rng.permutation(mine), rng.integers(1, 6)):
            names = [f"label {label}" for label in labels[part]] if seed % 2 else labels[part]
            book.add(torch.from_numpy(losses[part]), names, weight[part])
        by_label = ranks.sum_labelled(book.take())
        share = losses[mine].astype(np.float64)
        totals = {"loss": (share.sum(), len(share)), f"only {rank}": (rank, 1)}
        scalars = ranks.sum_scalars(totals)
        numbers = ranks.gather({"rank": rank, "memory": float("inf") if rank else float("nan")})
        results.append((by_label, scalars, numbers))
    ranks.close()
    return ranks.is_writer, results


class Heard(logging.Handler):
    """Keeps warnings."""

    def __init__(self):
        super().__init__()
        self.texts = []
        logging.getLogger("torchvitals").addHandler(self)

    def emit(self, record):
        self.texts.append(record.getMessage())


def one_is_killed(rank, folder, victim):
    """One rank dies before the exchange; the others say how long they were held up."""
    heard = Heard()
    ranks = Ranks.join(timeout_s=20)
    book = CategoryBook()
    book.add([1.0, 2.0 + rank], [rank, "all"])
    assert ranks.gather({"rank": rank}).complete
    die_when_others_are_here(rank, folder, victim)
    begun = time.monotonic()
    sums = ranks.sum_labelled(book.take())
    held_up_s = time.monotonic() - begun
    begun = time.monotonic()
    again = [ranks.gather({"rank": rank}), ranks.sum_scalars({"loss": (rank, 1)})]
    return sums, held_up_s, again, time.monotonic() - begun, heard.texts


def one_is_silent(rank, folder):
    """One rank does not come in time."""
    heard = Heard()
    ranks = Ranks.join(timeout_s=1)
    if rank == 1:
        wait_for(folder / "given-up")
    begun = time.monotonic()
    numbers = ranks.gather({"rank": rank})
    held_up_s = time.monotonic() - begun
    (folder / "given-up").touch()
    return numbers, held_up_s, heard.texts


def one_never_joins(rank, folder):
    """One rank dies before the ranks have met."""
    heard = Heard()
    die_when_others_are_here(rank, folder, victim=1)
    begun = time.monotonic()
    ranks = Ranks.join(timeout_s=2)
    numbers = ranks.gather({"rank": rank})
    return numbers, time.monotonic() - begun, ranks.rank, ranks.is_writer, heard.texts


def out_of_step(rank, _folder):
    """Ranks that report different things, then one that outlives torch.distributed."""
    heard = Heard()
    ranks = Ranks.join(timeout_s=20)
    mixed = ranks.gather({"rank": rank}) if rank else ranks.sum_scalars({"loss": (1.0, 2)})
    late = Ranks.join(timeout_s=20)
    dist.destroy_process_group()
    after = late.gather({"rank": rank})
    late.close()
    return mixed, after, heard.texts


def die_when_others_are_here(rank, folder, victim):
    """Kill that rank, but none of the others in the middle of what came before."""
    if rank == victim:
        for other in range(dist.get_world_size()):
            if other != victim:
                wait_for(folder / f"here-{other}")
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / f"here-{rank}").touch()


def wait_for(path):
    """Until another rank made that file."""
    end = time.monotonic() + PATIENCE_S
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
