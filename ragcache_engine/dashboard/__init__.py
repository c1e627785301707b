"""Live pages of what an engine or a server does. Importing this loads no library of pages.

Observer            looks at an engine (EngineObserver) or at a server (ServerObserver)
Observation         what it saw; History compares them
lanes               a question's way as pictures draw it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ragcache_engine.dashboard.history import (
    History,
    Interval,
    prompt_tokens,
    tokens_by_source,
)
from ragcache_engine.dashboard.observation import Observation, ObservedRequest, Observer, Phase
from ragcache_engine.dashboard.server_observer import ServerObserver
from ragcache_engine.errors import ConfigError
from ragcache_engine.values import BORROWED

if TYPE_CHECKING:
    from ragcache_engine.dashboard.serving import Dashboard

__all__ = [
    "BORROWED",
    "History",
    "Interval",
    "Observation",
    "ObservedRequest",
    "Observer",
    "Phase",
    "ServerObserver",
    "open_dashboard",
    "prompt_tokens",
    "tokens_by_source",
]

LARGEST_PORT = 65_535


def open_dashboard(observer: Observer, host: str = "127.0.0.1", port: int = 0) -> Dashboard:
    """Serve a live page of what an observer sees; see RAGCacheEngine.dashboard.

    Raises ConfigError if the extra `dashboard` is not installed, or if the port is taken.
    """
    try:
        from ragcache_engine.dashboard.serving import Dashboard
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] not in ("dash", "werkzeug", "flask"):
            raise
        raise ConfigError(
            f"the dashboard needs the package {error.name}, which is not installed: "
            "pip install 'ragcache-integrations[dashboard]'"
        ) from error
    try:
        if not 0 <= port <= LARGEST_PORT:  # werkzeug would take the remainder
            raise OSError("there is no such port")
        return Dashboard(observer, host, port)
    except (OSError, SystemExit) as error:  # werkzeug exits if a port is taken
        raise ConfigError(
            f"the dashboard cannot listen on {host}:{port}; choose another port, or 0 for any free one"
        ) from error
