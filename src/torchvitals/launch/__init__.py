"""`vitals run train.py`: watches a script that knows nothing of it.

    start        makes the command line of the script's own interpreter and becomes it
    injected/    what that interpreter loads first: it waits for torch, and gets out of the way
    settings     what was asked for, on its way there
    awaiting     calls us when the script has imported torch
    watcher      finds an optimizer's first step, attaches the monitor, tells it what it sees
    models       which modules an optimizer trains, and what to call them
    loaders      waiting for data, and epochs, from `DataLoader`
    evaluations  forward passes without gradients
    ending       tracebacks without our frames, and the diagnosis at the end

The script is run by `python` itself, in this process (`exec`), not by code of ours: `__main__`,
`sys.argv`, `sys.path`, stdin, signals, the exit code and pickling are its own because nothing
stands in between.
"""
