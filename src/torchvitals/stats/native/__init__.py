"""The C kernel and its loader. `kernel.c` is the way in, `block.c` the loops, `exact.c` the care."""
