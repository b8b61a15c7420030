"""A package with a training in it."""
