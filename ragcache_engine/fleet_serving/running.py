"""Runs a fleet: on this machine, or on a Ray cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import serve
from ray.serve.context import _get_global_client

from ragcache_engine.errors import ConfigError
from ragcache_engine.fleet_serving.application import build_application
from ragcache_engine.fleet_serving.deploy_file import http_options
from ragcache_engine.fleet_serving.fleet_settings import FleetSettings
from ragcache_engine.serving.keys import name_by_digest

NAME = "ragcache"
"""The name of the application in Ray Serve."""

OBJECT_STORE_BYTES = 128 << 20
"""Ray's shared memory on a machine of our own: no tensors travel through it, only requests."""


@contextmanager
def running_fleet(
    settings: FleetSettings,
    *,
    host: str,
    port: int,
    address: str | None = None,
    operator_key: str | None = None,
    certificate: tuple[str, str] | None = None,
) -> Iterator[None]:
    """Start a fleet, and end it after the block: first it answers what it has.

    host, port: where its door listens. address: of a Ray cluster; None: on this machine alone. The
    cluster goes on without the fleet, and so does what else Ray Serve runs there.
    certificate: as in `http_options`.
    operator_key: an operator's key or its digest. Only the digest leaves this process, as a value that
    the door is made with: what Ray has in environments stands in process lists and logs.

    Raises ConfigError if Ray Serve listens on another port there, or for a key that cannot be used.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    known_by = name_by_digest(operator_key) if operator_key else None
    options: dict[str, Any] = {}
    if address is None:
        options = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    ray.init(
        address=address or "local", log_to_driver=False, logging_level=logging.WARNING, **options
    )
    try:
        serves_already = address is not None and _serves_on(port)
        # One door, at the address that clients know: a worker has another one.
        serve.start(proxy_location="HeadOnly", http_options=http_options(host, port, certificate))
        try:
            serve.run(build_application(settings, known_by), name=NAME, route_prefix="/")
            yield
        finally:
            serve.delete(NAME)
            if not serves_already and not serve.status().applications:
                serve.shutdown()  # type: ignore[no-untyped-call]
    finally:
        ray.shutdown()


def _serves_on(port: int) -> bool:
    """Return whether Ray Serve runs on the cluster already. Raises ConfigError if on another port."""
    # It keeps the port of its first start, and tells it in no public way.
    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        return False
    if client.http_config.port != port:
        raise ConfigError(
            f"Ray Serve runs on this cluster already, and its doors listen on port "
            f"{client.http_config.port}: give --port {client.http_config.port}, or end it with "
            f"`serve shutdown`"
        )
    return True
