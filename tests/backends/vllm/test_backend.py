"""Real vLLM: its tokens, its processes, and what happens when they die."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from innermost import innermost_backend

from ragcache_engine import (
    Document,
    EngineDied,
    RAGCacheEngine,
    SamplingOptions,
)

psutil = pytest.importorskip("psutil")
pytest.importorskip("vllm")

pytestmark = pytest.mark.vllm

PROMPTS = [
    "Plain words, and a number: 3.14159.",
    "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
    "Umlauts äöü, signs €, emoji 🙂🙂, and 漢字.",
    "   spaces   and\ttabs\n\n\nand lines   ",
]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_prompt_becomes_the_tokens_vllm_would_make_of_it(
    vllm_engine: RAGCacheEngine, prompt: str
):
    from transformers import AutoTokenizer

    ours = vllm_engine.tokenize(prompt)
    theirs = AutoTokenizer.from_pretrained(vllm_engine.config.model)(prompt)["input_ids"]
    assert list(ours.token_ids) == theirs
    assert len(ours.offsets) == len(theirs)
    assert {at for start, end in ours.offsets for at in range(start, end)} == set(
        range(len(prompt))
    )


def test_documents_begin_at_the_tokens_the_tokenizer_gives_them(vllm_engine: RAGCacheEngine):
    first = Document("first", "Statements are executed one after another, from the top.")
    second = Document("second", "Names are bound by assignment, and by import statements.")
    prompt = f"<|im_start|>user\n{first.text}\n\n{second.text}\n\nWhy?<|im_end|>\n"
    segments = vllm_engine._intake.prepare(prompt, [first, second], None, None).request.segments
    tokens = vllm_engine.tokenize(prompt).token_ids
    decode = vllm_engine._runtime.backend.detokenize
    texts = [decode(tokens[segment.start : segment.end]) for segment in segments]
    assert [segment.document_id for segment in segments] == [None, "first", "second", None]
    assert texts[1] == first.text
    assert texts[2] == f"\n\n{second.text}"


def test_a_cancelled_request_frees_its_blocks(vllm_engine: RAGCacheEngine):
    with vllm_engine.stream("Go on and on: " * 50, options=SamplingOptions(max_tokens=3000)) as s:
        next(s)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            vllm_engine.clear_cache()  # works only once nobody holds a block
            break
        except Exception:
            time.sleep(0.1)
    else:
        pytest.fail("the cancelled request still holds blocks after 30 s")


class Ring:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.next = self


def test_the_collector_stops_no_request_to_look_at_what_vllm_imported(vllm_engine: RAGCacheEngine):
    from ragcache_engine.backends.vllm.backend import exclude_imports_from_collection

    left_out, looked_at = gc.get_freeze_count(), len(gc.get_objects())
    assert left_out > 300_000
    ring = Ring()
    alive = weakref.ref(ring)
    exclude_imports_from_collection()  # another engine of the same process
    assert gc.get_freeze_count() <= left_out
    assert len(gc.get_objects()) > looked_at / 2
    del ring
    gc.collect()
    assert alive() is None, "what came after vLLM is collected as ever"


def children() -> list[psutil.Process]:
    return [
        p
        for p in psutil.Process().children(recursive=True)
        if "python" in p.name().lower() or "vllm" in p.name().lower()
    ]


@pytest.fixture
def second_engine(vllm_engine: RAGCacheEngine) -> Iterator[RAGCacheEngine]:
    """An engine that a test may kill."""
    config = vllm_engine.config.model_copy(
        update={"device_cache": 200 << 20, "vllm_args": {"max_model_len": 1024, "dtype": "float32"}}
    )
    with RAGCacheEngine(config) as engine:
        yield engine


def kill_the_model_of(engine: RAGCacheEngine, others: set[psutil.Process]) -> None:
    for process in set(children()) - others:
        process.send_signal(signal.SIGKILL)


def test_a_killed_model_comes_back_and_the_answer_has_no_gap(
    vllm_engine: RAGCacheEngine, request: pytest.FixtureRequest
):
    others = set(children())
    engine: RAGCacheEngine = request.getfixturevalue("second_engine")
    prompt, options = "Once upon a time", SamplingOptions(max_tokens=60)
    expected = engine.generate(prompt, options=options)
    dead = weakref.ref(innermost_backend(engine)._llm)

    async def killed_in_the_middle() -> str:
        text = ""
        pieces = 0
        async for piece in engine.astream(prompt, options=options):
            text += piece.text
            pieces += 1
            if pieces == 10:
                await asyncio.to_thread(kill_the_model_of, engine, others)
        return text

    assert asyncio.run(killed_in_the_middle()) == expected.text
    assert engine.stats().retried == 1
    assert dead() is None, "its tokenizers, threads and sockets are gone as well"
    assert vllm_engine.generate("Untouched", options=SamplingOptions(max_tokens=2)).token_ids


@pytest.mark.parametrize("is_noticed", [True, False], ids=["after", "before"])
def test_clearing_the_cache_of_a_killed_model_names_its_death_whether_vllm_has_noticed_it_or(
    vllm_engine: RAGCacheEngine, request: pytest.FixtureRequest, is_noticed: bool
):
    others = set(children())
    engine: RAGCacheEngine = request.getfixturevalue("second_engine")
    killed = set(children()) - others
    kill_the_model_of(engine, others)
    if is_noticed:
        psutil.wait_procs(killed)
        while not innermost_backend(engine)._llm.errored:
            time.sleep(0.1)
    with pytest.raises(EngineDied, match=r"ended by itself(.|\n)*vLLM's log, .*, says"):
        engine.clear_cache()
    again = engine.generate("And now?", options=SamplingOptions(max_tokens=2, ignore_eos=True))
    assert len(again.token_ids) == 2
    engine.clear_cache()


ENDLESS = """
import psutil, time
from ragcache_engine import EngineConfig, RAGCacheEngine, SamplingOptions

if __name__ == "__main__":
    engine = RAGCacheEngine(EngineConfig(
        model={model!r}, backend="vllm", device_cache="200MiB", vllm_args={{"max_model_len": 1024}}
    ))
    stream = engine.stream("To be left: " * 20, options=SamplingOptions(max_tokens=900))
    next(stream)
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    time.sleep(600)
"""


@pytest.mark.program
def test_a_process_that_is_killed_leaves_no_model_behind(demo_model: str, tmp_path: Path):
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS.format(model=demo_model))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout
        children = [psutil.Process(int(number)) for number in one.stdout.readline().split()]
        one.kill()
    assert len(children) >= 2
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


SCRIPT = """
import os, psutil, re
from pathlib import Path
from ragcache_engine import EngineClosed, EngineConfig, RAGCacheEngine, SamplingOptions

def children():
    return psutil.Process().children(recursive=True)

if __name__ == "__main__":
    engine = RAGCacheEngine(EngineConfig(
        model={model!r}, backend="vllm", device_cache="200MiB", vllm_args={{"max_model_len": 1024}}
    ))
    stream = engine.stream("To be left: " * 20, options=SamplingOptions(max_tokens=900))
    next(stream)
    maps = [Path(f"/proc/{{p.pid}}/maps").read_text() for p in [psutil.Process(), *children()]]
    used = set(re.findall("/dev/shm/([^ \\n]+)", "".join(maps)))
    Path({used!r}).write_text(" ".join(used))
    if {closes}:
        engine.close()
        try:
            list(stream)
        except EngineClosed:
            print("told")
        print("processes", len([p for p in children() if "tracker" not in " ".join(p.cmdline())]))
        print("shared memory", len(used & set(os.listdir("/dev/shm"))))
"""


@pytest.mark.program
@pytest.mark.parametrize("closes", [True, False], ids=["closes", "forgets to close"])
def test_a_script_leaves_nothing_behind_that_ends_with_work_in_flight_and(
    demo_model: str, tmp_path: Path, closes: bool
):
    script, used = tmp_path / "leaves.py", tmp_path / "used"
    script.write_text(SCRIPT.format(model=demo_model, closes=closes, used=str(used)))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("told\nprocesses 0\nshared memory 0\n" if closes else "")
    assert "Traceback" not in done.stderr
    assert used.read_text()
    assert not {*used.read_text().split()} & {*os.listdir("/dev/shm")}
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if str(script) in (p.info["cmdline"] or [])
    ]
