"""Where tensors are seen.

A probe measures on the training thread, and turns what it measured into columns of the row on the
writer's thread.
"""
