"""Settings are refused where they are born, with a word on what to change."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from ragcache_engine import EngineConfig, RAGCacheEngine, SamplingOptions
from ragcache_engine.knowledge import CostProfile


def test_sizes_are_written_as_people_write_them():
    assert EngineConfig(model="m", device_cache="2GiB").device_cache == 2 << 30


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": ""},
        {"device_cache": "0GiB"},
        {"device_cache": "lots"},
        {"backend": "sglang"},
        {"request_timeout_s": 0},
        {"devise_cache": "1GiB"},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, object]):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        EngineConfig.model_validate({"model": "m", **wrong})


def test_an_engine_without_a_model_needs_no_models_name():
    config = EngineConfig(backend="memory")
    with RAGCacheEngine(config) as engine:
        assert engine.generate("Why?").text == "You asked: Why?"
    assert EngineConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize("given", [{}, {"backend": "auto"}, {"backend": "vllm"}])
def test_every_other_engine_says_that_its_model_is_missing(given: dict[str, object]):
    with pytest.raises(ValidationError, match=r"model is missing: give a hub id.*or a folder"):
        EngineConfig.model_validate(given)


def test_a_cost_profile_is_read_when_it_is_named(tmp_path: Path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(CostProfile.default().to_json())
    bad.write_text("{}")
    assert EngineConfig(model="m", cost_profile=good).cost_profile == good
    for wrong in (bad, tmp_path / "missing.json"):
        with pytest.raises(ValidationError, match=r"ragcache profile|No such file"):
            EngineConfig(model="m", cost_profile=wrong)


def test_a_configuration_does_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        EngineConfig(model="m").model = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"stop": "a string"}, "sequence"),
        ({"stop": ("",)}, "empty stop string"),
    ],
)
def test_sampling_options_that_cannot_work_are_refused(wrong: dict[str, object], word: str):
    with pytest.raises(ValueError, match=word):
        SamplingOptions(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("donors", "alone"),
        ("recheck_share", 0.5),
        ("recompute_ratio", 0.1),
        ("missing_donors", "compute"),
        ("donor_dtype", "int8"),
    ],
)
def test_what_exact_reuse_would_ignore_is_refused(name: str, value: object):
    with pytest.raises(ValidationError, match=f"{name}.*anywhere"):
        EngineConfig.model_validate({"backend": "memory", name: value})


def test_what_served_prompts_lend_is_kept_as_it_is():
    with pytest.raises(ValidationError, match=r"donor_dtype.*any"):
        EngineConfig(backend="memory", reuse="anywhere", donors="any", donor_dtype="int8")


def test_a_shared_cache_stands_below_a_disk_cache():
    config = EngineConfig(model="m", disk_cache="1GiB", shared_cache="redis://host:6379?ttl=1d")
    assert config.shared_cache == "redis://host:6379?ttl=1d"
    with pytest.raises(ValidationError, match="give disk_cache a size"):
        EngineConfig(model="m", shared_cache="redis://host:6379")


@pytest.mark.parametrize(
    "url", ["redis://:s3cret@host", "https://host/s3cret", "redis://host?ttl=s3cret"]
)
def test_a_shared_cache_that_cannot_be_used_is_refused_without_showing_it(url: str):
    with pytest.raises(ValidationError) as raised:
        EngineConfig(model="m", disk_cache="1GiB", shared_cache=url)
    assert "s3cret" not in str(raised.value)
