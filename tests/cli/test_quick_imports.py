"""Garbage collection pauses while libraries are imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ragcache_cli.quick_imports import pausing_garbage_collection


@pytest.fixture(autouse=True)
def collection_as_before() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


def test_nothing_is_collected_in_the_block_and_all_goes_on_behind_it():
    gc.enable()
    with pausing_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_behind_a_failed_import():
    gc.enable()
    with pytest.raises(ModuleNotFoundError), pausing_garbage_collection():
        import no_such_module_at_all  # noqa: F401
    assert gc.isenabled()


def test_who_has_switched_it_off_keeps_it_off():
    gc.disable()
    with pausing_garbage_collection():
        assert not gc.isenabled()
    assert not gc.isenabled()
