"""The page: a local, read-only web server for runs. Needs the extra ``[ui]``. No torch.

app       all addresses, and what answers each
gate      who may ask: hosts, methods, token, headers
shelf     run ids, and the histories that are open
desk      one request to one answer: versions, caches, threads
live      server-sent events when a run has more
frames    numbers as bytes
serve     the process: port, uvicorn, Ctrl-C
report    the page and one run's answers in one file; needs neither extra nor server
"""
