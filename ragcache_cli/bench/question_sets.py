"""Where questions and documents come from: the shared question sets, the demo, or a user's own."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ragcache_cli.embedding import Embedder
from ragcache_cli.errors import BadTrace, CommandError
from ragcache_cli.extras import needed
from ragcache_cli.folders import cache_home
from ragcache_cli.index import PassageIndex
from ragcache_cli.questions import QUESTIONS
from ragcache_cli.terminal import Done
from ragcache_cli.trace_files import QUESTION_KEYS, read_questions

SETS = ("squad", "multihoprag", "nq_open", "musique")
FILES = ("corpus.jsonl.gz", "queries.jsonl.gz")
DATA_VARIABLE = "RAGCACHE_DATA"


@dataclass(frozen=True, slots=True)
class Question:
    """answers: those accepted; empty where none is known."""

    text: str
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """documents: by id, as they stand in the prompt. rows: the document of each row of the index.

    index: a Faiss index. vectors: float32, shape (questions, dimension).
    """

    name: str
    documents: Mapping[str, str]
    rows: Sequence[str]
    index: Any
    questions: Sequence[Question]
    vectors: Any

    def found(self, top_k: int) -> list[tuple[str, ...]]:
        """For each question the documents that the index finds, nearest first."""
        _, rows = self.index.search(self.vectors, top_k)
        return [tuple(self.rows[row] for row in found if row >= 0) for found in rows]

    def only(self, numbers: Sequence[int]) -> QuestionSet:
        """The same documents and some of the questions."""
        chosen = list(numbers)
        return replace(
            self,
            questions=[self.questions[number] for number in chosen],
            vectors=self.vectors[chosen],
        )


class OnceNeeded:
    """An embedder that is loaded when something has to be embedded: often all vectors are there.

    name: its own, known beforehand.
    """

    def __init__(self, load: Callable[[], Embedder], name: str) -> None:
        self._load, self.name = load, name
        self._loaded: Embedder | None = None

    def _there(self) -> Embedder:
        self._loaded = self._loaded or self._load()
        return self._loaded

    def embed(self, texts: Sequence[str], done: Done | None = None) -> Any:
        return self._there().embed(texts, done)

    def count_tokens(self, text: str) -> int:
        return self._there().count_tokens(text)


def data_folder() -> Path | None:
    """Where the question sets are: $RAGCACHE_DATA, or shared/data beside the project; None if nowhere."""
    given = os.environ.get(DATA_VARIABLE)
    folder = Path(given) if given else Path(__file__).parents[3] / "shared" / "data"
    return folder if all((folder / "squad" / name).is_file() for name in FILES) else None


def shared_set(name: str, data: Path, embedder: Embedder) -> QuestionSet:
    """One of SETS, with exact search as in its recorded retrieval. Raises BadTrace."""
    corpus = {row["doc_id"]: row for row in _lines(data / name / "corpus.jsonl.gz")}
    documents = {
        key: "\n".join(filter(None, (row["title"], row["text"]))) for key, row in corpus.items()
    }
    asked = list(_lines(data / name / "queries.jsonl.gz"))
    questions = [Question(row["query"], tuple(row["answers"] or ())) for row in asked]
    return QuestionSet(
        name=name,
        documents=documents,
        rows=list(documents),
        index=_flat(embedded(list(documents.values()), embedder)),
        questions=questions,
        vectors=embedded([question.text for question in questions], embedder),
    )


def long_documents(data: Path, embedder: Embedder, most_words: int) -> QuestionSet:
    """squad's paragraphs joined by title, in the order of their ids: whole articles.

    most_words: longer articles, and the questions on them, are left out; they would not fit the context.
    A question gets the article of its nearest paragraph, so this set is for top-1 only.
    """
    corpus = list(_lines(data / "squad" / "corpus.jsonl.gz"))
    paragraphs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(corpus, key=lambda row: str(row["doc_id"])):
        paragraphs[row["title"]].append(row)
    articles = {
        title: "\n".join([title, *(row["text"] for row in rows)])
        for title, rows in paragraphs.items()
    }
    kept = {title for title, text in articles.items() if len(text.split()) <= most_words}
    rows = [row for row in corpus if row["title"] in kept]
    gold = {row["doc_id"] for row in rows}
    asked = [
        row
        for row in _lines(data / "squad" / "queries.jsonl.gz")
        if gold.intersection(row["gold_doc_ids"])
    ]
    if not asked:
        raise BadTrace(f"no article of squad has at most {most_words} words; allow more")
    questions = [Question(row["query"], tuple(row["answers"] or ())) for row in asked]
    texts = [f"{row['title']}\n{row['text']}" for row in rows]
    return QuestionSet(
        name="squad articles",
        documents={title: articles[title] for title in sorted(kept)},
        rows=[row["title"] for row in rows],
        index=_flat(embedded(texts, embedder)),
        questions=questions,
        vectors=embedded([question.text for question in questions], embedder),
    )


def demo_set(index: PassageIndex, embedder: Embedder) -> QuestionSet:
    """The demo's questions on the language reference that every Python carries."""
    questions = [Question(text) for text in QUESTIONS]
    return _of_passages("python topics", index, questions, embedder)


def own_set(name: str, index: PassageIndex, log: Path, embedder: Embedder) -> QuestionSet:
    """A user's questions on the passages of a folder. log: see `read_own_questions`."""
    return _of_passages(name, index, read_own_questions(log), embedder)


def read_own_questions(log: Path) -> list[Question]:
    """A question a line, plain or JSON with a key of QUESTION_KEYS and perhaps `answer` or `answers`.

    Raises BadTrace if there is none.
    """
    texts = read_questions(log)
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [Question(text, _accepted(line)) for text, line in zip(texts, lines, strict=True)]


def _accepted(line: str) -> tuple[str, ...]:
    try:
        row = json.loads(line)
    except ValueError:
        return ()
    if not isinstance(row, dict) or not any(key in row for key in QUESTION_KEYS):
        return ()
    given = row.get("answers") or row.get("answer") or ()
    return (given,) if isinstance(given, str) else tuple(map(str, given))


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


def embedded(texts: Sequence[str], embedder: Embedder) -> Any:
    """float32, unit length; read from the cache home where an earlier run has left it."""
    import numpy as np

    digest = blake2b(digest_size=12)
    for text in (embedder.name, *texts):
        digest.update(text.encode() + b"\0")
    path = cache_home() / "bench" / f"{digest.hexdigest()}.npy"
    if path.is_file():
        return np.load(path)
    vectors = embedder.embed(texts)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part.npy")
    np.save(part, vectors)
    part.rename(path)
    return vectors


def _flat(vectors: Any) -> Any:
    with needed("searching documents"):
        import faiss
    index = faiss.IndexFlatL2(vectors.shape[1])
    index.add(vectors)
    return index


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
    except (OSError, ValueError) as error:
        raise BadTrace(f"{path} cannot be read: {error}") from error


def shortened(given: QuestionSet, fits: Sequence[bool]) -> QuestionSet:
    """Without the questions whose prompt does not fit. Raises CommandError if none is left."""
    kept = [number for number, does in enumerate(fits) if does]
    if not kept:
        raise CommandError(
            f"no prompt of {given.name} fits the context: give a larger --context, or fewer documents "
            f"a question"
        )
    return given.only(kept)
