"""The C kernel and its loader. Start at `kernel.c`; `block.c` has the loops, `exact.c` the care."""
