"""Chooses questions of a query log and finds their documents, with each document's nearest other one."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ragcache_cli.embedding import Embedder
from ragcache_cli.errors import BadTrace
from ragcache_cli.index import PassageIndex
from ragcache_cli.passages import Passage
from ragcache_cli.trace_files import read_accepted, read_questions
from ragcache_engine import Corpus, Document

LOOKED_AT = 3
"""How many nearest passages to look at: the nearest one is nearly always the passage itself."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of the log. gold: its accepted answers; empty if none is known."""

    question: str
    gold: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """A question with the documents that its prompt has, nearest first."""

    asked: Asked
    documents: tuple[Document, ...]


def read_asked(log: Path, gold: Path | None) -> list[Asked]:
    """Read the questions of a log. Raises BadTrace.

    gold: a file with the accepted answer of each question, in the log's order: a line of text, or a JSON
      list of texts. None: those that JSON lines of the log carry.
    """
    questions = read_questions(log)
    accepted = read_accepted(log) if gold is None else _read_gold(gold)
    if len(accepted) != len(questions):
        raise BadTrace(f"{gold} has {len(accepted)} lines, and {log} {len(questions)} questions")
    return [Asked(text, answers) for text, answers in zip(questions, accepted, strict=True)]


def draw(asked: Sequence[Asked], count: int) -> list[Asked]:
    """Draw `count` questions, each at most once and always the same ones, in the log's order."""
    different = list({one.question: one for one in asked}.values())
    if len(different) <= count:
        return different
    chosen = random.Random(0).sample(range(len(different)), count)
    return [different[at] for at in sorted(chosen)]


def find_cases(
    asked: Sequence[Asked], index: PassageIndex, embedder: Embedder, top_k: int
) -> list[Case]:
    """Search for each question."""
    vectors = embedder.embed([one.question for one in asked])
    return [
        Case(one, tuple(map(_as_document, index.nearest(vector, top_k))))
        for one, vector in zip(asked, vectors, strict=True)
    ]


def corpus_of(index: PassageIndex) -> Corpus:
    """Return the index as the engine looks up neighbours in it."""
    vectors = index.vectors()
    rows = {passage.id: row for row, passage in enumerate(index.passages)}

    def find(documents: Sequence[Document]) -> list[Document | None]:
        found: list[Document | None] = []
        for document in documents:
            near = map(_as_document, index.nearest(vectors[rows[document.id]], LOOKED_AT))
            others = (one for one in near if one.id != document.id and one.text != document.text)
            found.append(next(others, None))
        return found

    return Corpus("calibrate", find)


def _as_document(passage: Passage) -> Document:
    return Document(passage.id, passage.shown)


def _read_gold(path: Path) -> list[tuple[str, ...]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path} cannot be read: {error}") from error
    # Not splitlines, which cuts JSON at characters that its strings may hold.
    return [_accepted_in(line) for line in text.removesuffix("\n").split("\n") if text]


def _accepted_in(line: str) -> tuple[str, ...]:
    try:
        row = json.loads(line)
    except ValueError:
        row = line.strip()
    given = row if isinstance(row, list) else [row]
    return tuple(str(one) for one in given if str(one).strip())
