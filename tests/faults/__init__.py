"""The fault matrix: each way to break times each moment in a request's life. `python -m tests.faults` writes it."""
