"""Questions of the shared sets with their nearest passages, as prompts that share documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import faiss
from embedded_sets import embed_once
from question_files import CORPUS, DATA, read_asked, read_lines

from ragcache_engine import Corpus, Document, RAGCacheEngine

SYSTEM = "<|im_start|>system\nYou answer questions from the documents you are given.<|im_end|>\n"
USER = "<|im_start|>user\nDocuments:\n\n"
SEPARATOR = "\n\n"
ASK = (
    "\n\nQuestion: {question}\nAnswer the question from the documents, briefly.<|im_end|>\n"
    "<|im_start|>assistant\n"
)


class Question(NamedTuple):
    """A question with its accepted answers and its passages, nearest first."""

    text: str
    answers: list[str]
    documents: list[Document]

    @property
    def prompt(self) -> str:
        texts = SEPARATOR.join(document.text for document in self.documents)
        return SYSTEM + USER + texts + ASK.format(question=self.text)


def read_set(name: str, count: int, top_k: int = 5) -> tuple[list[Document], list[Question]]:
    """Read the corpus of a set, and its first `count` questions with their top_k documents."""
    corpus = [Document(row["doc_id"], row["text"]) for row in read_lines(DATA / name / CORPUS)]
    questions = [
        Question(
            one.question["query"],
            one.question["answers"],
            [Document(row["doc_id"], row["text"]) for row in one.documents],
        )
        for one in read_asked(name, top_k)[:count]
    ]
    return corpus, questions


def find_nearest(corpus: Sequence[Document], count: int = 1) -> dict[str, list[Document]]:
    """Return each document's nearest other ones, nearest first, by exact search over embeddings."""
    vectors = embed_once([document.text for document in corpus])
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    _, found = index.search(vectors, count + 1)
    return {
        document.id: [corpus[int(at)] for at in found[place] if at != place][:count]
        for place, document in enumerate(corpus)
    }


def tell_neighbours(
    engine: RAGCacheEngine,
    documents: Sequence[Document],
    neighbours: Mapping[str, Document] | Mapping[str, Sequence[Document]],
) -> None:
    """Let the engine store documents behind these neighbours, or alone without any.

    neighbours: the nearest other document of each, or several, nearest first.
    """
    corpus = Corpus(
        id(neighbours) if neighbours else None,
        lambda asked: [neighbours.get(one.id) for one in asked],
    )
    with engine.retrieval("?") as retrieval:
        retrieval.look_up_neighbours(documents, corpus)
