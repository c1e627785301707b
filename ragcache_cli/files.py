"""Read a folder of the user's files as sources: txt, md, rst, html, jsonl, pdf and docx."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

from ragcache_cli.corpus_sources import Section, Source, Unreadable
from ragcache_cli.errors import EmptyCorpus, MissingExtra
from ragcache_cli.extras import needed

INDEX_FOLDER = ".ragcache"
NAMED = 3
"""So many files of each kind that is not read are named."""
BLOCK_TAGS = (
    "address article aside blockquote dd div dl dt figure footer form h1 h2 h3 h4 h5 h6 header hr "
    "li main ol p pre section table td th tr ul"
)


@dataclass(frozen=True, slots=True)
class _Listing:
    """What lies below a folder. refused: the folders that cannot be listed, the folder itself perhaps."""

    read: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    refused: dict[Path, OSError] = field(default_factory=dict)


def folder_sources(folder: Path) -> list[Source]:
    """List every file of a readable kind below the folder, by name. Skips hidden files and folders.

    Raises EmptyCorpus if there is no such folder, it cannot be listed, or has no such file.
    """
    found = _list_files(folder)
    error = found.refused.get(folder)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        raise EmptyCorpus(f"the corpus {folder} is no folder: give one with --corpus")
    if error is not None:
        raise EmptyCorpus(f"the corpus {folder} cannot be read: {error.strerror}")
    if not found.read:
        kinds = ", ".join(sorted(READERS))
        raise EmptyCorpus(
            "; ".join(
                [
                    f"the folder {folder} holds no file of a kind that can be read: {kinds}",
                    *_describe_left_out(folder, found),
                ]
            )
        )
    return [_file_source(folder, path) for path in found.read]


def describe_left_out(folder: Path) -> list[str]:
    """Say which files below the folder are of no readable kind, and which folders cannot be listed."""
    return _describe_left_out(folder, _list_files(folder))


def _describe_left_out(folder: Path, found: _Listing) -> list[str]:
    said = [
        f"the folder {path.relative_to(folder)} cannot be read: {error.strerror}"
        for path, error in found.refused.items()
    ]
    kinds: dict[str, list[str]] = {}
    for path in found.others:
        kinds.setdefault(path.suffix.lower(), []).append(path.relative_to(folder).as_posix())
    if kinds:
        counted = ", ".join(
            f"{len(names)} {kind or 'without a kind'} ({_name_some(names)})"
            for kind, names in sorted(kinds.items(), key=lambda each: each[0] or "~")
        )
        said.append(
            f"files of other kinds: {counted}. To have their text read, convert them into md or txt "
            f"(pandoc), or use the loaders of LangChain or LlamaIndex in a program of yours"
        )
    return said


def _name_some(names: list[str]) -> str:
    more = ["..."] if len(names) > NAMED else []
    return ", ".join([*names[:NAMED], *more])


def _list_files(folder: Path) -> _Listing:
    found = _Listing()

    def refuse(error: OSError) -> None:
        found.refused[Path(error.filename)] = error

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            if not name.startswith("."):
                (found.read if path.suffix.lower() in READERS else found.others).append(path)
    return found


def _file_source(folder: Path, path: Path) -> Source:
    try:
        state = path.stat()
        size_bytes, mtime_ns = state.st_size, state.st_mtime_ns
    except OSError:
        size_bytes, mtime_ns = 0, -1  # reading it will say why
    return Source(
        name=path.relative_to(folder).as_posix(),
        size_bytes=size_bytes,
        mtime_ns=mtime_ns,
        digest=lambda: _digest(path),
        read=lambda: read_file(path),
    )


def _digest(path: Path) -> str:
    try:
        _refuse_pipe(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "unreadable"


def _refuse_pipe(path: Path) -> None:
    """Raise OSError for what reading might wait for without an end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("no regular file")


def read_file(path: Path) -> list[Section]:
    """Return the sections of a file. Raises Unreadable if it cannot be read or has no text."""
    try:
        _refuse_pipe(path)
        sections = READERS[path.suffix.lower()](path)
    except UnicodeDecodeError as error:
        raise Unreadable("not UTF-8 text") from error
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    if not any(section.text.strip() for section in sections):
        raise Unreadable("no text in it")
    return sections


ReadFile = Callable[[Path], list[Section]]
ReadText = Callable[[str, str], list[Section]]
"""Returns the sections of a text. Its first argument is the title of one that names none."""


def _of_text(read: ReadText) -> ReadFile:
    """Return a reader of text files."""
    return lambda path: read(path.stem, path.read_text(encoding="utf-8-sig"))


def _plain(stem: str, text: str) -> list[Section]:
    return [Section(stem, text)]


def _markdown(stem: str, text: str) -> list[Section]:
    """Return the text as one section, titled by its first heading."""
    for line in text.splitlines():
        if line.startswith("# ") and (title := line[2:].strip()):
            return [Section(title, text)]
    return _plain(stem, text)


def _restructured(stem: str, text: str) -> list[Section]:
    """Return the text as one section, titled by its first underlined line."""
    lines = text.splitlines()
    for title, line in pairwise(lines):
        is_rule = len(line) >= 3 and len(set(line)) == 1 and not line[0].isalnum()
        if is_rule and title.strip() and len(line) >= len(title.strip()):
            return [Section(title.strip(), text)]
    return _plain(stem, text)


def _html(stem: str, text: str) -> list[Section]:
    page = _Page()
    page.feed(text)
    page.close()
    return [Section(page.title or stem, page.text)]


def _jsonl(stem: str, text: str) -> list[Section]:
    """Return a section for each line: {"text": ...}, perhaps with "title" and "id"."""
    sections = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise Unreadable(f"line {number} is no JSON") from error
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise Unreadable(f'line {number} is no object with a "text"')
        title = str(record.get("title") or stem)
        sections.append(Section(title, record["text"], id=str(record.get("id") or number)))
    return sections


class _Page(HTMLParser):
    """Collects the words of an HTML page, with a blank line between its blocks."""

    UNSEEN = frozenset({"script", "style", "template", "noscript", "svg", "head", "nav"})
    BLOCKS = frozenset(BLOCK_TAGS.split())

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._blocks: list[str] = [""]
        self._unseen = 0
        self._preformatted = 0
        self._in_title = False

    @property
    def text(self) -> str:
        return "\n\n".join(block.strip() for block in self._blocks if block.strip())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = tag == "title"
        self._unseen += tag in self.UNSEEN
        self._preformatted += tag == "pre"
        if tag == "br":
            self._blocks[-1] += "\n"
        if tag in self.BLOCKS:
            self._blocks.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False
        self._unseen = max(0, self._unseen - (tag in self.UNSEEN))
        self._preformatted = max(0, self._preformatted - (tag == "pre"))
        if tag == "body" or tag == "head":
            self._unseen = 0  # an unclosed <nav> must not swallow the page
        if tag in self.BLOCKS:
            self._blocks.append("")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title = " ".join(data.split())
        elif self._unseen:
            return
        elif self._preformatted:
            self._blocks[-1] += data
        else:
            words = " ".join(data.split())
            before = " " if data[:1].isspace() and self._blocks[-1] else ""
            after = " " if words and data[-1:].isspace() else ""
            self._blocks[-1] += f"{before}{words}{after}"


def _pdf(path: Path) -> list[Section]:
    """Return a section for each page that has text."""
    with _readable("PDF"):
        from pypdf import PdfReader

        with path.open("rb") as opened:
            file = PdfReader(opened)
            if file.is_encrypted and not file.decrypt(""):
                raise Unreadable("a password protects it")
            title = (file.metadata.title if file.metadata else None) or path.stem
            texts = [page.extract_text() for page in file.pages]
        # A font that names its characters badly may give half a surrogate pair.
        whole = [text.encode(errors="ignore").decode().strip() for text in texts]
        return [
            Section(title, text, id=str(number)) for number, text in enumerate(whole, 1) if text
        ]


def _docx(path: Path) -> list[Section]:
    """Return the paragraphs and tables as one section, titled by the document's own title."""
    with _readable("Word"):
        import docx
        from docx.table import Table

        file = docx.Document(str(path))
        blocks = []
        for block in file.iter_inner_content():
            if isinstance(block, Table):
                rows = ("\t".join(cell.text for cell in row.cells) for row in block.rows)
                blocks.append("\n".join(rows))
            else:
                blocks.append(block.text)
        text = "\n\n".join(block for block in blocks if block.strip())
        return [Section(file.core_properties.title or path.stem, text)]


@contextmanager
def _readable(kind: str) -> Iterator[None]:
    """Raise Unreadable for a damaged file, and where the package is missing that reads its kind.

    The packages raise errors of many kinds for what others have damaged.
    """
    try:
        with needed(f"reading {kind} files"):
            yield
    except (Unreadable, OSError):
        raise
    except MissingExtra as error:
        raise Unreadable(str(error)) from error
    except Exception as error:
        raise Unreadable(f"no {kind} file that can be read ({type(error).__name__})") from error


READERS: dict[str, ReadFile] = {
    ".txt": _of_text(_plain),
    ".md": _of_text(_markdown),
    ".rst": _of_text(_restructured),
    ".html": _of_text(_html),
    ".htm": _of_text(_html),
    ".jsonl": _of_text(_jsonl),
    ".pdf": _pdf,
    ".docx": _docx,
}
