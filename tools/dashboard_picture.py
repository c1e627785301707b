"""Takes the dashboard's picture for the docs, in a real browser.

    python tools/dashboard_picture.py docs/images/dashboard.png         # real vLLM, the demo model
    python tools/dashboard_picture.py docs/images/dashboard.png memory  # no model

It needs Chromium on the PATH, and the extras dashboard, demo and dev. Two threads ask about Python's
topics, whose popularity falls as 1/rank.
"""

from __future__ import annotations

import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

from ragcache_cli.models import demo_model
from ragcache_cli.python_topics import python_topics
from ragcache_engine import (
    Document,
    EngineConfig,
    MemoryBackend,
    RAGCacheEngine,
    SamplingOptions,
)

PROMPT = "Answer from these texts.\n\n{context}\n\nQuestion: {question}\nAnswer:"
ASKING_S = {"vllm": 200, "memory": 60}
SHORT = SamplingOptions(max_tokens=12)


def main() -> None:
    path, backend = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "vllm"
    (source,) = python_topics()
    topics = [Document(s.id or s.title, s.text[:2400]) for s in source.read() if len(s.text) > 800]
    random.Random(3).shuffle(topics)
    with (
        TemporaryDirectory() as folder,
        start(backend, folder) as engine,
        engine.dashboard() as dashboard,
        asking(engine, topics[:60]),
    ):
        take_picture(dashboard.url, path, ASKING_S[backend])


def start(backend: str, folder: str) -> RAGCacheEngine:
    """Start an engine whose tiers are too small for all documents."""
    if backend == "memory":
        simulated = MemoryBackend(device_blocks=300, host_blocks=700, disk_blocks=6000)
        config = EngineConfig(model="a simulated device", backend="memory", speculation="on")
        return RAGCacheEngine(config, backend=simulated)
    return RAGCacheEngine(
        EngineConfig(
            model=str(demo_model()),
            device_cache="224MiB",
            host_cache="256MiB",
            disk_cache="2GiB",
            disk_cache_dir=Path(folder),
            speculation="on",
            vllm_args={"dtype": "float32", "max_model_len": 4096},
        )
    )


@contextmanager
def asking(engine: RAGCacheEngine, topics: list[Document]) -> Iterator[None]:
    """Two threads ask until the block ends."""
    has_ended = threading.Event()

    def ask(seed: int) -> None:
        numbers = random.Random(seed)
        weights = [1 / (rank + 1) for rank in range(len(topics))]
        while not has_ended.is_set():
            chosen = dict.fromkeys(numbers.choices(topics, weights, k=3))
            ask_about(engine, list(chosen), f"What is said about {next(iter(chosen)).id}?", numbers)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        has_ended.set()
        for thread in threads:
            thread.join()


def ask_about(
    engine: RAGCacheEngine, found: list[Document], question: str, numbers: random.Random
) -> None:
    """Ask one question, after a search of a few tenths of a second in two stages."""
    with engine.retrieval(question, template=PROMPT) as search:
        let_pass(engine, 0.1)
        search.provisional(found if numbers.random() < 0.7 else found[:1])
        let_pass(engine, 0.2)
        search.found(found)
    context = "\n\n".join(document.text for document in found)
    engine.generate(PROMPT.format(context=context, question=question), options=SHORT)


def let_pass(engine: RAGCacheEngine, seconds: float) -> None:
    """Let time pass, on the clock of a simulated device too."""
    time.sleep(seconds)
    if isinstance(backend := engine._runtime.backend, MemoryBackend):
        backend.advance(seconds)


def take_picture(url: str, path: Path, asking_s: float) -> None:
    """Open the page, wait, and write what it shows."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1400, "height": 1260})
        page.goto(url)
        page.wait_for_timeout(asking_s * 1000)
        page.screenshot(path=path, full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
