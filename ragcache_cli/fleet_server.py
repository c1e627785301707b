"""`ragcache serve --replicas`: the same server many times, behind one door."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from ragcache_cli.errors import CommandError
from ragcache_cli.extras import needed
from ragcache_cli.folders import make_folder, write_whole
from ragcache_cli.logging_setup import let_libraries_speak
from ragcache_cli.server import DoorSettings
from ragcache_engine.backends.vllm.cpu_defaults import cache_bytes, chooses_cache_size
from ragcache_engine.backends.vllm.installed import require_vllm
from ragcache_engine.fleet_serving.deploy_file import serve_config
from ragcache_engine.fleet_serving.fleet_settings import FleetSettings
from ragcache_engine.serving.settings import CORPORA_FOLDER, KEYS_FILE, MAX_REQUESTS, OPERATOR_KEY

FEW_CORES = 4
"""With fewer cores for a replica, Ray sets none aside: its count would only forbid to start."""

OTHER_CONFIG = "name another folder with --print-config"
OURS = ("--port", "--host", "--uds")
"""vLLM's arguments that the fleet's door takes the place of."""


@dataclass(frozen=True, slots=True)
class FleetArguments:
    """The arguments of the command that a single server does not have.

    certificate: the paths of the door's certificate and of its key; None: it speaks plain HTTP.
    """

    replicas: int
    max_replicas: int | None
    routing: str
    address: str | None
    gpus: float | None
    host: str
    port: int
    certificate: tuple[str, str] | None = None
    doors: int = 1


def fleet_settings(
    server: Sequence[str], doors: DoorSettings, fleet: FleetArguments, given: Sequence[str]
) -> FleetSettings:
    """Return the settings of a fleet. server: the arguments of `ragcache serve` for one replica.

    Raises BackendUnavailable, CommandError, ConfigError.
    """
    wheel = require_vllm()
    if taken := [word for word in given if word.split("=")[0] in OURS]:
        raise CommandError(
            f"the replicas of a fleet listen to its door alone: give {' and '.join(taken)} before the "
            f"double dash"
        )
    is_cpu = "cpu" in wheel.name
    cores = len(os.sched_getaffinity(0)) // fleet.replicas
    environment = doors.environment()
    environment.pop(MAX_REQUESTS, None)  # the fleet's door counts those of all replicas
    return FleetSettings(
        server_arguments=("-m", "ragcache_cli", "serve", *server, "--", *given),
        environment=environment,
        replicas=fleet.replicas,
        max_replicas=fleet.max_replicas,
        doors=fleet.doors,
        routing=fleet.routing,
        replica_gpus=fleet.gpus if fleet.gpus is not None else (0 if is_cpu else 1),
        replica_cpus=_replica_cpus(cores, fleet) if is_cpu else 0,
        splits_cores=is_cpu and fleet.address is None,
        max_requests=doors.max_requests,
        max_body_bytes=doors.max_body_bytes,
        keys_file=environment.get(KEYS_FILE),
        corpora_folder=environment.get(CORPORA_FOLDER),
        max_corpora_bytes=doors.max_corpora_bytes,
    )


def _replica_cpus(cores: int, fleet: FleetArguments) -> int:
    """Return how many cores Ray sets aside for a replica. cores: of this machine, for each replica.

    On a cluster at least one: a head that is given none runs no replica.
    """
    if cores >= FEW_CORES:
        return cores - 1
    return int(fleet.address is not None)


def share_memory(settings: FleetSettings) -> FleetSettings:
    """Give replicas that share the cores of this machine equal parts of its free memory, too.

    A size that the user has chosen stays. Where a prompt is near the size of the cache, answers may
    depend on that size, so it is the same for all.
    """
    if not settings.splits_cores or chooses_cache_size(settings.server_arguments):
        return settings
    import psutil  # it comes with vLLM

    size = cache_bytes(psutil.virtual_memory().available // settings.most_replicas)
    chosen = ("--kv-cache-memory-bytes", str(size))
    return replace(settings, server_arguments=(*settings.server_arguments, *chosen))


def print_config(
    settings: FleetSettings, fleet: FleetArguments, folder: Path, console: Console
) -> None:
    """Write the config file of Serve into a folder. Raises CannotWrite."""
    with needed("a fleet"):
        import yaml  # it comes with Ray
    make_folder(folder, OTHER_CONFIG)
    config = folder / "serve.yaml"
    made = serve_config(settings, host=fleet.host, port=fleet.port, certificate=fleet.certificate)
    write_whole(config, yaml.safe_dump(made, sort_keys=False), OTHER_CONFIG)
    console.print(f"Written: {config}", highlight=False, soft_wrap=True)


def run_fleet(settings: FleetSettings, fleet: FleetArguments, console: Console) -> None:
    """Run the fleet until this process is told to end; then it answers what it has."""
    settings = share_memory(settings)
    # Ray's processes, which inherit the environment, have no use for the key.
    key = os.environ.pop(OPERATOR_KEY, None)
    with needed("a fleet"):
        from ragcache_engine.fleet_serving.running import running_fleet
    console.print(f"Starting {settings.replicas} replicas", highlight=False)
    let_libraries_speak()
    where = f"{'https' if fleet.certificate else 'http'}://{fleet.host}:{fleet.port}"
    with running_fleet(
        settings,
        host=fleet.host,
        port=fleet.port,
        address=fleet.address,
        operator_key=key,
        certificate=fleet.certificate,
    ):
        # Ray has taken the signals for itself, and would end at once.
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        console.print(f"Ready: {where}", highlight=False)
        ended.wait()
        console.print("Ending, once all requests are answered", highlight=False)
