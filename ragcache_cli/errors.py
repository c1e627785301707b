"""The errors of the command line, below the engine's own tree.

RAGCacheError
└── CommandError                     the command cannot go on; shown as one line
    ├── MissingExtra                 a package of an optional extra is not installed
    ├── EmptyCorpus                  the folder holds nothing that could be read
    ├── CannotWrite                  what the command makes cannot be written where it belongs
    ├── BadTrace                     a retrieval trace or query log cannot be read
    └── DemoModelUnavailable         the demo's model could not be made
"""

from __future__ import annotations

from ragcache_engine import RAGCacheError


class CommandError(RAGCacheError):
    """The command cannot go on. The message says what to do."""


class MissingExtra(CommandError):
    """A package that comes with an optional extra is not installed."""


class EmptyCorpus(CommandError):
    """The folder does not exist, or holds no text that can be read."""


class CannotWrite(CommandError):
    """What the command makes cannot be written. The message says how to name another place."""


class BadTrace(CommandError):
    """A file of requests or questions cannot be read. The message names the line."""


class DemoModelUnavailable(CommandError):
    """The demo's model could not be converted into a folder that vLLM reads."""
