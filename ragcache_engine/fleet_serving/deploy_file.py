"""The fleet as a file for `serve deploy` on a Ray cluster."""

from __future__ import annotations

from typing import Any

from ragcache_engine.fleet_serving.fleet_settings import FleetSettings

IMPORT_PATH = "ragcache_engine.fleet_serving.application:build"


def serve_config(settings: FleetSettings, *, host: str, port: int) -> dict[str, Any]:
    """Return the config file for `serve deploy`. Keys do not stand in it."""
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": host, "port": port, "request_timeout_s": None},
        "applications": [
            {
                "name": "ragcache",
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": settings.to_json(),
            }
        ],
    }
