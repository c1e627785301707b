"""One call that swaps the retrievers and the models of a chain, wherever they stand in it."""

from ragcache_integrations.langchain.acceleration.accelerate import accelerate

__all__ = ["accelerate"]
