"""Keeps prompts cached up to their cache points, beside everything else."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from threading import Lock

from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.errors import RAGCacheError
from ragcache_engine.prompt import Span
from ragcache_engine.values import ChatPrompt, Document

logger = logging.getLogger(__name__)

MOST_WAITING = 64
"""While so many cache points wait to be kept, further ones are passed over."""

MOST_REMEMBERED = 4096
"""So many points are known as kept already."""

LONGER = 0.5
"""A point is kept for so much longer than asked, so that not each prompt has to keep it anew."""

Keep = Callable[[str, Sequence[Document], float, str], None]
"""Keeps a prompt's beginning with its documents: (text, documents, seconds, name of the set)."""


NAMED = "cache point "
"""How the names of cache points begin, among those of documents."""


def is_cache_point(documents: Sequence[str]) -> bool:
    """Return whether a kept set is what is kept up to a cache point."""
    return bool(documents) and documents[-1].startswith(NAMED)


class CachePoints:
    """Keeps prompts up to their cache points once they are answered. Any thread may call its methods.

    What cannot be kept is logged: the answer is the same without it.
    clock: tells seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads = DaemonThreads(1, "ragcache-cache-points")
        self._clock = clock
        self._kept: OrderedDict[tuple[str | None, bytes], float] = OrderedDict()  # until when
        self._waiting = 0
        self._lock = Lock()

    def note(
        self,
        prompt: ChatPrompt,
        spans: Sequence[Span],
        tenant: str | None,
        keep: Keep,
        *,
        whole: bool,
    ) -> None:
        """Keep a prompt up to its points, soon. Returns at once.

        spans: its documents. whole: whether text behind the last document is kept, too.
        """
        for characters, for_s in dict(prompt.cache_points).items():
            ends = [span.end for span in spans if span.end <= characters]
            text = prompt[: characters if whole or not ends else ends[-1]]
            key = tenant, blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            with self._lock:
                now, lasts_s = self._clock(), (1 + LONGER) * for_s
                is_kept = self._kept.get(key, now) - now >= for_s
                if is_kept or self._waiting == MOST_WAITING:
                    continue
                self._waiting += 1
                self._kept[key] = now + lasts_s
                self._kept.move_to_end(key)
                while len(self._kept) > MOST_REMEMBERED:
                    self._kept.popitem(last=False)
            name = f"{NAMED}{key[1].hex()}"
            documents = [*_documents(text, spans, name)]
            self._threads.submit(
                partial(self._run, partial(keep, text, documents, lasts_s, name), key)
            )

    def clear(self) -> None:
        """Note that something was forgotten or released, and may have been kept for a point."""
        with self._lock:
            self._kept.clear()

    def _run(self, keep: Callable[[], None], key: tuple[str | None, bytes]) -> None:
        try:
            keep()
        except Exception as error:
            level = logging.INFO if isinstance(error, RAGCacheError) else logging.ERROR
            logger.log(level, "a prompt is not kept up to its cache point: %r", error)
            with self._lock:
                self._kept.pop(key, None)
        finally:
            with self._lock:
                self._waiting -= 1


def _documents(text: str, spans: Sequence[Span], name: str) -> Iterator[Document]:
    """Yield the documents of a prompt's beginning, and what stands behind the last one as another."""
    end = 0
    for span in spans:
        if span.end > len(text):
            break
        yield Document(span.document_id, text[span.start : span.end])
        end = span.end
    if end < len(text):
        yield Document(name, text[end:])
