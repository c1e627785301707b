"""On a CPU the model runs in vLLM's core process, on the cores that vLLM would choose and none less."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import psutil
import pytest

from ragcache_engine import RAGCacheEngine

pytest.importorskip("vllm")

import torch
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from ragcache_engine.backends.vllm import core_executor
from ragcache_engine.backends.vllm.arguments import GIB, build_vllm_config
from ragcache_engine.backends.vllm.budget import TierBudget
from ragcache_engine.backends.vllm.core_executor import (
    CORE_EXECUTOR,
    RESERVED,
    CoreExecutor,
    can_run_in_core,
    reserving_no_core_for_connector,
)

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not current_platform.is_cpu(), reason="only a CPU needs another executor"),
]

NO_TIERS = TierBudget(policy="lru")


def executor_of(model: str, arguments: dict[str, Any]) -> Any:
    config = build_vllm_config(model, GIB, NO_TIERS, arguments)
    return config.parallel_config.distributed_executor_backend


def test_one_worker_runs_in_the_core(demo_model: str):
    assert executor_of(demo_model, {}) == CORE_EXECUTOR


def test_vllm_finds_the_executor_by_its_name(demo_model: str):
    config = build_vllm_config(demo_model, GIB, NO_TIERS, {})
    assert Executor.get_class(config) is CoreExecutor
    assert issubclass(CoreExecutor, UniProcExecutor)


def test_what_the_user_chose_stays(demo_model: str):
    assert executor_of(demo_model, {"distributed_executor_backend": "mp"}) == "mp"


@pytest.mark.parametrize(
    "workers", ["tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "nnodes"]
)
def test_several_workers_stay_with_vllm(demo_model: str, workers: str):
    assert can_run_in_core(AsyncEngineArgs(model=demo_model))
    assert not can_run_in_core(AsyncEngineArgs(model=demo_model, **{workers: 2}))


def test_an_engine_is_one_process_of_vllm(vllm_engine: RAGCacheEngine):
    cores = [child for child in psutil.Process().children() if "EngineCore" in child.name()]
    # Stock vLLM may be up beside it, and its core has a worker.
    without_worker = [
        core for core in cores if not any("Worker" in child.name() for child in core.children())
    ]
    assert without_worker


def report_cores(model: str, environment: dict[str, str], told: Any) -> None:
    """Report how many threads a process computes on, and its cores. Runs in a process of its own."""
    os.environ.update(environment)
    import torch

    from ragcache_engine.backends.vllm.core_executor import use_cores

    use_cores(build_vllm_config(model, GIB, NO_TIERS, {}))
    told.put((torch.get_num_threads(), os.sched_getaffinity(0)))


def cores_with(model: str, **environment: str) -> tuple[int, set[int]]:
    context = multiprocessing.get_context("spawn")
    told = context.SimpleQueue()
    process = context.Process(target=report_cores, args=(model, environment, told))
    process.start()
    process.join()
    answer: tuple[int, set[int]] = told.get()
    return answer


def test_it_computes_on_the_cores_that_the_user_binds_it_to(demo_model: str):
    core = min(os.sched_getaffinity(0))
    bound = cores_with(demo_model, VLLM_CPU_OMP_THREADS_BIND=str(core))
    assert bound == (1, {core})


def test_it_keeps_as_many_cores_free_as_the_user_says_and_none_otherwise(
    demo_model: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(RESERVED, raising=False)
    threads, cores = cores_with(demo_model)
    assert threads == len(cores) >= 1
    if threads > 1:
        reserving = cores_with(demo_model, **{RESERVED: "1"})
        assert reserving[0] == threads - 1


def test_a_start_leaves_the_choice_of_cores_to_the_executor(
    demo_model: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(RESERVED, raising=False)
    with reserving_no_core_for_connector(build_vllm_config(demo_model, GIB, NO_TIERS, {})):
        threads, _ = cores_with(demo_model)
    assert threads == cores_with(demo_model)[0]


def test_a_worker_of_its_own_starts_with_one_core_less(
    demo_model: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(RESERVED, raising=False)
    own_worker = {"distributed_executor_backend": "mp"}
    with reserving_no_core_for_connector(build_vllm_config(demo_model, GIB, NO_TIERS, own_worker)):
        assert os.environ[RESERVED] == "1"
    assert RESERVED not in os.environ


def test_a_start_keeps_what_the_user_reserves(demo_model: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(RESERVED, "3")
    own_worker = {"distributed_executor_backend": "mp"}
    with reserving_no_core_for_connector(build_vllm_config(demo_model, GIB, NO_TIERS, own_worker)):
        assert os.environ[RESERVED] == "3"


def test_a_user_who_binds_nothing_is_left_alone(demo_model: str):
    _, cores = cores_with(demo_model, VLLM_CPU_OMP_THREADS_BIND="nobind")
    assert cores == os.sched_getaffinity(0)


def test_where_vllm_finds_no_core_all_allowed_ones_compute(
    demo_model: str, monkeypatch: pytest.MonkeyPatch
):
    class NoCores:
        def __init__(self, config: object) -> None:
            self.cpu_lists: list[list[int]] = [[]]

    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    monkeypatch.setattr(core_executor, "OMPProcessManager", NoCores)
    monkeypatch.setenv(RESERVED, "0")
    try:
        core_executor.use_cores(build_vllm_config(demo_model, GIB, NO_TIERS, {}))
        assert torch.get_num_threads() == len(cores)
        assert os.sched_getaffinity(0) == cores
    finally:
        torch.set_num_threads(threads)
