"""`ragcache serve`."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ragcache_cli.commands.argument_types import (
    WholeNumber,
    add_disk_cache_place,
    add_reuse,
    reuse_settings,
    share,
    size_in_bytes,
)
from ragcache_cli.models import DEMO_MODEL, DEMO_MODEL_NAME
from ragcache_engine import EngineConfig
from ragcache_engine.fleet import ROUTINGS
from ragcache_engine.knowledge import DEFAULT_POLICY, POLICIES

if TYPE_CHECKING:
    from ragcache_cli.server import DoorSettings

SUMMARY = "start vLLM's OpenAI-compatible server with RAGCache"
DESCRIPTION = (
    "Start vLLM's own OpenAI-compatible server with RAGCache's knowledge tree over its device "
    "memory, a host tier and a disk tier. Arguments after -- go to `vllm serve` as they are: "
    "ragcache serve MODEL --disk-cache 20GiB -- --port 8001 --dtype float16"
)
ENGINE_SETTINGS = (
    "host_cache",
    "disk_cache",
    "disk_cache_dir",
    "disk_cache_key",
    "shared_cache",
    "host_cache_per_tenant",
    "disk_cache_per_tenant",
    "policy",
    "reorder_window",
    "cache_depth",
)
"""Fields of EngineConfig with an argument of the same name. One that is not given keeps its default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default=DEMO_MODEL,
        help=f"a hub id or a model folder (default: {DEMO_MODEL_NAME}, no download)",
    )
    parser.add_argument(
        "--host-cache",
        metavar="SIZE",
        help="host memory for copies of what the device computed, such as 8GiB (see EngineConfig)",
    )
    parser.add_argument(
        "--disk-cache",
        metavar="SIZE",
        help="disk for copies of what host memory holds, such as 50GiB (default: none)",
    )
    add_disk_cache_place(parser)
    for tier in ("host", "disk"):
        parser.add_argument(
            f"--{tier}-cache-per-tenant",
            metavar="SIZE",
            help=f"how much of the {tier} cache one tenant may take, such as 2GiB (default: as "
            "much as fits)",
        )
    parser.add_argument(
        "--policy",
        choices=sorted(POLICIES),
        default=DEFAULT_POLICY,
        help="which documents a full tier evicts first (%(default)s)",
    )
    parser.add_argument(
        "--reorder-window",
        type=WholeNumber(),
        metavar="N",
        help="how many waiting requests compete to be the next; 1: first come, first served "
        f"({EngineConfig.model_fields['reorder_window'].default})",
    )
    parser.add_argument(
        "--cache-depth",
        type=WholeNumber(),
        metavar="N",
        help="cache only the first N documents of a prompt (all)",
    )
    add_reuse(parser, with_donors=False, answers=True)
    parser.add_argument(
        "--keys",
        type=Path,
        metavar="FILE",
        help="whose API key is whose (see the guide to servers)",
    )
    parser.add_argument(
        "--max-body",
        type=size_in_bytes,
        metavar="SIZE",
        help="the most bytes of a request (default: 32MiB)",
    )
    parser.add_argument(
        "--max-requests",
        type=WholeNumber(),
        metavar="N",
        help="the most requests at a time; more are refused (default: no limit)",
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        action="append",
        metavar="FOLDER",
        help="find these documents in everybody's prompts (as `ragcache corpus push`); may be repeated",
    )
    parser.add_argument(
        "--learn-documents",
        action="store_true",
        help="take texts that recur in prompts, of 128 tokens or more, for documents too",
    )
    parser.add_argument(
        "--max-corpora",
        type=size_in_bytes,
        metavar="SIZE",
        help="memory for the documents of --corpus and of clients (default: 1GiB)",
    )
    parser.add_argument(
        "--embeddings",
        metavar="MODEL",
        help="what embeds documents that come without vectors, for --reuse anywhere: minilm (extra "
        "demo), or the URL of an OpenAI-compatible server, such as http://host:8001/v1",
    )
    parser.add_argument(
        "--embeddings-model",
        metavar="NAME",
        help="the model of that server; its key comes in RAGCACHE_EMBEDDINGS_KEY",
    )
    parser.add_argument(
        "--kept-share",
        type=share,
        metavar="SHARE",
        help="how much of the host tier and of the disk tier may be kept from eviction (default: 0.5)",
    )
    parser.add_argument(
        "--host", metavar="ADDRESS", help="to listen on (default: vLLM's; a fleet's: 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=WholeNumber(), metavar="N", help="to listen on (default: 8000)"
    )
    fleet = parser.add_argument_group("many replicas behind one door, on Ray Serve (extra fleet)")
    fleet.add_argument("--replicas", type=WholeNumber(), metavar="N", help="how many servers")
    fleet.add_argument(
        "--max-replicas", type=WholeNumber(), metavar="N", help="more under load, up to so many"
    )
    fleet.add_argument(
        "--doors",
        type=WholeNumber(),
        metavar="N",
        help="how many processes check and pass on requests (1)",
    )
    fleet.add_argument(
        "--routing", choices=ROUTINGS, help=f"how prompts find a replica ({ROUTINGS[0]})"
    )
    fleet.add_argument(
        "--address", metavar="RAY", help="a Ray cluster, such as auto (default: this machine)"
    )
    fleet.add_argument(
        "--gpus", type=float, metavar="N", help="of each replica (1 with CUDA, else 0)"
    )
    fleet.add_argument(
        "--ssl-certfile", type=Path, metavar="FILE", help="the door's certificate, for https"
    )
    fleet.add_argument("--ssl-keyfile", type=Path, metavar="FILE", help="the key to it")
    fleet.add_argument(
        "--print-config",
        type=Path,
        metavar="FOLDER",
        help="write serve.yaml, for `serve deploy`, there instead of starting anything",
    )
    parser.add_argument(
        "--show", action="store_true", help="print the command instead of running it"
    )


FLEET_ARGUMENTS = (
    *("max_replicas", "doors", "routing", "address", "gpus"),
    *("ssl_certfile", "ssl_keyfile", "print_config"),
)
"""The arguments that mean something for a fleet alone."""
REPLICA_ARGUMENTS = (*ENGINE_SETTINGS, "reuse", "recompute_ratio", "donor_dtype", "missing_donors")
"""The arguments that each replica of a fleet is started with."""


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.errors import CommandError
    from ragcache_cli.models import demo_model
    from ragcache_cli.server import (
        DoorSettings,
        become_server,
        build_server_command,
        require_usable_keys,
    )

    chosen = {name: getattr(parsed, name) for name in ENGINE_SETTINGS}
    settings = {name: value for name, value in chosen.items() if value is not None}
    settings |= reuse_settings(parsed)
    settings["model"] = str(demo_model()) if parsed.model == DEMO_MODEL else parsed.model
    doors = DoorSettings(parsed.keys, parsed.max_body, parsed.max_requests, parsed.max_corpora)
    require_usable_keys(doors, parsed.vllm_arguments)
    _require_embeddings(parsed, settings)
    doors = replace(
        doors,
        learns_documents=parsed.learn_documents,
        kept_share=parsed.kept_share,
        embeddings=parsed.embeddings,
        embeddings_model=parsed.embeddings_model,
    )
    if parsed.corpus:
        from ragcache_cli.corpus_pushing import write_corpora

        doors = replace(doors, corpora_folder=write_corpora(parsed.corpus, console))
    if parsed.replicas:
        return _run_fleet(parsed, doors, settings["model"], console)
    for name in FLEET_ARGUMENTS:
        if getattr(parsed, name) is not None:
            raise CommandError(
                f"--{name.replace('_', '-')} is for a fleet: say how many --replicas, or leave it out"
            )
    vllm_arguments = [*_listening(parsed), *parsed.vllm_arguments]
    if parsed.show:
        command = build_server_command(settings, vllm_arguments)
        told = [f"{name}={value}" for name, value in doors.environment().items()]
        console.print(shlex.join(["env", *told, *command] if told else command), soft_wrap=True)
    else:
        become_server(settings, doors, vllm_arguments)
    return 0


def _require_embeddings(parsed: argparse.Namespace, settings: dict[str, object]) -> None:
    """Raise CommandError or ConfigError for an embedding model that the server could not use."""
    from ragcache_cli.errors import CommandError
    from ragcache_engine.corpora.embedders import require_embedder

    if parsed.embeddings is None:
        if parsed.embeddings_model is not None:
            raise CommandError(
                "--embeddings-model is a name on a server: say which, by --embeddings"
            )
        return
    if settings.get("reuse") != "anywhere":
        raise CommandError(
            "--embeddings finds what documents are borrowed behind: give it with --reuse anywhere"
        )
    require_embedder(parsed.embeddings, parsed.embeddings_model)


def _listening(parsed: argparse.Namespace) -> list[str]:
    """Return vLLM's arguments for where to listen, but for those that the user gave to vLLM."""
    given = {word.split("=")[0] for word in parsed.vllm_arguments}
    found = {"--host": parsed.host, "--port": parsed.port}
    chosen = {name: str(value) for name, value in found.items() if value is not None}
    return [word for name in chosen.keys() - given for word in (name, chosen[name])]


def _read_certificate(
    certificate: Path | None, key: Path | None, *, is_elsewhere: bool
) -> tuple[str, str] | None:
    """Return the paths of the door's certificate and key. Raises CommandError for what is no pair.

    is_elsewhere: whether the door is to run on another host, which has the files.
    """
    import ssl

    from ragcache_cli.errors import CommandError

    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise CommandError("--ssl-certfile and --ssl-keyfile belong together: give both")
    paths = str(certificate.expanduser().resolve()), str(key.expanduser().resolve())
    if is_elsewhere:
        return paths
    try:
        # A key with a passphrase is none that a server can read by itself.
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*paths, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise CommandError(
            f"{certificate} and {key} are no certificate and its key: {error}"
        ) from error
    return paths


def _run_fleet(
    parsed: argparse.Namespace, doors: DoorSettings, model: object, console: Console
) -> int:
    from ragcache_cli.fleet_server import FleetArguments, fleet_settings, print_config, run_fleet

    fleet = FleetArguments(
        parsed.replicas,
        parsed.max_replicas,
        parsed.routing or ROUTINGS[0],
        parsed.address,
        parsed.gpus,
        parsed.host or "127.0.0.1",
        parsed.port or 8000,
        _read_certificate(
            parsed.ssl_certfile, parsed.ssl_keyfile, is_elsewhere=parsed.print_config is not None
        ),
        parsed.doors or 1,
    )
    words = [str(model)]
    for name in REPLICA_ARGUMENTS:
        if (value := getattr(parsed, name, None)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    settings = fleet_settings(words, doors, fleet, parsed.vllm_arguments)
    if parsed.print_config:
        print_config(settings, fleet, parsed.print_config, console)
    else:
        run_fleet(settings, fleet, console)
    return 0
