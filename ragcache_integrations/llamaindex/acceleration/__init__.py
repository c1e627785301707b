"""One call that swaps the retrievers and the LLMs of a query engine or a chat engine."""

from ragcache_integrations.llamaindex.acceleration.accelerate import accelerate

__all__ = ["accelerate"]
