"""Threads that insert, refresh, delete and ask at the same time, and check each answer's documents."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from changing.corpus import QUESTIONS, TOP_K, topic_of, write_question, write_text
from ragcache_engine import RAGCacheEngine

FEWEST, MOST = TOP_K + 2, TOP_K + 6
"""How many documents a topic has."""
MOST_NOTES = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """What a query found, as the texts of the documents in their order, and what the LLM answered."""

    texts: tuple[str, ...]
    answer: str


class Index(Protocol):
    """An index with a query engine or chain on it, in one of the frameworks."""

    def insert(self, name: str, text: str) -> None: ...

    def refresh(self, name: str, text: str) -> Sequence[str]:
        """Replace a document. Return the ids by which the engine knows the old one."""

    def delete(self, name: str) -> Sequence[str]:
        """Remove a document. Return the ids by which the engine knows it."""

    def ask(self, question: str) -> Asked: ...


@dataclass(frozen=True, slots=True)
class Gone:
    """A forgotten document. before: what stood before it in the last prompt that held it."""

    before: str
    text: str
    ids: tuple[str, ...]


class Caller(threading.Thread):
    """Changes two topics of its own and asks about all topics that are not private to another caller.

    Everybody asks about its shared topic. Only the caller itself asks about its private one, so it knows
    when no prompt with a forgotten document can come any more.
    """

    def __init__(
        self,
        number: int,
        index: Index,
        engine: RAGCacheEngine,
        *,
        callers: int,
        deadline: float,
        change_every_s: float,
    ) -> None:
        super().__init__(name=f"caller {number}")
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        self.gone: list[Gone] = []
        self.gone_shared: list[str] = []
        self._index, self._engine = index, engine
        self._deadline, self._change_every_s = deadline, change_every_s
        self._draw = random.Random(number)
        self.shared, self.private = number, callers + number
        self._askable = [*range(callers), self.private, self.private]
        self.texts: dict[int, dict[str, str]] = {self.shared: {}, self.private: {}}
        self._written = 0

    def fill(self) -> None:
        """Insert the first documents of both topics."""
        for topic in self.texts:
            for _ in range(FEWEST):
                self._insert(topic)

    def run(self) -> None:
        next_change = time.monotonic()
        while (now := time.monotonic()) < self._deadline:
            try:
                if now >= next_change:
                    next_change = now + self._change_every_s
                    self._change(self._draw.choice([self.shared, self.private]))
                else:
                    self._ask(self._draw.choice(self._askable))
            except Exception as error:
                self._fail(f"{type(error).__name__}: {error}")

    def _change(self, topic: int) -> None:
        names = list(self.texts[topic])
        kinds = ["refresh"]
        kinds += ["insert"] if len(names) < MOST else []
        kinds += ["delete"] if len(names) > FEWEST else []
        kind = self._draw.choice(kinds)
        self.counts[kind] += 1
        if kind == "insert":
            self._insert(topic)
            return
        asked = self._ask(topic)  # so that some of the topic is cached
        own = self.texts[topic]
        name = self._draw.choice([name for name in names if own[name] in asked.texts] or names)
        old = own.pop(name)
        if kind == "refresh":
            own[name] = self._write(topic)
            ids = self._index.refresh(name, own[name])
        else:
            ids = self._index.delete(name)
        self._engine.forget(ids)
        if topic == self.shared:  # somebody may be about to ask the model about what it has found
            self.gone_shared += ids
        else:
            before = asked.texts[: asked.texts.index(old)] if old in asked.texts else ()
            self.gone.append(Gone("".join(f"{text}\n\n" for text in before), old, tuple(ids)))

    def _ask(self, topic: int) -> Asked:
        self.counts["query"] += 1
        asked = self._index.ask(write_question(topic, self._draw.randrange(QUESTIONS)))
        wrong = [text for text in asked.texts if not self._may_be_found(topic, text)]
        if wrong or len(set(asked.texts)) != TOP_K:
            self._fail(f"found {len(asked.texts)} documents, of them wrong: {wrong}")
        return asked

    def _may_be_found(self, topic: int, text: str) -> bool:
        if topic in self.texts:  # nobody else changes it, so its documents are known
            return text in self.texts[topic].values()
        return topic_of(text) == topic

    def _insert(self, topic: int) -> None:
        name, text = f"{topic}-{self._written}", self._write(topic)
        self.texts[topic][name] = text
        self._index.insert(name, text)

    def _write(self, topic: int) -> str:
        self._written += 1
        return write_text(topic, self._written, self._written)

    def _fail(self, note: str) -> None:
        self.counts["failed"] += 1
        if len(self.notes) < MOST_NOTES:
            self.notes.append(f"{self.name}: {note}")


def survivors(callers: Sequence[Caller]) -> Mapping[str, str]:
    """Return the documents that the callers have left, by name."""
    return {
        name: text
        for caller in callers
        for own in caller.texts.values()
        for name, text in own.items()
    }
