"""Sixteen healthy kinds of training that rule systems like to call sick.

Each is a function ``(seed, folder, steps) -> Outcome``; `steps` None is its own length.
"""
HEALTHY = {}
