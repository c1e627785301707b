"""A device without a model: production's cache manager over simulated memory, copies and time.

The memory backend and `ragcache simulate` run on it. What is cached, evicted, loaded and stored is
decided by the same code that decides beside vLLM; only the tensors and the seconds are made up.
"""
