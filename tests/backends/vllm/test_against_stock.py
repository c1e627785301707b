"""A handful of answers against stock vLLM, from every tier and borrowed: what a new vLLM shows first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ragcache_engine import Answer, Document, EngineConfig, RAGCacheEngine, SamplingOptions

pytestmark = [pytest.mark.vllm, pytest.mark.program, pytest.mark.timeout(600)]

TOKENS = 8
CITIES = ["Arles", "Basle", "Cadiz", "Delft"]


def city(number: int) -> Document:
    founded = [f"In {1200 + 31 * number + year} it got gate {year}." for year in range(16)]
    return Document(CITIES[number], f"{CITIES[number]} lies by a river. {' '.join(founded)}")


def prompt_of(*places: int) -> tuple[str, list[Document]]:
    documents = [city(place) for place in places]
    texts = "\n\n".join(document.text for document in documents)
    return f"You answer from documents.\n\n{texts}\n\nQuestion: Which city?\nAnswer:", documents


ASKED = [prompt_of(0, 1), prompt_of(2, 3), prompt_of(1, 0), prompt_of(3, 0), prompt_of(0, 1)]


@pytest.fixture(scope="module")
def stock_tokens(stock_vllm: Any) -> list[tuple[int, ...]]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    outputs = stock_vllm.generate([prompt for prompt, _ in ASKED], params, use_tqdm=False)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def engine(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RAGCacheEngine]:
    """The device holds one prompt, the host two, the disk all."""
    folder: Path = tmp_path_factory.mktemp("kv")
    config = EngineConfig(
        model=demo_model,
        backend="vllm",
        device_cache="50MiB",
        host_cache="70MiB",
        disk_cache="400MiB",
        disk_cache_dir=folder,
        reuse="anywhere",
        recompute_ratio=0,
        missing_donors="compute",
        vllm_args={"dtype": "float32", "max_model_len": 1024},
    )
    with RAGCacheEngine(config) as engine:
        yield engine


def ask_all(engine: RAGCacheEngine, **how: Any) -> list[Answer]:
    options = SamplingOptions(max_tokens=TOKENS, ignore_eos=True)
    return [engine.generate(*asked, options, **how) for asked in ASKED]


def test_exact_answers_have_stocks_tokens_from_whatever_tier(
    engine: RAGCacheEngine, stock_tokens: list[tuple[int, ...]]
):
    for _ in range(2):
        answers = ask_all(engine, exact=True)
        assert [answer.token_ids for answer in answers] == stock_tokens
    cached = engine.stats().cached
    assert cached.host + cached.disk > 0, "or no tier was tried"


def test_borrowed_documents_of_which_all_is_computed_anew_give_stocks_tokens(
    engine: RAGCacheEngine, stock_tokens: list[tuple[int, ...]]
):
    answers = ask_all(engine, recompute_ratio=1)
    assert [answer.token_ids for answer in answers] == stock_tokens
    assert any(answer.usage.borrowed.total or answer.usage.recomputed_tokens for answer in answers)


def test_borrowing_all_gives_other_answers_or_nothing_was_borrowed(
    engine: RAGCacheEngine, stock_tokens: list[tuple[int, ...]]
):
    answers = ask_all(engine, recompute_ratio=0)
    assert sum(answer.usage.borrowed.total for answer in answers) > 0
    assert [answer.token_ids for answer in answers] != stock_tokens
