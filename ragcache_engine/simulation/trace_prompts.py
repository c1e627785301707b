"""Makes the prompts of a retrieval trace, in the form in which the cache manager sees prompts.

A trace gives the lengths of its documents, not their texts. So each token is a number made from its
document and its place there. A prompt is a system text, its documents, and one token of a question,
which is computed and neither counted nor cached.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from ragcache_engine.simulation.request import SimulatedRequest, describe_with_keys
from ragcache_engine.simulation.traces import Request, Trace
from ragcache_engine.tiers.node_record import Key
from ragcache_engine.tiers.prompts import Prompt, SegmentEnd

MOST_PROMPTS = 20_000
"""How many prompts to keep, because replays ask for the same ones again. Each takes some kilobytes."""

PLACES = 1 << 32
"""More tokens than any document has."""


@dataclass(frozen=True, slots=True)
class TracePrompt:
    """One prompt. tokens: its length without the question. ends: where each document ends, in tokens."""

    prompt: Prompt
    keys: tuple[Key, ...]
    tokens: int
    ends: tuple[int, ...]
    block_tokens: int

    def request(self, name: str) -> SimulatedRequest:
        return SimulatedRequest(name, self.prompt, self.keys, self.tokens + 1)

    def found_documents(self, cached_tokens: int) -> int:
        """Return how many leading documents are cached up to the last block that each of them owns.

        A document without a cached token does not count, even if it owns no block.
        """
        start = found = 0
        for end in self.ends:
            if cached_tokens <= start or cached_tokens < end - end % self.block_tokens:
                break
            found, start = found + 1, end
        return found


class TracePrompts:
    """Makes the prompts of a trace's requests.

    system_tokens: the tokens of the text before the documents. has_disk: whether to name the blocks'
      files.
    """

    def __init__(
        self, trace: Trace, *, system_tokens: int, block_tokens: int, has_disk: bool
    ) -> None:
        self.block_tokens = block_tokens
        self._system = array("q", range(system_tokens))
        self._lengths = trace.tokens
        self._numbers = {name: number for number, name in enumerate(trace.tokens, 1)}
        self.has_disk = has_disk
        # Keep equal keys as one object: most prompts share their beginning with others.
        self._interned: dict[Key, Key] = {}
        self.prompt: Callable[[Request], TracePrompt] = lru_cache(MOST_PROMPTS)(self._make)
        """Returns the prompt of these documents, in this order."""

    def write(self, documents: Request) -> tuple[array[int], list[SegmentEnd]]:
        """Return the tokens of a prompt without its question, and its segments."""
        tokens = self._system[:]
        segments: list[SegmentEnd] = [(len(tokens), None)] if tokens else []
        for document in documents:
            first = self._numbers[document] * PLACES
            tokens.extend(range(first, first + self._lengths[document]))
            segments.append((len(tokens), document))
        return tokens, segments

    def _make(self, documents: Request) -> TracePrompt:
        tokens, segments = self.write(documents)
        prompt, chain = describe_with_keys(
            tokens,
            segments,
            prompt_tokens=len(tokens) + 1,
            tenant=None,
            block_tokens=self.block_tokens,
            depth=None,
            has_disk=self.has_disk,
        )
        keys = tuple(self._interned.setdefault(key, key) for key in chain.keys)
        ends = tuple(end for end, document in segments if document is not None)
        return TracePrompt(replace(prompt, keys=keys), keys, len(tokens), ends, self.block_tokens)
