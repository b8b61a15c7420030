"""The command `vitals`. One file a command; each imports what it needs when it is called."""
