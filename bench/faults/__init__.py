"""The benchmark of injected faults. Begin with program.py."""
