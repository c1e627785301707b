"""Measure what it costs the answers to be watched: the dashboard with a viewer, against none.

    python benchmarks/observing.py                        # real vLLM, the demo's model: 10 minutes
    python benchmarks/observing.py --backend memory       # without a model: RAGCache's own time alone

What one look at the tree adds to a short answer, in many pairs; the processor time of watching an idle
engine, and of the page while questions are asked one at a time, with a viewer and without; and the time
of a slice of a look at a tree of 10,000 nodes. The viewer is a process that asks the page for all charts
as often as a browser does. Its own time is left out.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import psutil

from ragcache_engine import (
    Document,
    EngineConfig,
    MemoryBackend,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_engine.dashboard.engine_observer import LISTED_DOCUMENTS
from ragcache_engine.dashboard.page import CHARTS
from ragcache_engine.dashboard.serving import EVERY_S
from ragcache_engine.dashboard.tree_memory import BUSY_LOOK_S
from ragcache_engine.knowledge import POLICIES, KnowledgeTree, Segment, Tier
from ragcache_engine.tiers.tree_watch import TreeWatch

VIEWER_STARTS_S = 6.0
IDLE_S = 20.0
SPINS_S = 2.0
"""vLLM's worker spins for a second after each step."""

SHORT = SamplingOptions(max_tokens=16, ignore_eos=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--backend", choices=("vllm", "memory"), default="vllm")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--looks", type=int, default=200, help="pairs of answers, with a look and without"
    )
    parser.add_argument("--questions", type=int, default=0, help="a round (40, or 1,500 in memory)")
    parser.add_argument("--view", metavar="URL", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.view:
        view(parsed.view)
    print(f"one look at 10,000 nodes: {look_ms(10_000):.2f} ms a slice (median)")
    questions = parsed.questions or (40 if parsed.backend == "vllm" else 1_500)
    dice = random.Random(5)
    documents = [
        Document(f"doc-{n}", f"{n} facts about number {n}, and what follows from them. " * 12)
        for n in range(40)
    ]
    with start(parsed.backend) as engine:
        ask(engine, documents, dice, questions)  # the caches are warm, and all is compiled
        report_looks(engine, documents[0], parsed.looks)
        report_idle(engine)
        shares = []
        for number in range(parsed.rounds):
            seed = dice.randrange(10**9)
            taken_s: dict[bool, float] = {}
            here_s: dict[bool, float] = {}
            for is_watched in (False, True) if number % 2 else (True, False):
                with viewed(engine) if is_watched else nullcontext():
                    before_s = time.process_time()
                    taken_s[is_watched] = ask(engine, documents, random.Random(seed), questions)
                    here_s[is_watched] = time.process_time() - before_s
            shares.append((here_s[True] - here_s[False]) / taken_s[False])
    low, middle, high = statistics.quantiles(shares, n=4)
    print(f"of one core, the page took {middle:.2%} (quartiles {low:.2%} to {high:.2%})")


def start(backend: str) -> RAGCacheEngine:
    if backend == "memory":
        simulated = MemoryBackend(device_blocks=400, host_blocks=800)
        return RAGCacheEngine(EngineConfig(model="any", backend="memory"), backend=simulated)
    from ragcache_cli.models import demo_model

    settings = {"dtype": "float32", "max_model_len": 2048}
    config = EngineConfig(model=str(demo_model()), device_cache="200MiB", vllm_args=settings)
    return RAGCacheEngine(config)


def ask(
    engine: RAGCacheEngine, documents: list[Document], dice: random.Random, questions: int
) -> float:
    """Ask these questions, one at a time; return the seconds that all took."""
    weights = [1 / (rank + 1) for rank in range(len(documents))]
    asked = [list(dict.fromkeys(dice.choices(documents, weights, k=2))) for _ in range(questions)]
    began_s = time.perf_counter()
    for number, found in enumerate(asked):
        text = "\n\n".join([*(document.text for document in found), f"Question {number}?"])
        engine.generate(text, found, SHORT)
    return time.perf_counter() - began_s


@contextmanager
def viewed(engine: RAGCacheEngine) -> Iterator[None]:
    """A dashboard with one viewer, in a process of its own as a browser is."""
    with engine.dashboard() as dashboard:
        viewer = subprocess.Popen([sys.executable, __file__, "--view", dashboard.url])
        time.sleep(VIEWER_STARTS_S)
        try:
            yield
        finally:
            viewer.terminate()
            viewer.wait()


def view(url: str) -> None:
    """Ask the page for all that it shows, as often as a browser does, until this process is ended."""
    outputs = [("status", "children"), ("figures", "children"), ("request", "options")]
    outputs += [(name, "figure") for name in CHARTS]
    inputs = [("tick", "n_intervals", 1), ("request", "value", None)]
    body = {
        "output": "..{}..".format("...".join(".".join(each) for each in outputs)),
        "outputs": [{"id": name, "property": what} for name, what in outputs],
        "inputs": [{"id": name, "property": what, "value": it} for name, what, it in inputs],
        "changedPropIds": ["tick.n_intervals"],
    }
    headers = {"Content-Type": "application/json"}
    while True:
        request = urllib.request.Request(
            f"{url}_dash-update-component", json.dumps(body).encode(), headers
        )
        urllib.request.urlopen(request, timeout=60).read()
        time.sleep(EVERY_S)


def report_looks(engine: RAGCacheEngine, document: Document, pairs: int) -> None:
    """Say what one look adds to an answer whose document is cached, asked with a look and without."""
    prompt, seconds = f"{document.text}\n\nQuestion?", {False: 0.0, True: 0.0}
    added_ms = []
    for number in range(pairs):
        for has_look in (False, True) if number % 2 else (True, False):
            look = threading.Thread(target=engine.snapshot, args=(LISTED_DOCUMENTS,))
            began_s = time.perf_counter()
            if has_look:
                look.start()
            engine.generate(prompt, [document], SHORT)
            seconds[has_look] = time.perf_counter() - began_s
            if has_look:
                look.join()
        added_ms.append((seconds[True] - seconds[False]) * 1e3)
    low, middle, high = statistics.quantiles(added_ms, n=4)
    print(
        f"a look adds {middle:.1f} ms to an answer (quartiles {low:.1f} to {high:.1f}, {pairs} pairs)"
    )
    print(f"one every {BUSY_LOOK_S:.0f} s takes {middle / 1e3 / BUSY_LOOK_S:.2%} of the time")


def report_idle(engine: RAGCacheEngine) -> None:
    """Say how much of a core watching takes, where nothing else runs: a figure without others' noise."""
    shares = []
    for is_watched in (False, True):
        with viewed(engine) if is_watched else nullcontext():
            time.sleep(SPINS_S)
            before_s = cpu_s()
            time.sleep(IDLE_S)
            shares.append((cpu_s() - before_s) / IDLE_S)
    print(f"an idle engine takes {shares[0]:.2%} of a core alone, {shares[1]:.2%} watched")


def cpu_s() -> float:
    """Return the seconds of processor time of this process and of the model's, without the viewer."""
    this = psutil.Process()
    spent_s = sum(this.cpu_times()[:2])
    for child in this.children(recursive=True):
        if __file__ not in child.cmdline():
            spent_s += sum(child.cpu_times()[:2])
    return spent_s


def look_ms(nodes: int) -> float:
    """Return the milliseconds of one slice of a look over a tree of this many nodes."""
    tree = KnowledgeTree(dict.fromkeys(Tier, nodes * 10), POLICIES["lru"], block_tokens=16)
    grown = []
    for number in range(nodes):
        segment = Segment(f"d{number % (nodes // 2)}", 160, str(number).encode())
        node = tree.child(tree.root, segment)
        tree.pin([node])
        tree.hold(node, Tier.DEVICE, number % 10)
        grown.append(node)
    watch = TreeWatch(lambda: list(grown))
    times = []
    for _ in range(300):
        began_s = time.perf_counter()
        watch.look()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times) * 1e3


if __name__ == "__main__":
    main()
