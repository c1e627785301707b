"""benchmarks/changing_*.py: a few seconds of documents that change while eight threads ask about them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ragcache_engine import Document, EngineConfig, RAGCacheEngine

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NEEDED = {"langchain": "langchain_core", "llamaindex": "llama_index.vector_stores.faiss"}


@pytest.mark.parametrize("framework", NEEDED)
def test_answers_are_those_of_a_quiet_index_and_what_is_forgotten_is_gone(framework: str):
    pytest.importorskip("faiss")
    pytest.importorskip(NEEDED[framework])
    done = subprocess.run(
        [
            *(sys.executable, str(BENCHMARKS / f"changing_{framework}.py")),
            *("--minutes", "0.05", "--change-every", "0.05"),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS.parent)},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    counted = dict(re.findall(r"(query|insert|refresh|delete) ([\d,]+)", done.stdout))
    assert all(int(number.replace(",", "")) > 0 for number in counted.values()), done.stdout
    assert len(counted) == 4
    forgotten = re.search(r"left in a tier: 0 of (\d+)", done.stdout)
    assert forgotten
    assert int(forgotten[1]) > 0


def test_a_document_that_was_not_forgotten_is_seen_in_the_tiers():
    from changing.callers import Gone
    from changing.program import is_left

    before, text = "The first one. " * 20, "The second one. " * 20
    gone = Gone(f"{before}\n\n", text, ("second",))
    with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        documents = [Document("first", before), Document("second", text)]
        engine.generate(f"{before}\n\n{text}\n\nWhy?", documents)
        engine.forget(["second"])
        assert not is_left(engine, gone)
        engine.generate(f"{before}\n\n{text}\n\nWhy?", documents)
        assert is_left(engine, gone)
