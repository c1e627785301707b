"""`ragcache corpus`: push, list, warm, keep, release, remove."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from ragcache_cli.commands.argument_types import duration

SUMMARY = "register documents at a server, which then finds them in the prompts of any client"
DESCRIPTION = (
    "Register documents at a server that `ragcache serve` started. It finds them in the prompts of any "
    "client that speaks OpenAI's API, and keeps and borrows their tensors by document."
)
PUSH = (
    "Make a corpus of the server hold the documents of FOLDER, and nothing else. FOLDER is what "
    "FaissVectorStore.save_local wrote (LangChain), what StorageContext.persist wrote (LlamaIndex, over "
    'Faiss), your own files as `ragcache ask` reads them, or a file of lines {"id": ..., "text": ...}. '
    "Texts are found as your chain puts them into prompts: push the pieces that it retrieves."
)


WARM = (
    "Compute the tensors of a corpus now, so that the first questions about its documents are answered "
    "sooner. They are computed behind the beginning of the latest prompt with a registered document: ask "
    "one question first. Other requests are answered meanwhile; what is computed already is not computed "
    "again."
)


KEEP = (
    "Compute the tensors of a corpus as `warm` does, and let no other prompt evict them. At most a share "
    "of each tier is kept (--kept-share of `ragcache serve`), and half of that for one tenant; documents "
    "beyond that are named. Documents that change or are removed are kept no longer."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND", dest="action"
    )
    push = commands.add_parser("push", help="register documents", description=PUSH)
    push.add_argument(
        "documents", type=Path, metavar="FOLDER", help="or a file of JSON lines, .jsonl"
    )
    push.add_argument(
        "--name", metavar="NAME", help="of the corpus (default: the folder's own name)"
    )
    push.add_argument(
        "--watch", action="store_true", help="go on, and push again whenever a file has changed"
    )
    push.add_argument(
        "--keep", action="store_true", help="leave other documents of the corpus there"
    )
    _add_server(push)
    _add_server(commands.add_parser("list", help="say what the server's corpora hold"))
    warm = commands.add_parser("warm", help="compute a corpus's tensors now", description=WARM)
    warm.add_argument("name", metavar="NAME", help="of the corpus")
    _add_server(warm)
    keep = commands.add_parser(
        "keep", help="compute a corpus's tensors now, and let nothing evict them", description=KEEP
    )
    keep.add_argument("name", metavar="NAME", help="of the corpus")
    keep.add_argument(
        "--for",
        dest="for_s",
        type=duration,
        metavar="TIME",
        help="how long, such as 90min, 12h or 30d (default: until it is released)",
    )
    keep.add_argument(
        "--tier",
        choices=("disk", "host"),
        default="disk",
        help="what is kept on the disk survives the server (%(default)s)",
    )
    keep.add_argument("--list", action="store_true", help="say what is kept, and keep nothing")
    _add_server(keep)
    release = commands.add_parser("release", help="keep a corpus no longer")
    release.add_argument("name", metavar="NAME", help="of the corpus")
    _add_server(release)
    remove = commands.add_parser("remove", help="remove a corpus, and what is stored of it")
    remove.add_argument("name", metavar="NAME", help="of the corpus")
    _add_server(remove)


def _add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        default="http://localhost:8000",
        metavar="URL",
        help="where the server listens (%(default)s)",
    )
    parser.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        help="the environment variable with a tenant's key, or an operator's for everybody's documents",
    )


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.extras import needed
    from ragcache_cli.server_access import read_api_key

    with needed("a server's client", extra="client"):
        from ragcache_cli import corpus_pushing
        from ragcache_engine.corpora import KeepFor, ServerCorpora

    corpora = ServerCorpora(parsed.server, read_api_key(parsed.api_key_env))
    if parsed.action == "list":
        corpus_pushing.show(corpora, console)
    elif parsed.action == "keep" and parsed.list:
        corpus_pushing.show_kept(parsed.name, corpora, console)
    elif parsed.action == "keep":
        keep = KeepFor(parsed.tier, parsed.for_s)
        corpus_pushing.warm(parsed.name, corpora, console, keep)
    elif parsed.action == "release":
        console.print(f"{corpora.release(parsed.name):,} sets of documents are kept no longer")
    elif parsed.action == "warm":
        corpus_pushing.warm(parsed.name, corpora, console)
    elif parsed.action == "remove":
        console.print(f"Removed {corpora.remove(parsed.name):,} documents")
    else:
        push = corpus_pushing.push_changes if parsed.watch else corpus_pushing.push
        push(parsed.documents, parsed.name, parsed.keep, corpora, console)
    return 0
