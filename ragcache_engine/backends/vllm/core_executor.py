"""Runs the model inside vLLM's core process on a CPU, where vLLM does so only on an accelerator.

vLLM's CPU build gives the worker a process of its own, whose environment tells OpenMP its cores. That
costs a second process at every start, a trip through shared memory at every step, and a core: the core
process waits for the worker without sleeping, so vLLM keeps one free for it. On two cores that is half
of the machine.

The core process itself may set what the environment would have said: its number of threads, and the
cores that they may use. `distributed_executor_backend` takes the class, see ParallelConfig.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from ragcache_engine.processes import end_on_interrupt

RESERVED = "VLLM_CPU_NUM_OF_RESERVED_CPU"


class CoreExecutor(UniProcExecutor):
    """vLLM's executor for one worker in the core's process, with the cores that vLLM would choose."""

    def _init_executor(self) -> None:
        use_cores(self.vllm_config)
        # A worker of vLLM's ends at Ctrl-C; its core process first loads the model to the end.
        with end_on_interrupt():
            super()._init_executor()


CORE_EXECUTOR = f"{CoreExecutor.__module__}.{CoreExecutor.__qualname__}"


def can_run_in_core(arguments: AsyncEngineArgs) -> bool:
    """Return whether these arguments mean a single worker on a CPU, which the user left to vLLM."""
    workers = (
        arguments.tensor_parallel_size,
        arguments.pipeline_parallel_size,
        arguments.data_parallel_size,
        arguments.nnodes,
    )
    return (
        current_platform.is_cpu()
        and arguments.distributed_executor_backend is None
        and all(count == 1 for count in workers)
    )


@contextmanager
def reserving_no_core_for_connector(config: VllmConfig) -> Iterator[None]:
    """Start vLLM without the core that its CPU build reserves for a connector's network.

    Our connector uses no network. CoreExecutor chooses for itself: this leaves it alone.
    """
    in_core = config.parallel_config.distributed_executor_backend in (CORE_EXECUTOR, CoreExecutor)
    if RESERVED in os.environ or in_core or not current_platform.is_cpu():
        yield
        return
    os.environ[RESERVED] = "1"
    try:
        yield
    finally:
        del os.environ[RESERVED]


def use_cores(config: VllmConfig) -> None:
    """Compute on one thread for each core that VLLM_CPU_OMP_THREADS_BIND allows; keep none free unasked.

    Call it before the process has computed anything: threads inherit the cores of the one that
    makes them.
    """
    os.environ.setdefault(RESERVED, "0")
    lists = OMPProcessManager(config).cpu_lists
    if not lists:
        return  # with "nobind" the user has chosen by other means
    # vLLM finds no core where a process may use none of the first NUMA node: then all that it may.
    cores = lists[0] or sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))
