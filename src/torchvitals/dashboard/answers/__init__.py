"""What the addresses of the API answer: one a file. A maker takes a `Question`, gives a `Body`."""
