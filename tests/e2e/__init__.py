"""End to end: the promise, with the lab between."""
