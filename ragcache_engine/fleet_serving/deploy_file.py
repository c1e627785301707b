"""The fleet as a file for `serve deploy` on a Ray cluster."""

from __future__ import annotations

from typing import Any

from ragcache_engine.fleet_serving.fleet_settings import FleetSettings

IMPORT_PATH = "ragcache_engine.fleet_serving.application:build"


def serve_config(
    settings: FleetSettings, *, host: str, port: int, certificate: tuple[str, str] | None = None
) -> dict[str, Any]:
    """Return the config file for `serve deploy`. Keys do not stand in it.

    certificate: as in `http_options`.
    """
    return {
        # With a certificate on the head alone: no other host needs its key.
        "proxy_location": "HeadOnly" if certificate else "EveryNode",
        "http_options": http_options(host, port, certificate),
        "applications": [
            {
                "name": "ragcache",
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": settings.to_json(),
            }
        ],
    }


def http_options(
    host: str, port: int, certificate: tuple[str, str] | None = None
) -> dict[str, Any]:
    """Return where and how Ray Serve listens.

    certificate: the paths of a certificate and of its key, on the hosts of its doors; None: plain HTTP.
    """
    options: dict[str, Any] = {"host": host, "port": port, "request_timeout_s": None}
    if certificate is not None:
        options["ssl_certfile"], options["ssl_keyfile"] = certificate
    return options
