"""The question sets: read, searched and tokenised once, and kept as files that every system reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from question_files import CORPUS, DATA, QUERIES, has_sets, join_articles, read_lines, titled

from comparing.plan import ARTICLES, SQUAD, TraceSpec
from comparing.workload import Skew, draw_questions, measure_skew
from ragcache_cli import embedding
from ragcache_cli.errors import CommandError
from ragcache_cli.folders import cache_home
from ragcache_cli.prompts import PromptForm

DEMO = "demo"
"""The set that everybody has: questions about the language reference that every Python carries."""
TOKENS_A_WORD = 1.6
"""Tokens per word, more than English needs, so that an article of the allowed words fits its prompt."""
LONGEST_ANSWER = 32
ANSWER_UNKNOWN = 16
"""How many tokens are generated for a question without a known answer."""
BLOCK_TOKENS = 32
SET, INDEX, VECTORS = "set.json", "index.faiss", "questions.npy"

Tokenize = Callable[[Sequence[str]], list[list[int]]]
"""Turns texts into token ids, as the model reads them."""


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions, the documents that they are about, and an index of the documents.

    questions: texts. answers: the accepted answers of each question; empty if none is known.
    documents: texts by id, as they stand in the prompt. index: a Faiss index. rows: for each row of the
    index, the id of its document. vectors: of the questions; float32, shape (questions, dimension).
    """

    questions: Sequence[str]
    answers: Sequence[Sequence[str]]
    documents: Mapping[str, str]
    rows: Sequence[str]
    index: Any
    vectors: Any

    def search(self, top_k: int) -> list[tuple[str, ...]]:
        """Return for each question the ids of the documents that the index finds, nearest first."""
        _, rows = self.index.search(self.vectors, top_k)
        return [tuple(self.rows[row] for row in found if row >= 0) for found in rows]

    def only(self, numbers: Sequence[int]) -> QuestionSet:
        """Return a set with the same documents and the questions of these numbers."""
        return replace(
            self,
            questions=[self.questions[number] for number in numbers],
            answers=[self.answers[number] for number in numbers],
            vectors=self.vectors[list(numbers)],
        )

    def write(self, folder: Path) -> None:
        """Write the set as files, so that no system has to embed or index. Makes the folder."""
        import faiss
        import numpy as np

        folder.mkdir(parents=True, exist_ok=True)
        names = ("questions", "answers", "documents", "rows")
        content = {name: getattr(self, name) for name in names}
        (folder / SET).write_text(json.dumps(content), encoding="utf-8")
        np.save(folder / VECTORS, self.vectors)
        faiss.write_index(self.index, str(folder / INDEX))

    @classmethod
    def read(cls, folder: Path) -> Self:
        import faiss
        import numpy as np

        content = json.loads((folder / SET).read_text(encoding="utf-8"))
        index = faiss.read_index(str(folder / INDEX))
        return cls(**content, index=index, vectors=np.load(folder / VECTORS))


def main_set() -> str:
    """Return the name of the set with most questions: squad, or without shared sets the demo's."""
    return SQUAD if has_sets() else DEMO


def load_set(name: str, context_tokens: int) -> QuestionSet:
    """Load the demo's questions, or a shared set, for prompts of at most this many tokens.

    ARTICLES is squad with whole articles for documents. Questions on articles that would not fit are
    left out, and a question gets the article of its nearest paragraph, so that set is for top-1 only.
    Search is exact, as in the sets' recorded retrieval. Raises BadTrace.
    """
    from embedded_sets import embed_once

    if name == DEMO:
        return _load_demo()
    folder = DATA / (SQUAD if name == ARTICLES else name)
    rows, asked = read_lines(folder / CORPUS), read_lines(folder / QUERIES)
    documents = {row["doc_id"]: titled(row) for row in rows}
    key = "doc_id"
    if name == ARTICLES:
        documents, key = join_articles(rows, int(context_tokens / TOKENS_A_WORD)), "title"
        rows = [row for row in rows if row["title"] in documents]
        gold = {row["doc_id"] for row in rows}
        asked = [row for row in asked if gold.intersection(row["gold_doc_ids"])]
    questions = [row["query"] for row in asked]
    return QuestionSet(
        questions=questions,
        answers=[row["answers"] or () for row in asked],
        documents=documents,
        rows=[row[key] for row in rows],
        index=_flat_index(embed_once([titled(row) for row in rows])),
        vectors=embed_once(questions),
    )


def _load_demo() -> QuestionSet:
    from ragcache_cli.index import update_index
    from ragcache_cli.python_topics import python_topics
    from ragcache_cli.questions import QUESTIONS

    embedder = embedding.load_embedder()
    index = update_index(cache_home() / "python-topics", python_topics(), embedder).index
    return QuestionSet(
        questions=QUESTIONS,
        answers=[()] * len(QUESTIONS),
        documents={passage.id: passage.shown for passage in index.passages},
        rows=[passage.id for passage in index.passages],
        index=index.faiss_index,
        vectors=embedder.embed(QUESTIONS),
    )


def _flat_index(vectors: Any) -> Any:
    import faiss

    index = faiss.IndexFlatL2(vectors.shape[1])
    index.add(vectors)
    return index


def build_store(given: QuestionSet) -> Any:
    """Build LangChain's own FAISS store over the set.

    The store looks up the vectors of questions and documents instead of embedding them, because that
    would take every system the same time.
    """
    from langchain_community.docstore.in_memory import InMemoryDocstore
    from langchain_community.vectorstores import FAISS
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings

    known = dict(zip(given.questions, given.vectors, strict=True))
    rows = {given.documents[name]: row for row, name in reversed([*enumerate(given.rows)])}
    if hasattr(given.index, "make_direct_map"):  # an IVF index reads its vectors only with one
        given.index.make_direct_map()

    class Known(Embeddings):
        def embed_query(self, text: str) -> list[float]:
            vector = known[text] if text in known else given.index.reconstruct(rows[text])
            return list(map(float, vector))

        async def aembed_query(self, text: str) -> list[float]:
            return self.embed_query(text)

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [self.embed_query(text) for text in texts]

    names = {row: f"row-{row}" for row in range(len(given.rows))}
    documents = {
        names[row]: Document(given.documents[name], id=name) for row, name in enumerate(given.rows)
    }
    return FAISS(Known(), given.index, InMemoryDocstore(documents), names)


@dataclass(frozen=True, slots=True)
class ReadySet:
    """A question set at one top-k.

    folder: its files. found: for each question the ids of its documents, nearest first. prompts: for each
    question the token ids of its prompt. lengths: how many tokens each answer gets. left_out: how many
    questions were dropped because their prompts do not fit the context.
    """

    given: QuestionSet
    folder: Path
    found: list[tuple[str, ...]]
    prompts: list[list[int]]
    lengths: list[int]
    left_out: int


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """The facts of a trace for the reader of a report.

    prompt_tokens, answer_tokens: means over its requests. live_tokens: the tokens in all different
    blocks of its prompts. left_out: as in ReadySet.
    """

    trace: str
    skew: Skew
    prompt_tokens: float
    answer_tokens: float
    live_tokens: int
    left_out: int


@dataclass(slots=True)
class Corpora:
    """Makes question sets ready, each once. folder: where their files go."""

    tokenize: Tokenize
    form: PromptForm
    context_tokens: int
    folder: Path
    _ready: dict[tuple[str, int], ReadySet] = field(default_factory=dict)
    _sets: dict[str, QuestionSet] = field(default_factory=dict)

    def ready(self, name: str, top_k: int) -> ReadySet:
        """Return a set at one top-k. Raises what loading raises; CommandError if no prompt fits."""
        if (name, top_k) not in self._ready:
            if name not in self._sets:
                self._sets[name] = load_set(name, self.context_tokens)
            self._ready[name, top_k] = self._make(self._sets[name], name, top_k)
        return self._ready[name, top_k]

    def summarize(self, trace: TraceSpec, count: int, seed: int) -> TraceSummary:
        """Describe the `count` requests that are drawn for this trace."""
        ready = self.ready(trace.set, trace.top_k)
        numbers = draw_questions(len(ready.found), count, trace.zipf, seed)
        return TraceSummary(
            trace=trace.name,
            skew=measure_skew(
                [ready.found[number] for number in numbers], len(ready.given.documents)
            ),
            prompt_tokens=sum(len(ready.prompts[number]) for number in numbers) / count,
            answer_tokens=sum(ready.lengths[number] for number in numbers) / count,
            live_tokens=live_tokens([ready.prompts[number] for number in set(numbers)]),
            left_out=ready.left_out,
        )

    def _make(self, given: QuestionSet, name: str, top_k: int) -> ReadySet:
        found = given.search(top_k)
        prompts = self.tokenize(
            [
                self.form.filled([given.documents[one] for one in documents], question)
                for documents, question in zip(found, given.questions, strict=True)
            ]
        )
        room = self.context_tokens - LONGEST_ANSWER
        kept = [number for number, prompt in enumerate(prompts) if len(prompt) <= room]
        if not kept:
            raise CommandError(f"no prompt of {name} has at most {room} tokens")
        fitting = given.only(kept)
        golds = [accepted[0] if accepted else "" for accepted in fitting.answers]
        folder = self.folder / f"{name}-{top_k}"
        fitting.write(folder)
        return ReadySet(
            given=fitting,
            folder=folder,
            found=[found[number] for number in kept],
            prompts=[prompts[number] for number in kept],
            lengths=[
                min(LONGEST_ANSWER, max(1, len(ids))) if gold else ANSWER_UNKNOWN
                for gold, ids in zip(golds, self.tokenize(golds), strict=True)
            ],
            left_out=len(prompts) - len(kept),
        )


def model_tokenizer(model: str) -> Tokenize:
    """Return the tokenizer of a model's folder or hub id."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return lambda texts: [list(ids) for ids in tokenizer(list(texts))["input_ids"]]


def live_tokens(prompts: Sequence[Sequence[int]], block_tokens: int = BLOCK_TOKENS) -> int:
    """Count the tokens in the blocks that hold all these prompts, with shared beginnings kept once."""
    blocks = set()
    for prompt in prompts:
        seen = 0
        for start in range(0, len(prompt) - block_tokens + 1, block_tokens):
            seen = hash((seen, tuple(prompt[start : start + block_tokens])))
            blocks.add(seen)
    return block_tokens * len(blocks)
