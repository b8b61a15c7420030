"""The situations of several processes, and how they are trained here."""

from tests.distributed.training import train, train_accumulated

SPREAD = {
    "DDP, 2 and 4 processes": (train, "ddp", 2),
    "DDP, `find_unused_parameters`": (train, "ddp_unused", 2),
    "DDP, accumulation with `no_sync`, uneven last group": (train_accumulated, "ddp", 2),
    "FSDP2, 2 and 4 processes, uneven and empty shards": (train, "fsdp2", 4),
    "HSDP, 2 × 2 processes": (train, "hsdp", 4),
    "tensor parallel, 2 and 4 processes": (train, "tensor_parallel", 2),
    "FSDP2 and tensor parallel, 2 × 2 processes": (train, "fsdp2_and_tensor_parallel", 4),
}
"""Situation → training, way and number of processes."""
