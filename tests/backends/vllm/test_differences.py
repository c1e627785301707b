"""What vLLM's versions do differently, and what of ours takes the place of vLLM's own."""

from __future__ import annotations

import inspect
from inspect import Parameter
from typing import Any

import pytest

pytest.importorskip("vllm")

from transformers import PreTrainedTokenizerBase
from vllm.renderers import hf

from ragcache_engine.backends.vllm import differences
from ragcache_engine.backends.vllm.borrowing.workers import BorrowingWorker
from ragcache_engine.backends.vllm.core_executor import CoreExecutor
from ragcache_engine.backends.vllm.tiers.connector import TierConnector
from ragcache_engine.backends.vllm.tiers.free_blocks import FreeBlocks
from ragcache_engine.backends.vllm.tiers.host_copy import HostCopyWorker, IdleWorker
from ragcache_engine.backends.vllm.tiers.no_tiers import NoTiers
from ragcache_engine.backends.vllm.tiers.offloading import TierOffloadingManager
from ragcache_engine.backends.vllm.tiers.scheduler import AsyncTierScheduler, TierScheduler
from ragcache_engine.backends.vllm.tiers.spec import TierSpec
from ragcache_engine.backends.vllm.tiers.waiting import WaitingQueue
from ragcache_engine.chat.messages import NO_TEMPLATE_ARGS

pytestmark = pytest.mark.vllm

OURS = [
    TierSpec,
    TierOffloadingManager,
    HostCopyWorker,
    IdleWorker,
    TierConnector,
    NoTiers,
    TierScheduler,
    AsyncTierScheduler,
    FreeBlocks,
    WaitingQueue,
    CoreExecutor,
    BorrowingWorker,
]
"""Every class that takes the place of one of vLLM's."""

ANY = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def test_no_argument_of_a_template_is_left_to_who_brings_its_variables():
    taken = {
        parameter.name
        for apply in (hf.safe_apply_chat_template, PreTrainedTokenizerBase.apply_chat_template)
        for parameter in inspect.signature(apply).parameters.values()
        if parameter.kind not in ANY
    }
    assert taken - {"self", "documents"} <= NO_TEMPLATE_ARGS


def test_the_error_of_a_missing_chat_template_is_the_one_that_vllm_raises():
    assert differences.ChatTemplateResolutionError is hf.ChatTemplateResolutionError


@pytest.mark.parametrize("ours", OURS, ids=lambda ours: ours.__name__)
def test_whatever_vllm_may_call_is_there(ours: type[Any]):
    assert not inspect.isabstract(ours), sorted(ours.__abstractmethods__)


def overridden() -> list[Any]:
    """Return each function of ours that overrides one of vLLM's, with that one."""
    found = []
    for ours in OURS:
        for name, value in vars(ours).items():
            if not inspect.isfunction(value) or name in ("__init__", "__new__"):
                continue
            for parent in ours.__mro__[1:]:
                if parent.__module__.startswith("vllm.") and name in vars(parent):
                    theirs = inspect.unwrap(getattr(parent, name))
                    found.append(pytest.param(value, theirs, id=f"{ours.__name__}.{name}"))
                    break
    return found


@pytest.mark.parametrize(("ours", "theirs"), overridden())
def test_what_we_override_takes_all_that_vllms_own_takes(ours: Any, theirs: Any):
    parameters = inspect.signature(ours).parameters
    takes_any = any(each.kind in ANY for each in parameters.values())
    missing = [
        name
        for name, each in inspect.signature(theirs).parameters.items()
        if name not in parameters and each.kind not in ANY
    ]
    assert takes_any or not missing, f"vLLM's has {', '.join(missing)} as well"
