"""`ragcache corpus`: reads documents as a chain retrieves them, and registers them at a server."""

from __future__ import annotations

import json
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ragcache_cli.errors import CommandError
from ragcache_cli.folders import OTHER_HOME, cache_home, make_folder, naming, replace_folder
from ragcache_cli.index_serving import load_served
from ragcache_cli.terminal import Phases
from ragcache_engine import RAGCacheError
from ragcache_engine.corpora import KeepFor, Registered, ServerCorpora
from ragcache_engine.corpora.client import write_lines
from ragcache_engine.visible import quoted, visible

WATCH_S = 2.0
"""Seconds between two looks at a folder."""

_NOT_IN_NAMES = re.compile(r"[^\w.-]+", re.ASCII)


def push(
    path: Path, name: str | None, keep: bool, corpora: ServerCorpora, console: Console
) -> None:
    """Register the documents of a folder or a file of lines, and say what became of them.

    Raises CommandError for what cannot be read, and as ServerCorpora.push does.
    """
    notes = Phases(console)
    documents = read_documents(path, notes)
    corpus = name or name_of(path)
    with notes.waiting(f"Pushing {len(documents):,} documents") as done:
        pushed = corpora.push(corpus, documents, keep=keep, done=done)
    console.print(
        f"The corpus {escape(corpus)}: {pushed.added:,} added, {pushed.changed:,} changed, "
        f"{pushed.removed:,} removed, {pushed.same:,} there already",
        soft_wrap=True,
    )


def show_kept(corpus: str, corpora: ServerCorpora, console: Console) -> None:
    """Say which documents of a corpus are kept, and until when. Raises as ServerCorpora.kept does."""
    kept = corpora.kept(corpus)
    if not kept:
        console.print(f"Nothing of the corpus {escape(corpus)} is kept", soft_wrap=True)
        return
    table = Table("documents", "tier", "until", "tokens", "of them there now")
    for one in kept:
        ends = one.until and datetime.fromtimestamp(one.until)
        table.add_row(
            escape(", ".join(map(quoted, one.ids))),
            one.tier,
            f"{ends:%Y-%m-%d %H:%M}" if ends else "released",
            f"{one.tokens:,}",
            f"{one.held_tokens:,}",
        )
    console.print(table)


def warm(
    corpus: str, corpora: ServerCorpora, console: Console, keep: KeepFor | None = None
) -> None:
    """Let the server compute a corpus, and say what became of its documents.

    keep: how to keep them from then on; None: not at all. Raises as ServerCorpora.warm does.
    """
    with Phases(console).waiting(f"Warming the corpus {corpus}") as done:
        warmed = corpora.warm(corpus, keep=keep, done=done)
    console.print(
        f"The corpus {escape(corpus)}: {warmed.prepared:,} documents computed, {warmed.cached:,} were "
        f"cached, {warmed.left_out:,} left out",
        soft_wrap=True,
    )
    for documents, why in warmed.why:
        names = ", ".join(map(quoted, documents))
        console.print(f"  {escape(names)}: {escape(visible(why))}", soft_wrap=True)


def push_changes(
    path: Path, name: str | None, keep: bool, corpora: ServerCorpora, console: Console
) -> None:
    """Push whenever a file of a folder has changed, until the process is interrupted.

    What goes wrong on the way is said, and tried again.
    """
    pushed: dict[str, tuple[int, int]] | None = None
    while True:
        if (files := look_at_files(path)) != pushed:
            try:
                push(path, name, keep, corpora, console)
                pushed = files
            except (CommandError, RAGCacheError) as error:
                console.print(f"{visible(str(error))}; trying again", markup=False, soft_wrap=True)
        time.sleep(WATCH_S)


def look_at_files(path: Path) -> dict[str, tuple[int, int]]:
    """Return what tells whether a file, or one in a folder, has changed: times and sizes."""
    paths = [path] if path.is_file() else path.rglob("*")
    found = {}
    for one in paths:
        if any(part.startswith(".") for part in one.relative_to(path).parts):
            continue  # what is hidden is not pushed; the index lies there
        with suppress(OSError):  # removed meanwhile
            if stat.S_ISREG((told := one.stat()).st_mode):
                found[str(one)] = told.st_mtime_ns, told.st_size
    return found


def write_corpora(paths: Sequence[Path], console: Console) -> Path:
    """Write each corpus into a file of lines, for a server to read at its start; return their folder.

    Raises CommandError for what cannot be read, or for two of one name; CannotWrite.
    """
    notes = Phases(console)
    asked = "\0".join(str(path.resolve()) for path in paths)
    folder = cache_home() / "corpora" / sha256(asked.encode()).hexdigest()[:16]
    make_folder(folder.parent, OTHER_HOME)
    bodies: dict[str, bytes] = {}
    for path in paths:
        if (name := name_of(path)) in bodies:
            raise CommandError(f"two corpora are named {name}: rename a folder")
        bodies[name] = write_lines(read_documents(path, notes))
    with naming(folder, OTHER_HOME), replace_folder(folder) as written:
        for name, body in bodies.items():
            (written / f"{name}.jsonl").write_bytes(body)
    return folder


def name_of(path: Path) -> str:
    """Return the name that a corpus has if none is given. Raises CommandError."""
    name = _NOT_IN_NAMES.sub("-", path.resolve().name.removesuffix(".jsonl"))[:64]
    if not name.strip("-."):
        raise CommandError(
            f"a corpus has an ASCII name, and {path.name} gives none: rename it, or push it with --name"
        )
    return name


def show(corpora: ServerCorpora, console: Console) -> None:
    """Print what each corpus of the server holds."""
    table = Table("corpus", "documents", "MiB of memory", "too short to be found", "with a vector")
    told = corpora.summaries()
    for name, one in told.items():
        table.add_row(
            escape(name),
            f"{one['documents']:,}",
            f"{one['size_bytes'] / 2**20:,.1f}",
            f"{one['too_short']:,}",
            f"{one['with_vector']:,}",
        )
    console.print(
        table if told else "The server has no corpus of yours: ragcache corpus push FOLDER"
    )


def read_documents(path: Path, notes: Phases) -> list[Registered]:
    """Read documents: of a file of lines, of a saved store, or of one's own files.

    Raises CommandError for what cannot be read, and as `load_served` does.
    """
    if path.is_file():
        return [*_read_lines(path)]
    served = load_served(path, notes)
    return [
        Registered(one.id, one.text, one.metadata, served.vector(row))
        for row, one in served.documents.items()
    ]


def _read_lines(path: Path) -> Iterator[Registered]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _read_line(line, f"{path}, line {number}")
    except (OSError, UnicodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from error


def _read_line(line: str, where: str) -> Registered:
    try:
        said: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{where} is no JSON: {error}") from error
    match said:
        case {"id": str(name), "text": str(text)} if name:
            metadata, vector = said.get("metadata", {}), said.get("vector")
            return Registered(
                name,
                text,
                metadata if isinstance(metadata, dict) else {},
                vector if isinstance(vector, list) else None,
            )
    raise CommandError(f'{where} is no object with "id" and "text", both texts')
