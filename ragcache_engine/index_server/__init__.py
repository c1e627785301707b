"""A Faiss index in another process: searched in stages there, and read here as they come.

The server (`served.py`, `app.py`) has the index and its documents; `ragcache index serve` starts it. The
client (`client.py`) needs neither Faiss nor numpy, and importing this package loads neither. Both speak
`messages.py`.
"""

from ragcache_engine.index_server.client import IndexServer
from ragcache_engine.index_server.messages import FoundStage, IndexDescription, IndexedDocument

__all__ = ["FoundStage", "IndexDescription", "IndexServer", "IndexedDocument"]
