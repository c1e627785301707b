"""What could any routing find at most? The streams of fleet.py, replayed without a model.

    python benchmarks/fleet_bounds.py --out FOLDER --articles 2 6 --device-mib 256 128 64

For each setting: the hits if nothing were ever evicted, those of one cache as large as both replicas'
together (no routing of whole prompts finds more, but for luck), and those of each routing on two
replicas, all as shares of the prompts' tokens, as fleet.py counts them. The mean of several orders of
arrival.

RAGCACHE_DATA names the folder of the question sets.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet import MIB, ROUTINGS, SYSTEM, Ask, natural_asks, zipf_asks
from tokenizers import Tokenizer

from ragcache_cli.models import demo_model
from ragcache_engine.knowledge.cost import CostProfile
from ragcache_engine.simulation.fleet import FleetSizes, replay_fleet
from ragcache_engine.simulation.traces import Trace

REPLICAS = 2
BLOCK_TOKENS = 32
TOKEN_BYTES = 30 * 2 * 3 * 64 * 4
"""Of the demo's model in float32: layers, keys and values, heads, their size, bytes of a number."""

ORDERS = 5
LOAD = 0.7


@dataclass(frozen=True, slots=True)
class Counted:
    """A stream in tokens. rest: of the question behind each passage, on average."""

    trace: Trace
    system: int
    rest: float

    @property
    def prompt_tokens(self) -> float:
        return sum(
            self.system + self.trace.tokens[name] + self.rest for (name,) in self.trace.requests
        )

    def share(self, hit_rate: float) -> float:
        """Return a hit rate of system text and passages as one of whole prompts."""
        return hit_rate * (1 - self.rest * len(self.trace) / self.prompt_tokens)

    def never_evicted(self) -> float:
        """Return the hits of a cache that holds all it has seen."""
        seen, cached = set[str](), 0
        for (name,) in self.trace.requests:
            if name in seen:
                cached += (self.system + self.trace.tokens[name]) // BLOCK_TOKENS * BLOCK_TOKENS
            seen.add(name)
        return cached / self.prompt_tokens


def count(asks: Sequence[Ask], tokenizer: Tokenizer) -> Counted:
    def tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    passages = {ask.document: tokens(ask.text) for ask in asks}
    rest = statistics.mean(tokens(f"\n\nQuestion: {ask.question}\nAnswer:") for ask in asks)
    trace = Trace(tuple((ask.document,) for ask in asks), passages)
    return Counted(trace, tokens(f"{SYSTEM}\n\n"), rest)


def replay(stream: Counted, routing: str, replicas: int, capacity: int) -> float:
    sizes = FleetSizes(replicas, capacity, BLOCK_TOKENS, stream.system, LOAD)
    rates = [
        replay_fleet(
            stream.trace, sizes, routing, policy="pgdsf", profile=CostProfile.default(), seed=order
        ).hit_rate
        for order in range(ORDERS)
    ]
    return stream.share(statistics.mean(rates))


def bounds(stream: Counted, device_mib: int) -> dict[str, Any]:
    """Return the hits of every routing, and what bounds them."""
    capacity = device_mib * MIB // TOKEN_BYTES
    asked = {name for request in stream.trace.requests for name in request}
    asked_tokens = sum(stream.trace.tokens[name] for name in asked)
    found = {routing: replay(stream, routing, REPLICAS, capacity) for routing in ROUTINGS}
    one_cache = replay(stream, "random", 1, REPLICAS * capacity)
    return {
        "requests": len(stream.trace),
        "passages": len(asked),
        "device_mib": device_mib,
        "one_replica_holds": min(1.0, capacity / asked_tokens),
        "never_evicted": stream.never_evicted(),
        "one_cache_of_both_sizes": one_cache,
        **found,
        "documents_over_random": found["documents"] / found["random"],
        "most_over_random": one_cache / found["random"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("fleet-output"))
    parser.add_argument("--articles", type=int, nargs="+", default=[2, 6])
    parser.add_argument("--requests", type=int, default=260)
    parser.add_argument("--device-mib", type=int, nargs="+", default=[256, 128, 64])
    parsed = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(Path(demo_model()) / "tokenizer.json"))
    rows = []
    for articles in parsed.articles:
        natural = natural_asks(articles)[: parsed.requests]
        streams = {"natural": natural, "zipf": zipf_asks(natural, len(natural))}
        for name, stream in streams.items():
            counted = count(stream, tokenizer)
            for device_mib in parsed.device_mib:
                row = {"stream": name, "articles": articles, **bounds(counted, device_mib)}
                rows.append(row)
                print(json.dumps(row), flush=True)
    parsed.out.mkdir(parents=True, exist_ok=True)
    (parsed.out / "bounds.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
