"""Ctrl-C: the terminal sends it to vLLM's processes too, and it is meant for the script alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("psutil")
pytest.importorskip("vllm")

pytestmark = [pytest.mark.vllm, pytest.mark.program]

ASKS_TWICE = """
import signal
import psutil
from ragcache_engine import Document, EngineConfig, RAGCacheEngine, SamplingOptions

if __name__ == "__main__":
    # As in a terminal: a shell starts what runs in the background with interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    engine = RAGCacheEngine(EngineConfig(
        model={model!r}, backend="vllm", device_cache="200MiB",
        vllm_args={{"max_model_len": 1024, "dtype": "float32"}},
    ))
    model = set(psutil.Process().children(recursive=True))
    document = Document("long", "Statements are executed one after another, from the top. " * 20)
    prompt, few = document.text + "Why?", SamplingOptions(max_tokens=8)
    answer = engine.generate(prompt, documents=[document], options=few)
    try:
        for number, _ in enumerate(engine.stream("Go on: ", options=SamplingOptions(max_tokens=900))):
            if number == 3:
                print("now", flush=True)
    except KeyboardInterrupt:
        print("interrupted")
    again = engine.generate(prompt, documents=[document], options=few)
    print("same answer", again.text == answer.text)
    print("from the cache", again.usage.cached.total > len(again.token_ids))
    print("same processes", model <= set(psutil.Process().children(recursive=True)))
    print("retried", engine.stats().retried)
    engine.close()
"""


def test_an_interrupted_answer_costs_neither_the_model_nor_its_cache(
    demo_model: str, tmp_path: Path
):
    script = tmp_path / "asks_twice.py"
    script.write_text(ASKS_TWICE.format(model=demo_model))
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as one:
        assert one.stdout
        try:
            assert one.stdout.readline() == "now\n"
            os.killpg(one.pid, signal.SIGINT)  # what a terminal does, and Jupyter
            out, log = one.communicate(timeout=300)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
    assert one.returncode == 0, log
    assert out.split("\n")[:-1] == [
        "interrupted",
        "same answer True",
        "from the cache True",
        "same processes True",
        "retried 0",
    ]
    assert "Traceback" not in log
