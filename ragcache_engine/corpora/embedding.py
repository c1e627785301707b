"""Embeds registered documents for which no client told vectors, beside everything else."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from ragcache_engine.corpora.embedders import Embedder
from ragcache_engine.corpora.registered import Corpora, ToEmbed
from ragcache_engine.errors import CorpusTooLarge, InvalidArgument

logger = logging.getLogger(__name__)

AT_ONCE = 16
"""So many documents are embedded at a time."""

READ_CHARACTERS = 8_000
"""So much of a document is embedded: many models read no more."""

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""How long to wait after a failure, the first time and in the end."""


class Embedding:
    """A thread that embeds what `corpora` names, one owner's documents after the other's.

    make_embedder: returns the model; called in the thread, as loading takes long. A document that the
    model refuses stays without a vector. While the model cannot be asked, documents wait.
    """

    def __init__(self, corpora: Corpora, make_embedder: Callable[[], Embedder]) -> None:
        self._corpora, self._make_embedder = corpora, make_embedder
        self._sleep = time.sleep
        self._has_failed = False

    def start(self) -> None:
        """Begin. The thread ends with the process."""
        self._corpora.embeds = True
        threading.Thread(target=self._run, name="ragcache-embedding", daemon=True).start()

    def _run(self) -> None:
        if hasattr(os, "setpriority"):  # answers come first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        embedder: Embedder | None = None
        wait_s = FIRST_WAIT_S
        while True:
            some = self._corpora.take_to_embed(AT_ONCE)
            try:
                embedder = embedder or self._make_embedder()
                self._embed(embedder, some)
            except Exception as error:
                self._corpora.embed_later(some)
                self._say(error)
                self._sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                continue
            wait_s, self._has_failed = FIRST_WAIT_S, False

    def _embed(self, embedder: Embedder, some: Sequence[ToEmbed]) -> None:
        try:
            vectors = embedder.embed([one.text[:READ_CHARACTERS] for one in some])
        except InvalidArgument as error:
            if len(some) == 1:
                logger.warning("a document of %s has no vector: %s", some[0].corpus, error)
                return
            for one in some:
                self._embed(embedder, [one])
            return
        for one, vector in zip(some, vectors, strict=True):
            try:
                self._corpora.set_vector(one, vector)
            except (InvalidArgument, CorpusTooLarge) as error:
                logger.warning("a document of %s has no vector: %s", one.corpus, error)

    def _say(self, error: Exception) -> None:
        if not self._has_failed:
            logger.warning("documents cannot be embedded now, and wait: %s", error)
        self._has_failed = True
