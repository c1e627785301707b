"""Where an engine's tiers lie, as far as its settings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragcache_engine import EngineConfig
from ragcache_engine.backends.choice import budget_of


def test_the_disk_cache_lies_where_everything_of_ours_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    assert budget_of(EngineConfig(model="org/model")).folder() == tmp_path / "kv"


def test_a_folder_of_its_own_goes_before(tmp_path: Path):
    config = EngineConfig(model="org/model", disk_cache="1MiB", disk_cache_dir=tmp_path)
    assert budget_of(config).folder() == tmp_path
