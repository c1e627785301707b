from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from ragcache_engine.backends.vllm.collection import importing_vllm


class Ring:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.next = self


@pytest.fixture(autouse=True)
def before_vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has not imported vLLM, and whose objects are all looked at again afterwards."""
    monkeypatch.delitem(sys.modules, "vllm.v1.engine.async_llm", raising=False)
    frozen = gc.get_freeze_count()
    yield
    if not frozen:
        gc.unfreeze()


def test_nothing_is_collected_during_the_import_and_all_of_it_is_left_out_later():
    left_out = gc.get_freeze_count()
    with importing_vllm():
        assert not gc.isenabled()
        imported = [[number] for number in range(10_000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= left_out + len(imported)


def test_what_the_application_had_dropped_is_freed_first():
    ring = Ring()
    alive = weakref.ref(ring)
    del ring
    with importing_vllm():
        assert alive() is None


def test_a_failed_import_leaves_the_collector_as_it_was():
    left_out = gc.get_freeze_count()
    with pytest.raises(ImportError), importing_vllm():
        raise ImportError("no torch")
    assert gc.isenabled()
    assert gc.get_freeze_count() <= left_out


def test_a_collector_that_the_application_has_switched_off_stays_off():
    gc.disable()
    try:
        with importing_vllm():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_where_vllm_was_imported_before_nothing_changes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.async_llm", sys)
    left_out = gc.get_freeze_count()
    with importing_vllm():
        assert gc.isenabled()
    assert gc.get_freeze_count() <= left_out
