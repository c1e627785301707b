"""Count broken rules of reuse at any position, on real vLLM in float32: every count must be 0.

    python benchmarks/anywhere_rules.py --questions 200 --exact 500
    python benchmarks/anywhere_rules.py --compiled
    python benchmarks/anywhere_rules.py --out rules    # in pieces: called again, it goes on

Real questions with their passages. Exact answers are compared with those of stock vLLM without a cache;
approximate ones with those that an engine with one request at a time gave, its cache emptied before each.

1. With recompute_ratio=1 an answer is the exact one.
2. An approximate answer depends on nothing that is cached, on no slower tier and on no company.
3. An exact answer is the exact one among approximate ones.

2 and 3 run together, eight requests at a time, for donors alone, behind neighbours, and those in int8:
device, host and disk are so small that each evicts, others are cancelled at random moments, and half way
the engine starts again on the same disk. Without --compiled vLLM runs its layers one by one
(enforce_eager).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from programs import command_line
from prompt_sets import find_nearest, tell_neighbours
from same_answers import (
    COMPILED,
    MAX_TOKENS,
    SMALL,
    STOCK,
    Prompt,
    data_prompts,
    leave,
    tokens_of,
)

from ragcache_engine import Answer, Document, EngineConfig, RAGCacheEngine, SamplingOptions

AT_ONCE = 8
RATIO = 0.15
ROOMY = 1 << 30
OPTIONS = SamplingOptions(max_tokens=MAX_TOKENS)

Tokens = list[int]
Donors = Literal["alone", "neighbours", "neighbours in int8"]
DONORS: tuple[Donors, ...] = ("alone", "neighbours", "neighbours in int8")


class Ask(NamedTuple):
    """One request of the mix. number: which prompt. kind: exact, approximate, or left (cancelled)."""

    number: int
    kind: str


class Pieces:
    """Does the pieces of a run, each once: what a call before has finished is read from its file."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        """Raises SystemExit if the folder holds pieces of a run with other settings."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        known = folder / "settings.json"
        if known.exists() and json.loads(known.read_text()) != settings:
            raise SystemExit(f"{folder} holds a run with other settings: {known.read_text()}")
        known.write_text(json.dumps(settings))

    def do(self, name: str, piece: Callable[..., Any], *given: Any, **how: Any) -> Any:
        """Return the result of `piece(*given, **how)`, which has to be JSON."""
        file = self.folder / f"{name.replace(' ', '-')}.json"
        if not file.exists():
            print(f"{name} ...", file=sys.stderr, flush=True)
            started = time.monotonic()
            done = json.dumps(piece(*given, **how))
            unfinished = file.with_suffix(".unfinished")
            unfinished.write_text(done)
            unfinished.replace(file)
            print(f"  {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        return json.loads(file.read_text())


def main() -> None:
    asked = _parse()
    settings = {name: getattr(asked, name) for name in ("questions", "exact", "compiled", "model")}
    with tempfile.TemporaryDirectory() as folder:
        broken = _run(asked, Pieces(asked.out or Path(folder), settings))
    if broken:
        raise SystemExit(f"{broken} answers differ")


def _run(asked: argparse.Namespace, pieces: Pieces) -> int:
    """Print the table, a row as soon as it is known, and return how many answers differ."""
    from ragcache_cli.models import demo_model

    model = asked.model or str(demo_model())
    prompts = data_prompts(asked.questions)
    random.Random(11).shuffle(prompts)
    corpus = {name: Document(name, text) for one in prompts for name, text in one.documents.items()}
    nearest = pieces.do("neighbours", _name_nearest, list(corpus.values()))
    neighbours = {name: corpus[near] for name, near in nearest.items()}
    eager = not asked.compiled
    stock = STOCK if eager else COMPILED
    exact = pieces.do(
        "stock vLLM without a cache", tokens_of, stock, model, "float32", prompts, AT_ONCE
    )
    print(f"{len(prompts)} prompts, {'layer by layer' if eager else 'compiled'}, float32\n")
    print("| donors | rule | answers | differ | what else |\n|---|---|---|---|---|", flush=True)
    broken = 0

    def tell(donors: Donors, rule: str, pairs: list[tuple[Tokens, Tokens]], more: str) -> None:
        nonlocal broken
        differ = sum(tokens != right for tokens, right in pairs)
        broken += differ
        print(f"| {donors} | {rule} | {len(pairs)} | {differ} | {more} |", flush=True)

    mix = _draw_mix(len(prompts), asked.exact)
    for donors in asked.donors:
        near = {} if donors == "alone" else neighbours

        def ask_each(
            device: int, donors: Donors = donors, near: Any = near, **how: Any
        ) -> list[Tokens]:
            with _start(model, eager, donors, device=device) as engine:
                return _ask_each(engine, prompts, near, **how)

        whole = pieces.do(f"{donors} ratio 1", ask_each, ROOMY, ratio=1)
        tell(donors, "ratio 1 is exact", list(zip(whole, exact, strict=True)), "")
        # On as small a device as the mix has: what does not fit there is answered exactly.
        alone = pieces.do(
            f"{donors} one at a time", ask_each, SMALL["device"], ratio=RATIO, fresh=True
        )
        changed = sum(one != right for one, right in zip(alone, exact, strict=True))
        answers, told = _ask_mix(pieces, model, eager, donors, prompts, near, mix)
        for kind, right in (("approximate", alone), ("exact", exact)):
            tell(
                donors,
                f"{kind} in any company",
                [(tokens, right[one.number]) for one, tokens in answers if one.kind == kind],
                told if kind == "exact" else f"{changed} of {len(prompts)} differ from exact",
            )
    return broken


def _name_nearest(corpus: Sequence[Document]) -> dict[str, str]:
    """Return for each document's id that of its neighbour."""
    return {name: found[0].id for name, found in find_nearest(corpus).items()}


@contextmanager
def _start(model: str, eager: bool, donors: Donors, **tiers: Any) -> Iterator[RAGCacheEngine]:
    sizes = {f"{tier}_cache": size for tier, size in tiers.items() if tier != "folder"}
    if "folder" in tiers:
        sizes["disk_cache_dir"] = tiers["folder"]
    config = EngineConfig(
        model=model,
        backend="vllm",
        reuse="anywhere",
        recompute_ratio=RATIO,
        missing_donors="compute",
        donors="alone" if donors == "alone" else "neighbours",
        donor_dtype="int8" if donors == "neighbours in int8" else "auto",
        speculation="off",
        vllm_args={
            "dtype": "float32",
            "max_model_len": SMALL["context_tokens"],
            "enforce_eager": eager,
        },
        **sizes,
    )
    with RAGCacheEngine(config) as engine:
        yield engine


def _ask_each(
    engine: RAGCacheEngine,
    prompts: Sequence[Prompt],
    neighbours: dict[str, Document],
    *,
    ratio: float,
    fresh: bool = False,
) -> list[Tokens]:
    """Answer the prompts; fresh: one at a time, and each with nothing cached."""
    if fresh:
        answers = []
        for prompt in prompts:
            engine.clear_cache()
            answers.append(asyncio.run(_ask(engine, prompt, neighbours, ratio=ratio)))
        return answers

    async def ask_all() -> list[Tokens]:
        turnstile = asyncio.Semaphore(AT_ONCE)

        async def ask(prompt: Prompt) -> Tokens:
            async with turnstile:
                return await _ask(engine, prompt, neighbours, ratio=ratio)

        return await asyncio.gather(*map(ask, prompts))

    return asyncio.run(ask_all())


async def _ask(
    engine: RAGCacheEngine,
    prompt: Prompt,
    neighbours: dict[str, Document],
    *,
    ratio: float | None = None,
    exact: bool = False,
) -> Tokens:
    documents = [Document(name, text) for name, text in prompt.documents.items()]
    if neighbours:
        tell_neighbours(engine, documents, neighbours)
    answer: Answer = await engine.agenerate(
        prompt.text, documents, OPTIONS, exact=exact, recompute_ratio=ratio
    )
    return list(answer.token_ids)


def _draw_mix(prompts: int, exact: int) -> list[Ask]:
    """Draw exact requests, as many approximate ones as there are prompts, and some that are left."""
    dice = random.Random(5)
    mix = [Ask(number, "approximate") for number in range(prompts)]
    mix += [Ask(dice.randrange(prompts), "exact") for _ in range(exact)]
    mix += [Ask(dice.randrange(prompts), "left") for _ in range((prompts + exact) // 8)]
    dice.shuffle(mix)
    return mix


def _ask_mix(
    pieces: Pieces,
    model: str,
    eager: bool,
    donors: Donors,
    prompts: Sequence[Prompt],
    neighbours: dict[str, Document],
    mix: Sequence[Ask],
) -> tuple[list[tuple[Ask, Tokens]], str]:
    """Ask all of the mix, in two lives on one disk; return the answers, and what the tiers did."""
    disk = pieces.folder / f"disk-{donors.replace(' ', '-')}"

    def live(life: Sequence[Ask]) -> dict[str, Any]:
        sizes = {tier: SMALL[tier] for tier in ("device", "host", "disk")}
        with _start(model, eager, donors, **sizes, folder=disk) as engine:
            answers = asyncio.run(_ask_life(engine, prompts, neighbours, life))
            stats = engine.stats()
        tiers = ("device", "host", "disk")
        return {
            "answers": [tokens for _, tokens in answers],
            "borrowed": [getattr(stats.borrowed, tier) for tier in tiers],
            "cached": [getattr(stats.cached, tier) for tier in tiers],
            "evicted": [dict(stats.tiers.evicted).get(tier, 0) for tier in tiers],
            "left": stats.cancelled,
        }

    half = len(mix) // 2
    lives = [
        pieces.do(f"{donors} mixed, life {number}", live, life)
        for number, life in enumerate((mix[:half], mix[half:]), start=1)
    ]
    shutil.rmtree(disk, ignore_errors=True)
    borrowed, cached, evicted = (
        [sum(tier) for tier in zip(*(life[what] for life in lives), strict=True)]
        for what in ("borrowed", "cached", "evicted")
    )
    told = (
        f"tokens from device, host, disk: borrowed {borrowed}, exact {cached}; blocks evicted "
        f"{evicted}; {sum(life['left'] for life in lives)} cancelled; two lives"
    )
    answers = [tokens for life in lives for tokens in life["answers"]]
    return list(zip(mix, answers, strict=True)), told


async def _ask_life(
    engine: RAGCacheEngine,
    prompts: Sequence[Prompt],
    neighbours: dict[str, Document],
    life: Sequence[Ask],
) -> list[tuple[Ask, Tokens]]:
    turnstile = asyncio.Semaphore(AT_ONCE)
    dice = random.Random(7)

    async def ask(one: Ask) -> tuple[Ask, Tokens]:
        prompt = prompts[one.number]
        async with turnstile:
            if one.kind == "left":
                await leave(engine, prompt, dice.uniform(0.0, 1.0))
                return one, []
            exact = one.kind == "exact"
            return one, await _ask(engine, prompt, neighbours, exact=exact)

    return await asyncio.gather(*map(ask, life))


def _parse() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--questions", type=int, default=200, help="prompts (default: %(default)s)")
    parser.add_argument("--exact", type=int, default=500, help="exact requests in the mix")
    parser.add_argument("--donors", nargs="+", choices=DONORS, default=DONORS, help="which kinds")
    parser.add_argument("--compiled", action="store_true", help="let vLLM compile the model")
    parser.add_argument("--model", help="a folder or hub id (default: the demo's model)")
    parser.add_argument(
        "--out", type=Path, help="keep the pieces in this folder, and go on with them"
    )
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    main()
