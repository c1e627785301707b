"""Staged search: ever better guesses at the nearest vectors. The last one is Faiss's own answer.

    >>> import faiss, numpy as np
    >>> from ragcache_engine.search import stages
    >>> index = faiss.IndexFlatL2(4)
    >>> index.add(np.eye(4, dtype=np.float32))
    >>> for stage in stages(index, [0.0, 1.0, 0.0, 0.0], k=1):
    ...     print(f"{stage.fraction_done:.0%}", int(stage.ids[0]))
    100% 1

Importing this package loads faiss and numpy; `ragcache_engine` does not import it.
"""

from ragcache_engine.search.async_stages import astages
from ragcache_engine.search.stage import SearchStage
from ragcache_engine.search.staged import stages

__all__ = ["SearchStage", "astages", "stages"]
