"""Embeds registered documents for which no client told vectors, beside everything else."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ragcache_engine.corpora.embedders import Embedder, Vectors
from ragcache_engine.corpora.registered import Corpora, ToEmbed
from ragcache_engine.errors import CorpusTooLarge, InvalidArgument

logger = logging.getLogger(__name__)

AT_ONCE = 16
"""So many documents are embedded at a time."""

READ_CHARACTERS = 8_000
"""So much of a document is embedded: many models read no more."""

PARTS_CHARACTERS = (2_000, 800, 300)
"""Of a text that is refused, so much is tried: some models read 512 tokens, and refuse longer texts."""

MOST_FAILURES, MOST_REMEMBERED = 5, 10_000
"""A document that fails so often while others do not stays without a vector; so many are remembered."""

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""How long to wait after a failure, the first time and in the end."""


class Embedding:
    """A thread that embeds what `corpora` names, one owner's documents after the other's.

    make_embedder: returns the model; called in the thread, as loading takes long. A document that the
    model refuses even in part stays without a vector. While the model cannot be asked, documents wait.
    """

    def __init__(self, corpora: Corpora, make_embedder: Callable[[], Embedder]) -> None:
        self._corpora, self._make_embedder = corpora, make_embedder
        self._sleep = time.sleep
        self._has_failed = False
        self._embedded = 0
        # By owner, corpus and id: how often it failed alone, and how many others were embedded before.
        self._failures: dict[tuple[str | None, str, str], tuple[int, int]] = {}

    def start(self) -> None:
        """Begin. The thread ends with the process."""
        self._corpora.embeds = True
        threading.Thread(target=self._run, name="ragcache-embedding", daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError, AttributeError):  # answers come first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        embedder: Embedder | None = None
        wait_s, at_once = FIRST_WAIT_S, AT_ONCE
        while True:
            some = self._corpora.take_to_embed(at_once)
            try:
                embedder = embedder or self._make_embedder()
                self._embed(embedder, some)
            except Exception as error:
                self._corpora.embed_later(self._worth_another_try(some))
                self._say(error)
                self._sleep(wait_s)
                # Alone, as one of them may be the reason.
                wait_s, at_once = min(2 * wait_s, LONGEST_WAIT_S), 1
                continue
            self._embedded += len(some)
            wait_s, self._has_failed = FIRST_WAIT_S, False
            at_once = min(2 * at_once, AT_ONCE)

    def _embed(self, embedder: Embedder, some: Sequence[ToEmbed]) -> None:
        try:
            vectors = embedder.embed([one.text[:READ_CHARACTERS] for one in some])
        except InvalidArgument:
            if len(some) > 1:
                for one in some:
                    self._embed(embedder, [one])
                return
            found = _embed_in_part(embedder, some[0].text)
            if found is None:
                return
            vectors = found
        refused: Exception | None = None
        for one, vector in zip(some, vectors, strict=True):
            try:
                self._corpora.set_vector(one, vector)
            except (InvalidArgument, CorpusTooLarge) as error:
                refused = error
        if refused is not None:
            logger.warning("documents of %s have no vector: %s", some[0].corpus, refused)

    def _worth_another_try(self, some: Sequence[ToEmbed]) -> Sequence[ToEmbed]:
        """Return these documents, but for one that fails again and again while others do not."""
        if len(some) > 1:
            return some
        name = some[0].owner, some[0].corpus, some[0].id
        count, embedded = self._failures.pop(name, (0, self._embedded))
        if count + 1 >= MOST_FAILURES and self._embedded > embedded:
            logger.warning("a document of %s cannot be embedded, and has no vector", some[0].corpus)
            return ()
        self._failures[name] = count + 1, embedded
        while len(self._failures) > MOST_REMEMBERED:
            del self._failures[next(iter(self._failures))]
        return some

    def _say(self, error: Exception) -> None:
        if not self._has_failed:
            logger.warning("documents cannot be embedded now, and wait: %s", error)
        self._has_failed = True


def _embed_in_part(embedder: Embedder, text: str) -> Vectors | None:
    """Return the vector of a text's beginning, as much as the model reads; none if it reads none of it.

    Raises RuntimeError if the model refuses every text.
    """
    for characters in PARTS_CHARACTERS:
        with suppress(InvalidArgument):
            return embedder.embed([text[:characters]])
    try:
        embedder.embed(["A text."])
    except InvalidArgument as error:
        raise RuntimeError(f"the embedding model refuses every text: {error}") from error
    logger.warning("the embedding model refuses a document even in part: it has no vector")
    return None
