"""Loads questions and documents from the demo, or from a user's own files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ragcache_cli.embedding import Embedder
from ragcache_cli.errors import CommandError
from ragcache_cli.index import PassageIndex
from ragcache_cli.questions import QUESTIONS
from ragcache_cli.terminal import Done
from ragcache_cli.trace_files import read_accepted, read_questions

OWN, DEMO = "own", "demo"
"""Names of the question sets that every user has."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question. answers: the accepted answers; empty if none is known."""

    text: str
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions, the documents that they are about, and an index of the documents.

    documents: texts by id, as they stand in the prompt. index: a Faiss index. rows: for each row of the
    index, the id of its document. vectors: of the questions; float32, shape (questions, dimension).
    """

    name: str
    documents: Mapping[str, str]
    rows: Sequence[str]
    index: Any
    questions: Sequence[Question]
    vectors: Any

    def search_all(self, top_k: int) -> list[tuple[str, ...]]:
        """Return for each question the ids of the documents that the index finds, nearest first."""
        _, rows = self.index.search(self.vectors, top_k)
        return [tuple(self.rows[row] for row in found if row >= 0) for found in rows]

    def only(self, numbers: Sequence[int]) -> QuestionSet:
        """Return a set with the same documents and the questions of these numbers."""
        chosen = list(numbers)
        return replace(
            self,
            questions=[self.questions[number] for number in chosen],
            vectors=self.vectors[chosen],
        )


class LazyEmbedder:
    """An embedder that loads on its first use, because often all vectors are kept already.

    name: the embedder's name, known before it is loaded.
    """

    def __init__(self, load: Callable[[], Embedder], name: str) -> None:
        self._load, self.name = load, name
        self._loaded: Embedder | None = None

    def _get(self) -> Embedder:
        self._loaded = self._loaded or self._load()
        return self._loaded

    def embed(self, texts: Sequence[str], done: Done | None = None) -> Any:
        return self._get().embed(texts, done)

    def count_tokens(self, text: str) -> int:
        return self._get().count_tokens(text)


def demo_set(index: PassageIndex, embedder: Embedder) -> QuestionSet:
    """Return the demo's questions about the language reference that every Python carries."""
    questions = [Question(text) for text in QUESTIONS]
    return _of_passages("python topics", index, questions, embedder)


def own_set(name: str, index: PassageIndex, log: Path, embedder: Embedder) -> QuestionSet:
    """Return a user's questions about the passages of a folder. log: see `read_own_questions`."""
    return _of_passages(name, index, read_own_questions(log), embedder)


def read_own_questions(log: Path) -> list[Question]:
    """Read a query log: one question per line, plain or JSON with a key of QUESTION_KEYS.

    JSON may also have `answer` or `answers`, the accepted answers.

    Raises BadTrace if there is no question.
    """
    pairs = zip(read_questions(log), read_accepted(log), strict=True)
    return [Question(text, accepted) for text, accepted in pairs]


def _of_passages(
    name: str, index: PassageIndex, questions: Sequence[Question], embedder: Embedder
) -> QuestionSet:
    return QuestionSet(
        name=name,
        documents={passage.id: passage.shown for passage in index.passages},
        rows=[passage.id for passage in index.passages],
        index=index.faiss_index,
        questions=questions,
        vectors=embedder.embed([question.text for question in questions]),
    )


def keep_fitting(given: QuestionSet, fits: Sequence[bool]) -> QuestionSet:
    """Drop the questions whose prompt does not fit. Raises CommandError if none is left."""
    kept = [number for number, does in enumerate(fits) if does]
    if not kept:
        raise CommandError(
            f"no prompt of {given.name} fits the context: give a larger --context, or fewer documents "
            f"a question"
        )
    return given.only(kept)
