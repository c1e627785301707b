"""Keeps real blocks where the knowledge tree says: device, host and disk, in plain Python.

It knows blocks by number and by key, and neither vLLM nor torch; `backends/vllm` gives it both.
"""
