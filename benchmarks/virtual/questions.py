"""The questions of the bench as tokens: what was retrieved is recorded, so that nothing is embedded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from comparing.plan import ARTICLES, SQUAD
from comparing.questions import ANSWER_UNKNOWN, LONGEST_ANSWER, TOKENS_A_WORD
from question_files import CORPUS, DATA, join_articles, read_asked, read_lines

from ragcache_cli.prompts import BETWEEN_PASSAGES, PromptForm
from ragcache_engine.knowledge import policy_of_tiers
from ragcache_engine.retrievals.document_order import DocumentOrdering
from ragcache_engine.values import Document
from virtual.engine import Asked

CHAIN = "bench"
RECORDED = 10
"""How many documents of a question the sets record."""
FEWEST_CHARACTERS = 3
"""English has at least so many characters a token, in the mean of a passage."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A retrieved document. id: its name; text: as it stands in the prompt."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class AskedOf:
    """A question with the documents that were found for it, nearest first."""

    text: str
    documents: tuple[Passage, ...]
    answer: str


class Questions:
    """Turns the questions of a set into requests.

    form: of the prompts. tokenizer: the model's. document_times: how many times as long as in the set
      documents are; further times have other tokens. most_tokens: questions whose documents may have
      more are left out; 0: none is.
    """

    def __init__(
        self,
        asked: Sequence[AskedOf],
        form: PromptForm,
        tokenizer: Any,
        *,
        document_times: int = 1,
        most_tokens: int = 0,
    ) -> None:
        self._form, self._tokenizer, self._times = form, tokenizer, document_times
        self._read: dict[tuple[int, tuple[str, ...]], Asked] = {}
        self._asked = [
            one for one in asked if not most_tokens or self._most_tokens_of(one) <= most_tokens
        ]

    def _most_tokens_of(self, one: AskedOf) -> int:
        """Return a bound on the tokens of a prompt's documents, without reading them."""
        return self._times * sum(len(each.text) for each in one.documents) // FEWEST_CHARACTERS

    def __len__(self) -> int:
        return len(self._asked)

    @cached_property
    def lengths(self) -> list[int]:
        """How many tokens each answer gets, as the bench counts them."""
        golds = [one.answer for one in self._asked]
        ids = self._tokenizer(golds)["input_ids"]
        return [
            min(LONGEST_ANSWER, max(1, len(tokens))) if gold else ANSWER_UNKNOWN
            for gold, tokens in zip(golds, ids, strict=True)
        ]

    def documents(self, number: int) -> tuple[Passage, ...]:
        """Return the documents of a question, nearest first."""
        return self._asked[number].documents

    def request(self, number: int, documents: Sequence[Passage] | None = None) -> Asked:
        """Return a question as a request that comes at once and generates one token.

        documents: in the order of the prompt; None: nearest first.
        """
        one = self._asked[number]
        found = tuple(one.documents if documents is None else documents)
        key = number, tuple(each.id for each in found)
        if key not in self._read:
            self._read[key] = self._make(one.text, found)
        return self._read[key]

    def _make(self, question: str, documents: Sequence[Passage]) -> Asked:
        form = self._form
        text = form.filled([each.text for each in documents], question)
        read = self._tokenizer(text, return_offsets_mapping=True)
        ids, starts = read["input_ids"], [start for start, _ in read["offset_mapping"]]
        ends, at = [("", len(form.before))], len(form.before)
        for place, each in enumerate(documents):
            at += len(each.text)
            ends.append((each.id, at))
            at += len(BETWEEN_PASSAGES) if place + 1 < len(documents) else 0
        tokens: list[int] = []
        segments: list[tuple[int, str | None]] = []
        done = 0
        for name, end in ends:
            upto = sum(start < end for start in starts)
            part = ids[done:upto]
            for time in range(self._times if name else 1):
                tokens += [token if not time else (token * 31 + time) % 49_000 for token in part]
            segments.append((len(tokens), name or None))
            done = upto
        return Asked(tokens + ids[done:], segments, 1)


class DocumentOrder:
    """Puts documents into the order of a system, as its retriever does.

    name: of DOCUMENT_ORDERS. capacity_tokens: what device and host hold together.
    """

    def __init__(self, name: str, capacity_tokens: int, policy: str) -> None:
        self._ordering = DocumentOrdering(name, capacity_tokens, policy_of_tiers(policy))

    def arrange(self, documents: Sequence[Passage]) -> list[Passage]:
        """Return the documents in the order of the prompt, which is noted."""
        known = [Document(each.id, each.text) for each in documents]
        places = self._ordering.positions(known, CHAIN)
        self._ordering.note_prompt([known[place] for place in places], CHAIN)
        return [documents[place] for place in places]


def read_questions(name: str, top_k: int, context_tokens: int) -> list[AskedOf]:
    """Read a shared question set with what was retrieved for it; ARTICLES for whole articles.

    context_tokens: longer articles are left out, as the bench does. Raises BadTrace.
    """
    if name == ARTICLES:
        return _read_articles(int(context_tokens / TOKENS_A_WORD))
    return [
        AskedOf(
            one.question["query"],
            tuple(Passage(key, text) for key, text in one.texts().items()),
            (one.question["answers"] or [""])[0],
        )
        for one in read_asked(name, top_k)
    ]


def _read_articles(most_words: int) -> list[AskedOf]:
    corpus = read_lines(DATA / SQUAD / CORPUS)
    texts = join_articles(corpus, most_words)
    title_of = {row["doc_id"]: row["title"] for row in corpus}
    chosen = []
    for question, documents in read_asked(SQUAD, RECORDED):
        gold = [title_of[key] for key in question["gold_doc_ids"] if title_of[key] in texts]
        if not gold:
            continue
        # The bench searches the kept articles alone; the record has the ten nearest of all.
        title = next((row["title"] for row in documents if row["title"] in texts), gold[0])
        answer = (question["answers"] or [""])[0]
        chosen.append(AskedOf(question["query"], (Passage(title, texts[title]),), answer))
    return chosen
