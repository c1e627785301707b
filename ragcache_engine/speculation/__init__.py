"""Begin on provisional search results: Algorithm 2, what it gains, and the pipeline that obeys it."""

from ragcache_engine.speculation.pipeline import Claim, Pipeline
from ragcache_engine.speculation.tracked_search import TrackedSearch

__all__ = ["Claim", "Pipeline", "TrackedSearch"]
