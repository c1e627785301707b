"""Weights are identified by what they hold, wherever they lie and whatever their names and times say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub")

from ragcache_engine.backends.vllm.tiers import weights
from ragcache_engine.backends.vllm.tiers.weights import UnknownWeights, identify_weights

COMMIT = "0123456789" * 4
OTHER = "fedcba9876" * 4


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "weights.json"


def write_model(folder: Path, content: bytes = b"weights") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    (folder / "config.json").write_text("{}")
    return folder


def identify(model: Path | str, kept: Path, revision: str | None = None) -> str:
    return identify_weights(str(model), revision, None, kept)


def test_the_same_weights_in_two_places_are_the_same(tmp_path: Path, kept: Path):
    one, two = write_model(tmp_path / "one"), write_model(tmp_path / "two")
    assert identify(one, kept) == identify(two, kept)


def test_other_weights_of_the_same_size_and_time_are_others(tmp_path: Path, kept: Path):
    model = write_model(tmp_path / "model")
    before = identify(model, kept)
    times = (model / "model.safetensors").stat()
    (model / "model.safetensors").write_bytes(b"WEIGHTS")
    os.utime(model / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert identify(model, kept) != before


def test_a_file_is_read_once(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch):
    model = write_model(tmp_path / "model")
    first = identify(model, kept)
    monkeypatch.setattr(weights, "_digest", lambda file: pytest.fail("read again"))
    assert identify(model, kept) == first


@pytest.mark.parametrize("damage", ["", "[]", '{"a": 1', '{"a": ["b"]}'])
def test_damaged_digests_are_made_again(tmp_path: Path, kept: Path, damage: str):
    model = write_model(tmp_path / "model")
    first = identify(model, kept)
    kept.write_text(damage)
    assert identify(model, kept) == first


def test_digests_of_files_that_are_gone_are_not_kept(tmp_path: Path, kept: Path):
    gone = write_model(tmp_path / "gone")
    identify(gone, kept)
    (gone / "model.safetensors").unlink()
    identify(write_model(tmp_path / "there"), kept)
    assert "gone" not in kept.read_text()


def test_an_unwritable_place_for_digests_costs_time_alone(tmp_path: Path):
    (tmp_path / "file").write_text("")
    model = write_model(tmp_path / "model")
    assert identify(model, tmp_path / "file" / "weights.json").startswith("content ")


def test_a_downloaded_commit_is_known_by_its_name(tmp_path: Path, kept: Path):
    snapshot = write_model(tmp_path / "models--org--name" / "snapshots" / COMMIT)
    assert identify(snapshot, kept) == f"commit {COMMIT}"


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache, as huggingface_hub lays it out, with main and an older revision of one model."""
    repo = tmp_path / "hub" / "models--org--name"
    for commit in (COMMIT, OTHER):
        write_model(repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    (repo / "refs" / "old").write_text(OTHER)
    (repo / "blobs").mkdir()
    return tmp_path / "hub"


def test_a_hub_id_stands_for_the_commit_that_was_downloaded(downloads: Path, kept: Path):
    def find(revision: str | None) -> str:
        return identify_weights("org/name", revision, str(downloads), kept)

    assert find(None) == f"commit {COMMIT}"
    assert find("old") == f"commit {OTHER}"
    assert find(OTHER) == f"commit {OTHER}"


def test_new_weights_on_the_main_branch_are_others(downloads: Path, kept: Path):
    before = identify_weights("org/name", None, str(downloads), kept)
    (downloads / "models--org--name" / "refs" / "main").write_text(OTHER)
    assert identify_weights("org/name", None, str(downloads), kept) != before


def test_weights_that_cannot_be_told_are_refused_by_name(
    tmp_path: Path, downloads: Path, kept: Path
):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnknownWeights, match="no weights"):
        identify(tmp_path / "empty", kept)
    with pytest.raises(UnknownWeights, match="do not hold org/other"):
        identify_weights("org/other", None, str(downloads), kept)
    with pytest.raises(UnknownWeights, match="cannot be read"):
        identify_weights("org/name", None, str(tmp_path / "nowhere"), kept)
