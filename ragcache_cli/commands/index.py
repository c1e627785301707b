"""`ragcache index serve`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from ragcache_cli.commands.argument_types import WholeNumber, size_in_bytes

SUMMARY = "serve a Faiss index to retrievers in other processes and on other hosts"
DESCRIPTION = "Faiss indexes outside the application. See `ragcache index serve --help`."
SERVE = (
    "Search an index in stages for RAGCacheRetriever.from_server, and send each stage as it is found. "
    "FOLDER is what FaissVectorStore.save_local wrote (LangChain), what StorageContext.persist wrote "
    "(LlamaIndex, over Faiss), or a folder of your own files, as `ragcache ask` reads it. The folder is "
    "read at the start: start the server again after a change."
)
DEFAULT_PORT = 8100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help=SUMMARY, description=SERVE)
    serve.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a saved store, or your own files"
    )
    serve.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="to listen on (%(default)s)"
    )
    serve.add_argument(
        "--port",
        type=WholeNumber(most=65_535),
        default=DEFAULT_PORT,
        metavar="N",
        help="to listen on (%(default)s)",
    )
    serve.add_argument(
        "--keys",
        type=Path,
        metavar="FILE",
        help="whose API key opens the index (see the guide to servers)",
    )
    serve.add_argument(
        "--max-body", type=size_in_bytes, metavar="SIZE", help="the most bytes of a request (1MiB)"
    )
    serve.add_argument(
        "--max-requests",
        type=WholeNumber(),
        metavar="N",
        help="the most requests at a time; more are refused (64)",
    )


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.index_serving import ServingSettings, serve_index

    settings = ServingSettings(
        parsed.folder, parsed.host, parsed.port, parsed.keys, parsed.max_body, parsed.max_requests
    )
    serve_index(settings, console)
    return 0
