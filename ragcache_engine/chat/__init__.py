"""Conversations: what they must be like before a model's chat template writes them."""

from ragcache_engine.chat.messages import checked

__all__ = ["checked"]
