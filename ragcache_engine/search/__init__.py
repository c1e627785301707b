"""Staged search: ever better guesses at the nearest vectors, the last one Faiss's own answer.

    from ragcache_engine.search import stages

    for stage in stages(index, query, k=4):
        print(f"{stage.fraction_done:.0%}", stage.ids)

Importing this loads faiss and numpy; `ragcache_engine` itself does not import it.
"""

from ragcache_engine.search.offloop import astages
from ragcache_engine.search.stage import SearchStage
from ragcache_engine.search.staged import stages

__all__ = ["SearchStage", "astages", "stages"]
