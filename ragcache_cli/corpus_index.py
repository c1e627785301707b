"""Loads the index of a folder of the user's files, after bringing it up to date."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from ragcache_cli.corpus_sources import Source
from ragcache_cli.embedding import Embedder
from ragcache_cli.files import INDEX_FOLDER, describe_left_out
from ragcache_cli.folders import OTHER_HOME, cache_home, make_folder
from ragcache_cli.index import PassageIndex, update_index
from ragcache_cli.terminal import Phases


def load_corpus_index(
    corpus: Path, sources: Sequence[Source], embedder: Embedder, notes: Phases
) -> PassageIndex:
    """Bring the index of a folder up to date and load it. Prints which files were left out, and why.

    sources: the files of the folder. Raises CannotWrite, EmptyCorpus, MissingExtra.
    """
    folder = index_folder(corpus)
    make_folder(folder.parent, OTHER_HOME)
    if folder.parent.name != INDEX_FOLDER:
        note = f"{corpus} is not writable; its index is kept in {folder}"
        notes.console.print(escape(note), soft_wrap=True)
    with notes.waiting("Indexing the corpus") as done:
        index = update_index(folder, sources, embedder, done).index
    skipped = [f"{name}: {reason}" for name, reason in index.skipped.items()]
    for line in [*skipped, *describe_left_out(corpus)]:
        notes.console.print(f"[yellow]left out[/yellow] {escape(line)}", soft_wrap=True)
    return index


def index_folder(corpus: Path) -> Path:
    """Return where a folder's index is kept: in the folder if it is writable, else in the cache home."""
    own = corpus / INDEX_FOLDER
    if os.access(own if own.is_dir() else corpus, os.W_OK | os.X_OK):
        return own / "index"
    name = str(corpus.resolve()).strip("/").replace("/", "-") or "root"
    return cache_home() / "indexes" / name
