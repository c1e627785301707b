"""What the tests of vLLM's backend share: its real scheduler, around a model that computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ragcache_engine.backends.vllm.installed import installed_vllm


@pytest.fixture
def engine_with(demo_model: str) -> Iterator[Callable[..., Any]]:
    """Makes engines of benchmarks/without_model.py, of these sizes; they are closed after the test."""
    if installed_vllm() is None:
        pytest.skip("vLLM is not installed")
    from without_model import ModellessEngine

    from ragcache_engine.backends.vllm.tiers.scheduler import TierScheduler

    with ExitStack() as engines:

        def make(**sizes: Any) -> Any:
            sizes = {"device_blocks": 64, **sizes}
            engine = ModellessEngine(demo_model, scheduler=TierScheduler, **sizes)
            engines.callback(engine.close)
            return engine

        yield make
