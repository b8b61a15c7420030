"""Rules: one ailment a file. `check(run, thresholds)` gives a `Finding`, or None.

A rule reads a `Run` and judges after a warm-up, on values that persist, by robust scales. Its
limits stand in `Thresholds`; its docstring is its page (`vitals explain`). `catalogue` lists all.
"""
