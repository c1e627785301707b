"""Begin answers before their prompts come: Algorithm 2, an estimate of its gain, and the pipeline."""

from ragcache_engine.speculation.claim import Claim
from ragcache_engine.speculation.pipeline import Pipeline
from ragcache_engine.speculation.tracked_search import TrackedSearch

__all__ = ["Claim", "Pipeline", "TrackedSearch"]
