"""A run → plain data, and plain data → text. One view a file. No torch."""
