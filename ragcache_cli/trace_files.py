"""Retrieval traces: read from a file, or made from a query log and an index.

A trace is JSON Lines, one request a line, in the order of arrival:

    {"documents": ["d1", "d7"], "tokens": [120, 310]}

documents: ids in the order of the prompt. tokens: the length of each document; a line may leave this
out if earlier lines give the lengths of all its documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ragcache_cli.embedding import Embedder
from ragcache_cli.errors import BadTrace, CommandError
from ragcache_cli.index import PassageIndex
from ragcache_cli.terminal import Phases
from ragcache_engine.simulation.traces import Trace

QUESTION_KEYS = ("question", "query", "text")
QUESTION_TOP_K = 3


def trace_from(
    trace: Path | None,
    questions: Path | None,
    corpus: Path | None,
    top_k: int | None,
    console: Console,
) -> Trace:
    """Read the trace that a command was given, or make it from its query log. Raises RAGCacheError.

    top_k: how many documents of each request to keep; None for all, or for QUESTION_TOP_K with a query
      log.
    """
    if trace is not None:
        read = read_trace(trace)
        return read if top_k is None else read.top(top_k)
    if questions is None or corpus is None:
        raise CommandError("--questions needs --corpus: the folder they are asked of")
    from ragcache_cli import embedding
    from ragcache_cli.corpus_index import load_corpus_index
    from ragcache_cli.files import folder_sources

    phases = Phases(console)
    asked = read_questions(questions)
    sources = folder_sources(corpus)
    with phases.waiting("Loading the embedding model"):
        embedder = embedding.load_embedder()
    index = load_corpus_index(corpus, sources, embedder, phases)
    with phases.waiting(f"Retrieving for {len(asked):,} questions"):
        return trace_of(asked, index, embedder, top_k or QUESTION_TOP_K)


def read_trace(path: Path) -> Trace:
    """Read a trace. Raises BadTrace, which names the line."""
    requests: list[tuple[str, ...]] = []
    tokens: dict[str, int] = {}
    for number, line in _lines(path):
        try:
            row = json.loads(line)
            documents = tuple(map(str, row["documents"]))
            counts = [int(count) for count in row.get("tokens", ())]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadTrace(
                f"{path}, line {number} is no request ({error!r}); one looks like "
                '{"documents": ["d1", "d7"], "tokens": [120, 310]}'
            ) from error
        if counts and len(counts) != len(documents):
            raise BadTrace(
                f"{path}, line {number}: {len(documents)} documents and {len(counts)} token counts"
            )
        tokens.update(zip(documents, counts, strict=False))
        if unknown := [name for name in documents if tokens.get(name, 0) < 1]:
            raise BadTrace(
                f"{path}, line {number}: no token count for {unknown[0]!r}; give one, at least 1, "
                "where the document first appears"
            )
        requests.append(documents)
    if not requests:
        raise BadTrace(f"{path} holds no request")
    return Trace(tuple(requests), tokens)


def read_questions(path: Path) -> list[str]:
    """Read a query log: one question per line, plain or as JSON with a key of QUESTION_KEYS.

    Raises BadTrace.
    """
    questions = [_question(line) for _, line in _lines(path)]
    if not questions:
        raise BadTrace(f"{path} holds no question")
    return questions


def read_accepted(path: Path) -> list[tuple[str, ...]]:
    """Read the accepted answers of each question of a log: its `answer` or `answers` in a JSON line.

    A question without any has an empty tuple. Raises BadTrace.
    """
    return [_accepted(line) for _, line in _lines(path)]


def trace_of(
    questions: Sequence[str], index: PassageIndex, embedder: Embedder, top_k: int
) -> Trace:
    """Make a trace of the documents that the index retrieves for each question.

    Tokens are counted with the embedding model's tokenizer: about as many as the LLM's.
    """
    vectors = embedder.embed(list(questions))
    found = [index.nearest(vector, top_k) for vector in vectors]
    passages = {passage.id: passage for request in found for passage in request}
    return Trace(
        tuple(tuple(passage.id for passage in request) for request in found),
        {name: max(1, embedder.count_tokens(passage.shown)) for name, passage in passages.items()},
    )


def _lines(path: Path) -> Iterable[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path} cannot be read: {error}") from error
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _question(line: str) -> str:
    try:
        row: Any = json.loads(line)
    except ValueError:
        return line.strip()
    if isinstance(row, dict):
        for key in QUESTION_KEYS:
            if isinstance(row.get(key), str):
                return str(row[key])
    return line.strip()


def _accepted(line: str) -> tuple[str, ...]:
    try:
        row = json.loads(line)
    except ValueError:
        return ()
    if not isinstance(row, dict) or not any(key in row for key in QUESTION_KEYS):
        return ()
    given = row.get("answers") or row.get("answer") or ()
    return (given,) if isinstance(given, str) else tuple(map(str, given))
