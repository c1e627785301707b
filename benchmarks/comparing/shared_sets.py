"""Loads the shared question sets: public questions and documents, in the folder RAGCACHE_DATA."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from question_files import DATA_VARIABLE, read_lines

from comparing.plan import ARTICLES, SQUAD
from comparing.question_sets import Question, QuestionSet
from ragcache_cli.embedding import Embedder
from ragcache_cli.errors import BadTrace
from ragcache_cli.extras import needed
from ragcache_cli.folders import cache_home

SETS = (SQUAD, "multihoprag", "nq_open", "musique")
FILES = ("corpus.jsonl.gz", "queries.jsonl.gz")
TOKENS_A_WORD = 1.6
"""Tokens per word, more than English needs, so that an article of the allowed words fits its prompt."""


def load_shared_set(name: str, embedder: Embedder, context_tokens: int) -> QuestionSet:
    """Load one of SETS or ARTICLES. context_tokens: the most tokens of a prompt. Raises BadTrace."""
    data = data_folder()
    if data is None:
        raise BadTrace(f"there is no question set {name}: set {DATA_VARIABLE} to their folder")
    if name == ARTICLES:
        return long_documents(data, embedder, int(context_tokens / TOKENS_A_WORD))
    return shared_set(name, data, embedder)


def data_folder() -> Path | None:
    """Find the question sets: $RAGCACHE_DATA, or shared/data beside the project; None if nowhere."""
    given = os.environ.get(DATA_VARIABLE)
    folder = Path(given) if given else Path(__file__).parents[3] / "shared" / "data"
    return folder if all((folder / "squad" / name).is_file() for name in FILES) else None


def shared_set(name: str, data: Path, embedder: Embedder) -> QuestionSet:
    """Load one of SETS, with exact search as in its recorded retrieval. Raises BadTrace."""
    corpus = {row["doc_id"]: row for row in read_lines(data / name / "corpus.jsonl.gz")}
    documents = {
        key: "\n".join(filter(None, (row["title"], row["text"]))) for key, row in corpus.items()
    }
    asked = list(read_lines(data / name / "queries.jsonl.gz"))
    questions = [Question(row["query"], tuple(row["answers"] or ())) for row in asked]
    return QuestionSet(
        name=name,
        documents=documents,
        rows=list(documents),
        index=_build_flat_index(embed_once(list(documents.values()), embedder)),
        questions=questions,
        vectors=embed_once([question.text for question in questions], embedder),
    )


def long_documents(data: Path, embedder: Embedder, most_words: int) -> QuestionSet:
    """Load squad with whole articles for documents: its paragraphs joined by title, in the order of ids.

    most_words: longer articles, and the questions on them, are left out; they would not fit the context.
    A question gets the article of its nearest paragraph, so this set is for top-1 only. Raises BadTrace.
    """
    corpus = list(read_lines(data / "squad" / "corpus.jsonl.gz"))
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
        for row in read_lines(data / "squad" / "queries.jsonl.gz")
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
        index=_build_flat_index(embed_once(texts, embedder)),
        questions=questions,
        vectors=embed_once([question.text for question in questions], embedder),
    )


def embed_once(texts: Sequence[str], embedder: Embedder) -> Any:
    """Embed texts, or read their vectors from the cache home where an earlier run left them.

    Returns float32, shape (texts, dimension), each row of length 1.
    """
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


def _build_flat_index(vectors: Any) -> Any:
    with needed("searching documents"):
        import faiss
    index = faiss.IndexFlatL2(vectors.shape[1])
    index.add(vectors)
    return index
