"""Borrowing inside vLLM: the scheduler waits for donors, the worker copies, turns and recomputes."""
