"""Backends that are servers: the other end of serving/, and of OpenAI's API as plain vLLM serves it.

| file | holds |
|---|---|
| finding.py | which of the two backends fits the server at an address |
| ragcache_server.py | the backend for `ragcache serve` |
| vllm_server.py | the backend for a plain `vllm serve` |
| connection.py | HTTP: keys, retries, time limits, and the errors that answers stand for |
"""
