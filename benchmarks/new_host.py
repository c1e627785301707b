"""Measure what a new host gains from a store that other hosts have filled.

    RAGCACHE_DATA=FOLDER python benchmarks/new_host.py --out FOLDER              # a Redis of its own
    python benchmarks/new_host.py --store s3://bucket/prefix --traffic zipf
    python benchmarks/new_host.py --two-hosts                 # at once, with a store and without
    python benchmarks/new_host.py --speeds --store redis://host:6379             # the store alone

One engine answers questions and fills the store; it ends, as a host that is replaced. Then two new ones
with empty disks get the questions that follow, each in turn: one has the store, the other has not. With
natural traffic questions come as the set has them, and with Zipf's they are drawn, so that some come
often. --two-hosts lets two hosts answer at once, each question on one drawn at random, with a store
between them and then without: answers a second, hits and times. --speeds reads and writes objects of
several sizes instead, without a model.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from anywhere import OPTIONS
from programs import command_line, keep
from prompt_sets import Question, read_set
from tables import spread, table

from ragcache_cli.models import demo_model
from ragcache_engine import EngineConfig, RAGCacheEngine
from ragcache_engine.tiers.shared.opening import open_store
from ragcache_engine.tiers.shared.store import StoredBlock

PARTS, KIB, MB = 4, 1 << 10, 1e6
WITH, WITHOUT = "with the store", "cold"
FIRST_TOKEN = replace(OPTIONS, max_tokens=1)
SPIN_S = 1.1
"""An idle model of vLLM spins so long on a CPU; it would take time from the host that is asked next."""
SETTLED_S = 3.0
"""So long an engine rests before it ends, in which its last blocks reach the store."""


def main() -> None:
    asked = _parse()
    with ExitStack() as stack:
        url = asked.store or stack.enter_context(_own_redis())
        if asked.speeds:
            lines = measure_speeds(url, asked.kib)
            print(*lines, sep="\n")
            keep(asked.out, "speeds", lines, {})
            return
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lines, raw = [], {}
        play, tell = (_play_two, report_two) if asked.two_hosts else (_play, report)
        for traffic in asked.traffic:
            rows = play(traffic, url, folder / traffic, asked)
            raw[traffic] = rows
            lines += tell(traffic, rows)
            keep(asked.out, "report", lines, raw)
        print(*lines, sep="\n")


def _play(traffic: str, url: str, folder: Path, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Fill the store, and ask two new hosts; return a row for each answer."""
    shared = f"{url}/{traffic}" if not url.startswith("redis") else f"{url}?prefix={traffic}"
    count = asked.before + asked.questions
    drawn = draw(traffic, count, asked)
    with _host(folder / "replaced", shared, asked) as engine:
        for place, question in enumerate(drawn[: asked.before]):
            engine.generate(question.prompt, question.documents, FIRST_TOKEN)
            print(f"\r{traffic}: {place + 1} of {asked.before} before", end="", flush=True)
        time.sleep(SETTLED_S)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        engines = {
            WITHOUT: stack.enter_context(_host(folder / "cold", None, asked)),
            WITH: stack.enter_context(_host(folder / "new", shared, asked)),
        }
        for place, question in enumerate(drawn[asked.before :]):
            names = [*engines] if place % 2 else [*engines][::-1]
            texts = {}
            for name in names:
                answer = engines[name].generate(question.prompt, question.documents, OPTIONS)
                texts[name] = answer.text
                time.sleep(SPIN_S)
                usage = answer.usage
                rows.append(
                    {
                        "place": place,
                        "host": name,
                        "ttft_s": usage.ttft_s,
                        "computed": usage.computed_tokens,
                        "prompt_tokens": usage.prompt_tokens,
                    }
                )
            for row in rows[-2:]:
                row["is_equal"] = texts[WITH] == texts[WITHOUT]
            print(f"\r{traffic}: {place + 1} of {asked.questions} questions  ", end="", flush=True)
        tiers = engines[WITH].stats().tiers
        rows[-1]["fetched"] = [tiers.shared_tokens, tiers.shared_read_bytes, tiers.missing]
    print()
    return rows


def _play_two(
    traffic: str, url: str, folder: Path, asked: argparse.Namespace
) -> list[dict[str, Any]]:
    """Let two hosts answer at once, with a store and without; return a row for each answer."""
    shared = f"{url}/{traffic}" if not url.startswith("redis") else f"{url}?prefix=two-{traffic}"
    questions, dice = draw(traffic, asked.questions, asked), random.Random(asked.seed)
    hosts = [dice.randrange(2) for _ in questions]
    rows: list[dict[str, Any]] = []
    for way, store in ((WITHOUT, None), (WITH, shared)):
        with ExitStack() as stack:
            engines = []
            for number in range(2):
                # A core for each: two models that share cores wait for each other's threads.
                os.environ["VLLM_CPU_OMP_THREADS_BIND"] = str(number)
                host = _host(folder / f"{way}-{number}", store, asked)
                engines.append(stack.enter_context(host))
            asking = [stack.enter_context(ThreadPoolExecutor(asked.clients)) for _ in engines]
            begun = time.monotonic()
            answers = [
                asking[host].submit(
                    engines[host].generate, question.prompt, question.documents, OPTIONS
                )
                for host, question in zip(hosts, questions, strict=True)
            ]
            for place, answer in enumerate(answers):
                usage = answer.result().usage
                rows.append(
                    {
                        "place": place,
                        "way": way,
                        "ttft_s": usage.ttft_s,
                        "computed": usage.computed_tokens,
                        "prompt_tokens": usage.prompt_tokens,
                        "text": answer.result().text,
                    }
                )
            rows[-1]["seconds"] = time.monotonic() - begun
            rows[-1]["fetched"] = sum(one.stats().tiers.shared_tokens for one in engines)
    return rows


def report_two(traffic: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a table: two hosts with a store between them, and without."""
    shown = []
    texts = {way: [row["text"] for row in rows if row["way"] == way] for way in (WITHOUT, WITH)}
    for way in (WITHOUT, WITH):
        mine = [row for row in rows if row["way"] == way]
        tokens, computed = (
            sum(row[name] for row in mine) for name in ("prompt_tokens", "computed")
        )
        shown.append(
            [
                way,
                f"{len(mine) / mine[-1]['seconds']:.2f}",
                f"{statistics.fmean(row['ttft_s'] for row in mine):.2f}",
                spread([row["ttft_s"] for row in mine]),
                f"{1 - computed / tokens:.2f}",
                f"{mine[-1]['fetched']:,}",
            ]
        )
    equal = sum(map(str.__eq__, *texts.values()))
    heads = (
        "two hosts",
        "answers a second",
        "TTFT, s: mean",
        "median (quartiles)",
        "hits",
        "tokens fetched",
    )
    return [
        f"## {traffic.capitalize()} traffic, {len(texts[WITH])} questions",
        "",
        *table(heads, shown),
        "",
        f"{equal} answers are equal.",
        "",
    ]


def draw(traffic: str, count: int, asked: argparse.Namespace) -> list[Question]:
    """Return the questions in their order."""
    _, questions = read_set(asked.set, max(count, asked.of), asked.top_k)
    if traffic == "natural":
        return questions[:count]
    dice = random.Random(asked.seed)
    dice.shuffle(questions)
    weights = [*accumulate(1 / rank for rank in range(1, len(questions) + 1))]
    return dice.choices(questions, cum_weights=weights, k=count)


def report(traffic: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a table: the quarters of the questions by themselves, each host beside the other."""
    by_place = {
        host: {row["place"]: row for row in rows if row["host"] == host} for host in (WITHOUT, WITH)
    }
    places = sorted(by_place[WITH])
    shown = []
    for part in range(PARTS):
        within = places[len(places) * part // PARTS : len(places) * (part + 1) // PARTS]
        cold, warm = ([by_place[host][place] for place in within] for host in (WITHOUT, WITH))
        ratios = [one["ttft_s"] / other["ttft_s"] for one, other in zip(cold, warm, strict=True)]
        shown.append(
            [
                f"{within[0] + 1} to {within[-1] + 1}",
                spread([row["ttft_s"] for row in cold], ".0f", 1e3),
                spread([row["ttft_s"] for row in warm], ".0f", 1e3),
                spread(ratios),
                f"{sum(row['computed'] for row in cold):,}",
                f"{sum(row['computed'] for row in warm):,}",
                f"{sum(row['is_equal'] for row in warm)} of {len(warm)}",
            ]
        )
    tokens = sum(row["prompt_tokens"] for row in by_place[WITH].values())
    fetched, size_bytes, missing = rows[-1]["fetched"]
    heads = (
        "questions",
        "TTFT cold, ms",
        "with the store",
        "cold over store, pairs",
        "computed, cold",
        "with the store",
        "equal answers",
    )
    return [
        f"## {traffic.capitalize()} traffic",
        "",
        *table(heads, shown),
        "",
        f"Of {tokens:,} prompt tokens {fetched:,} came from the store ({size_bytes / MB:,.0f} MB), "
        f"{missing} of its blocks were gone.",
        "",
    ]


def measure_speeds(url: str, sizes_kib: Sequence[int], repeats: int = 5) -> list[str]:
    """Return a table of what the store takes and gives, by size of its objects."""
    store, rows = open_store(url), []
    for kib in sizes_kib:
        count = max(4, (64 << 10) // kib)
        content = os.urandom(kib * KIB)
        blocks = [StoredBlock(f"speeds/{kib}-{number}", [], content) for number in range(count)]
        keys = [block.key for block in blocks]
        batches = range(0, count, store.blocks_at_once)
        times: dict[str, list[float]] = {"write": [], "read": [], "ask": []}
        for _ in range(repeats):
            for what in ("write", "read"):
                start = time.perf_counter()
                for at in batches:
                    if what == "write":
                        store.write(blocks[at : at + store.blocks_at_once])
                    else:
                        store.read(keys[at : at + store.blocks_at_once])
                times[what].append(count * kib * KIB / MB / (time.perf_counter() - start))
            start = time.perf_counter()
            store.holds(keys[:4])
            times["ask"].append((time.perf_counter() - start) * 1e3)
        store.remove(keys)
        rows.append(
            [
                f"{kib} KiB",
                spread(times["write"], ".0f"),
                spread(times["read"], ".0f"),
                spread(times["ask"]),
            ]
        )
    store.close()
    heads = ("object", "writing, MB/s", "reading, MB/s", "asking for 4, ms")
    return [f"One thread of {url.partition(':')[0]}:// on this machine.", "", *table(heads, rows)]


@contextmanager
def _host(folder: Path, shared: str | None, asked: argparse.Namespace) -> Iterator[RAGCacheEngine]:
    config = EngineConfig(
        model=asked.model or str(demo_model()),
        device_cache=asked.device_cache,
        host_cache=asked.host_cache,
        disk_cache=asked.disk_cache,
        disk_cache_dir=folder,
        shared_cache=shared,
        speculation="off",
        vllm_args={"dtype": asked.dtype, "max_model_len": 4096},
    )
    with RAGCacheEngine(config) as engine:
        yield engine


@contextmanager
def _own_redis() -> Iterator[str]:
    """Run a Redis server without a disk of its own."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise SystemExit("Install redis-server or valkey-server, or name a store with --store.")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    server = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""],
        stdout=subprocess.DEVNULL,
    )
    try:
        time.sleep(1.0)
        yield f"redis://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _parse() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--set", default="squad")
    parser.add_argument(
        "--traffic", nargs="+", choices=("natural", "zipf"), default=["natural", "zipf"]
    )
    parser.add_argument("--of", type=int, default=1000, help="questions that Zipf's are drawn from")
    parser.add_argument(
        "--before", type=int, default=400, help="questions before the host is replaced"
    )
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--store", help="the URL of a store; a Redis on this machine without it")
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device-cache", default="1GiB")
    parser.add_argument("--host-cache", default="1GiB")
    parser.add_argument("--disk-cache", default="4GiB")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--two-hosts", action="store_true")
    parser.add_argument("--clients", type=int, default=2, help="of each of two hosts, at a time")
    parser.add_argument("--speeds", action="store_true")
    parser.add_argument("--kib", type=int, nargs="+", default=[64, 256, 1024, 4096, 16384])
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
