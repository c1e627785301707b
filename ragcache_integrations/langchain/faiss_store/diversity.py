"""Maximal marginal relevance: choose documents near the query and unlike those already chosen.

Source: Carbonell and Goldstein, "The use of MMR" (SIGIR 1998).
"""

from __future__ import annotations

import numpy as np

from ragcache_integrations.langchain.faiss_store.metric import FloatMatrix, Metric


def choose_diverse(
    query: FloatMatrix, candidates: FloatMatrix, k: int, lambda_mult: float
) -> list[int]:
    """Return up to k rows of the candidates, in the order chosen; of equals, the first.

    query: shape (1, dimensions). candidates: shape (n, dimensions), nearest first.
    lambda_mult: 1 for relevance alone, 0 for diversity alone. Similarity is the cosine.
    """
    unit = Metric.COSINE.as_indexed(candidates)
    relevance = unit @ Metric.COSINE.as_indexed(query)[0]
    # Nothing is chosen yet, so relevance alone decides which candidate comes first.
    taken = [int(np.argmax(relevance))] if len(unit) else []
    likeness = np.full(len(unit), -np.inf, dtype=np.float32)
    while len(taken) < min(k, len(unit)):
        likeness = np.maximum(likeness, unit @ unit[taken[-1]])
        worth = lambda_mult * relevance - (1.0 - lambda_mult) * likeness
        worth[taken] = -np.inf
        taken.append(int(np.argmax(worth)))
    return taken
