"""Callers in threads of their own: they ask, leave, forget, and compare every token."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ragcache_engine import EngineDied, RAGCacheEngine, RequestTimedOut
from soaking.workload import OPTIONS, Ask, Tokens, Workload

TENANTS = (None, "alice", "bob")
LEAVES, FORGETS, CHECKS = 0.12, 0.02, 0.05
"""Shares of all turns: leaving a stream early, forgetting a document, checking that it is forgotten."""
MOST_SHOWN = 20


@dataclass
class Tally:
    """What the callers saw.

    turns: by kind. cached_tokens: of finished prompts, by tier. wrong: answers that differ from those
    without a cache. approximate: answers that borrowed, or left streams of an engine that borrows, which
    are compared with nothing. remembered: forgotten documents that were served from a cache. errors: by
    name.
    hangs: requests that ended in RequestTimedOut. notes: the first wrong answers and errors, in words.
    """

    turns: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    approximate: int = 0
    borrowed_tokens: int = 0
    remembered: int = 0
    hangs: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(self.turns.values()) - self.turns["forget"]

    def note(self, text: str) -> None:
        if len(self.notes) < MOST_SHOWN:
            self.notes.append(text)

    def add(self, other: Tally) -> None:
        """Count what another piece of the run saw as well."""
        for name in ("turns", "cached_tokens", "errors"):
            getattr(self, name).update(getattr(other, name))
        for name in (
            "prompt_tokens",
            "wrong",
            "approximate",
            "borrowed_tokens",
            "remembered",
            "hangs",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest_s = max(self.longest_s, other.longest_s)
        for text in other.notes:
            self.note(text)


class Callers:
    """Threads that ask an engine until enough was asked, or time is up.

    count: how many callers. requests: how many requests to make together. deadline: on the clock of
    time.monotonic. tally is complete once `join` has returned.
    """

    def __init__(
        self,
        engine: RAGCacheEngine,
        workload: Workload,
        *,
        count: int,
        requests: int,
        deadline: float,
        seed: int,
    ) -> None:
        self.tally = Tally()
        self._engine = engine
        self._workload = workload
        self._left = requests
        self._deadline = deadline
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._call, args=(number, random.Random(f"{seed}/{number}")))
            for number in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def are_calling(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _call(self, number: int, dice: random.Random) -> None:
        own = self._workload.private[number] if number < len(self._workload.private) else None
        turns: list[Callable[[random.Random], None]] = [self._leave, self._forget, self._ask]
        shares = [LEAVES, FORGETS, 1 - LEAVES - FORGETS]
        while self._take_turn():
            if own is not None and dice.random() < CHECKS * 4:
                self._guard(self._check_forgetting, own)
            else:
                self._guard(dice.choices(turns, shares)[0], dice)

    def _take_turn(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left >= 0 and time.monotonic() < self._deadline

    def _guard(self, turn: Callable[[Any], None], argument: Any) -> None:
        begun = time.monotonic()
        try:
            turn(argument)
        except RequestTimedOut as error:
            with self._lock:
                self.tally.hangs += 1
                self.tally.note(f"hang: {error}")
        except Exception as error:  # every one is a finding; the caller goes on
            with self._lock:
                self.tally.errors[type(error).__name__] += 1
                self.tally.note(f"{type(error).__name__}: {error}")
        with self._lock:
            self.tally.longest_s = max(self.tally.longest_s, time.monotonic() - begun)

    def _ask(self, dice: random.Random) -> None:
        self._ask_and_compare(self._workload.draw(dice), dice.choice(TENANTS), "ask")

    def _ask_and_compare(self, ask: Ask, tenant: str | None, kind: str) -> int:
        """Ask, compare an exact answer, and return how many prompt tokens were reused."""
        answer = self._engine.generate(ask.prompt, ask.documents, OPTIONS, tenant=tenant)
        usage = answer.usage
        with self._lock:
            self.tally.turns[kind] += 1
            self.tally.prompt_tokens += usage.prompt_tokens
            for tier in ("device", "host", "disk"):
                self.tally.cached_tokens[tier] += getattr(usage.cached, tier)
            self.tally.borrowed_tokens += usage.borrowed.total
            self.tally.approximate += not usage.is_exact
        if usage.is_exact:
            self._compare(ask, answer.token_ids, is_whole=True)
        return usage.cached.total + usage.borrowed.total

    def _leave(self, dice: random.Random) -> None:
        """Read some pieces of an answer, compare them, and close the stream."""
        ask = self._workload.draw(dice)
        with self._engine.stream(
            ask.prompt, ask.documents, OPTIONS, tenant=dice.choice(TENANTS)
        ) as pieces:
            read = [
                token for piece in islice(pieces, dice.randint(0, 3)) for token in piece.token_ids
            ]
        borrows = self._engine.config.reuse == "anywhere"
        with self._lock:
            self.tally.turns["leave"] += 1
            self.tally.approximate += borrows
        if not borrows:
            self._compare(ask, read, is_whole=False)

    def _compare(self, ask: Ask, tokens: Sequence[int], *, is_whole: bool) -> None:
        right: Tokens = self._workload.answers[ask.prompt]
        if tuple(tokens) != (right if is_whole else right[: len(tokens)]):
            names = ", ".join(document.id for document in ask.documents)
            with self._lock:
                self.tally.wrong += 1
                self.tally.note(f"wrong answer about {names}: {list(tokens)} for {list(right)}")

    def _forget(self, dice: random.Random) -> None:
        ask = self._workload.draw(dice)
        self._make_forget([dice.choice(ask.documents).id])
        with self._lock:
            self.tally.turns["forget"] += 1

    def _make_forget(self, ids: list[str]) -> None:
        try:
            self._engine.forget(ids)
        except EngineDied:  # while its processes come back; the promise holds once it returns
            self._engine.forget(ids)

    def _check_forgetting(self, own: Ask) -> None:
        """Ask about a document that nobody else asks about, forget it, and ask again."""
        document = own.documents[0]
        self._ask_and_compare(own, None, "before forgetting")
        self._make_forget([document.id])
        cached = self._ask_and_compare(own, None, "after forgetting")
        begins_at = own.prompt.index(document.text)
        offsets = self._engine.tokenize(own.prompt).offsets
        before = sum(1 for _, end in offsets if end <= begins_at)
        if cached > before:
            with self._lock:
                self.tally.remembered += 1
                self.tally.note(f"{document.id}: forgotten, and {cached - before} tokens served")
