"""Documents that clients register with a server, which finds them in anybody's prompts.

| file | holds |
|---|---|
| document.py | a registered document |
| client.py | registers documents at a server |
| registered.py | the server's documents, each tenant's corpora apart |
| fingerprints.py | finds registered texts in a prompt in one pass |
| recurring.py, learned.py | texts that recur in prompts, registered without a client |
| nearness.py | finds the documents that are near another one, by their vectors |

The server's paths are in serving/corpus_routes.py. Importing this package loads no numpy.
"""

from ragcache_engine.corpora.client import (
    CorpusWarmed,
    KeepFor,
    KeptOfCorpus,
    Pushed,
    ServerCorpora,
)
from ragcache_engine.corpora.document import Registered

__all__ = [
    "CorpusWarmed",
    "KeepFor",
    "KeptOfCorpus",
    "Pushed",
    "Registered",
    "ServerCorpora",
]
