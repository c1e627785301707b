"""Reads the files of the shared question sets; docs/benchmarks.md says what they hold."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ragcache_cli.errors import BadTrace

DATA_VARIABLE = "RAGCACHE_DATA"
DATA = Path(os.environ.get(DATA_VARIABLE) or Path(__file__).parents[2] / "shared" / "data")
"""The folder of the sets: $RAGCACHE_DATA, or shared/data beside the project."""
SETS = ("squad", "multihoprag", "nq_open", "musique")
CORPUS, QUERIES, RETRIEVED = "corpus.jsonl.gz", "queries.jsonl.gz", "retrieval_topk.jsonl.gz"

Row = Mapping[str, Any]


class Asked(NamedTuple):
    """A question with the documents that were found for it, nearest first, as rows of the files."""

    question: Row
    documents: Sequence[Row]

    def texts(self) -> dict[str, str]:
        """Return the documents' texts by id, each below its title."""
        return {row["doc_id"]: titled(row) for row in self.documents}


def has_sets() -> bool:
    return (DATA / "squad" / CORPUS).is_file()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines. Raises BadTrace."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise BadTrace(
            f"{path} cannot be read: {error}. {DATA_VARIABLE} names the folder of the question sets"
        ) from error


def read_asked(name: str, top_k: int) -> list[Asked]:
    """Read the questions of a set, each with its top_k documents. Raises BadTrace."""
    corpus = {row["doc_id"]: row for row in read_lines(DATA / name / CORPUS)}
    pairs = zip(read_lines(DATA / name / QUERIES), read_lines(DATA / name / RETRIEVED), strict=True)
    return [
        Asked(question, [corpus[key] for key in found["doc_ids"][:top_k]])
        for question, found in pairs
    ]


def titled(document: Row) -> str:
    """Return a document's text below its title, if it has one."""
    return "\n".join(filter(None, (document["title"], document["text"])))


def join_articles(corpus: Sequence[Row], most_words: int) -> dict[str, str]:
    """Join paragraphs by title, in the order of ids; leave out articles of more words."""
    paragraphs: dict[str, list[str]] = defaultdict(list)
    for row in sorted(corpus, key=lambda row: str(row["doc_id"])):
        paragraphs[row["title"]].append(row["text"])
    texts = {title: "\n".join([title, *parts]) for title, parts in sorted(paragraphs.items())}
    return {title: text for title, text in texts.items() if len(text.split()) <= most_words}
