"""A simulated device: the production cache manager over simulated memory, copies and time.

The memory backend and `ragcache simulate` run on it. The same code as with vLLM decides what to cache,
evict, load and store; only the tensors and the seconds are made up. traces.py, replay.py and oracle.py
replay logs of questions on the tree alone.
"""
