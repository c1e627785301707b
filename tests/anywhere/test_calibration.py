"""reuse="anywhere" takes its ratio from a measurement; without one it says how to get it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ragcache_engine import (
    CannotBorrow,
    EngineConfig,
    MemoryBackend,
    RAGCacheEngine,
    UnusableCalibration,
)
from ragcache_engine.anywhere.calibration import Calibration, CalibrationKey, find_calibration
from ragcache_engine.backends.choice import budget_of


@pytest.fixture(autouse=True)
def _a_home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path / "home"))


def anywhere(**settings: Any) -> EngineConfig:
    return EngineConfig(model="org/model", reuse="anywhere", **settings)


def measured(config: EngineConfig, ratio: float = 0.15) -> Calibration:
    return Calibration(CalibrationKey.of(config), ratio, 0.97, 0.96, 0.98, 0.95, 50, "2026-11-23")


def keep(calibration: Calibration) -> Path:
    path = calibration.key.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(calibration.to_json())
    return path


def test_a_calibration_survives_its_file():
    calibration = measured(anywhere())
    assert Calibration.from_json(calibration.to_json()) == calibration
    assert calibration.least_rouge_l == pytest.approx(0.95 * 0.98)


def test_where_right_answers_decided_drift_is_told_from_the_likeness_that_was_measured():
    by_accuracy = replace(measured(anywhere()), lower_bound=0.7, right=0.61, exact_right=0.62)
    assert Calibration.from_json(by_accuracy.to_json()) == by_accuracy
    assert by_accuracy.least_rouge_l == pytest.approx(0.95 * 0.98 * 0.7)
    with pytest.raises(ValueError, match="exact_right is no number"):
        replace(by_accuracy, exact_right=None)


def test_an_engine_takes_the_ratio_that_was_measured_for_it():
    keep(measured(anywhere()))
    with RAGCacheEngine(anywhere(), backend=MemoryBackend(recompute_ratio=0.0)) as engine:
        assert engine.config.recompute_ratio == 0.15
    assert budget_of(anywhere()).recompute_ratio == 0.15


def test_a_ratio_by_hand_needs_no_calibration():
    assert find_calibration(anywhere(recompute_ratio=0.0)) is None
    assert budget_of(anywhere(recompute_ratio=0.0)).recompute_ratio == 0.0


def test_prefix_reuse_needs_none_and_borrows_nothing():
    assert budget_of(EngineConfig(model="org/model")).recompute_ratio is None


def test_without_a_calibration_a_tenth_is_computed_and_one_line_says_how_to_measure(
    caplog: pytest.LogCaptureFixture,
):
    with RAGCacheEngine(anywhere(), backend=MemoryBackend(recompute_ratio=0.0)) as engine:
        assert engine.config.recompute_ratio == 0.1
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "ragcache calibrate org/model" in line
    assert "recompute_ratio=" in line


def test_a_server_without_a_calibration_computes_a_tenth():
    assert budget_of(anywhere()).recompute_ratio == 0.1


def test_with_any_donors_nothing_can_be_measured(caplog: pytest.LogCaptureFixture):
    config = anywhere(donors="any")
    with RAGCacheEngine(config, backend=MemoryBackend(recompute_ratio=0.0)) as engine:
        assert engine.config.recompute_ratio == 0.1
    assert "calibrate" not in caplog.text
    assert "look at your own answers" in caplog.text


@pytest.mark.parametrize(
    "other",
    [{"vllm_args": {"dtype": "float32"}}, {"donors": "alone"}, {"chat_template": "{{ messages }}"}],
)
def test_a_calibration_holds_for_one_dtype_template_and_kind_of_donors(
    other: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    keep(measured(anywhere(**other)))
    with RAGCacheEngine(anywhere(), backend=MemoryBackend(recompute_ratio=0.0)) as engine:
        assert engine.config.recompute_ratio == 0.1
    assert "there is one for model 'org/model'" in caplog.text


def test_two_spellings_of_a_dtype_and_of_a_folder_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    one = EngineConfig(model="./model", vllm_args={"dtype": "half"})
    other = EngineConfig(model=str(tmp_path / "model"), vllm_args={"dtype": "float16"})
    assert CalibrationKey.of(one).path == CalibrationKey.of(other).path


def test_a_calibration_of_another_model_is_refused():
    path = CalibrationKey.of(anywhere()).path
    other = EngineConfig(model="org/other", reuse="anywhere")
    keep(replace(measured(other)))
    path.write_text(CalibrationKey.of(other).path.read_text())
    with pytest.raises(UnusableCalibration, match="is for model 'org/other'"):
        RAGCacheEngine(anywhere(), backend=MemoryBackend(recompute_ratio=0.0))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "nothing",
        '{"format": "ragcache-calibration"}',
        '{"format": "ragcache-calibration", "version": 1}',
        '{"format": "ragcache-calibration", "version": 1, "key": 3}',
    ],
)
def test_a_damaged_file_is_refused(text: str):
    keep(measured(anywhere())).write_text(text)
    with pytest.raises(UnusableCalibration, match="damaged"):
        RAGCacheEngine(anywhere(), backend=MemoryBackend(recompute_ratio=0.0))


@pytest.mark.parametrize("wrong", ["2.0", "true", '"0.1"', "NaN", "null"])
def test_a_ratio_that_no_measurement_gives_is_refused(wrong: str):
    path = keep(measured(anywhere()))
    text = path.read_text().replace('"recompute_ratio": 0.15', f'"recompute_ratio": {wrong}')
    path.write_text(text)
    with pytest.raises(UnusableCalibration, match="recompute_ratio"):
        RAGCacheEngine(anywhere(), backend=MemoryBackend(recompute_ratio=0.0))


def test_a_file_that_cannot_be_read_is_refused():
    path = CalibrationKey.of(anywhere()).path
    path.mkdir(parents=True)
    with pytest.raises(UnusableCalibration, match="cannot be read"):
        RAGCacheEngine(anywhere(), backend=MemoryBackend(recompute_ratio=0.0))


def test_a_ratio_without_borrowing_is_a_mistake():
    with pytest.raises(ValidationError, match='set reuse="anywhere" as well'):
        EngineConfig(model="org/model", recompute_ratio=0.1)


def test_a_backend_that_cannot_borrow_is_refused():
    config = EngineConfig(backend="memory", reuse="anywhere", recompute_ratio=0.1)
    with pytest.raises(CannotBorrow, match='set reuse="prefix"'):
        RAGCacheEngine(config, backend=MemoryBackend())
    with RAGCacheEngine(config, backend=MemoryBackend(recompute_ratio=0.1)) as engine:
        assert engine.config.recompute_ratio == 0.1


def test_the_engine_without_a_model_takes_a_ratio_like_any_other():
    with RAGCacheEngine(EngineConfig(backend="memory", reuse="anywhere")) as engine:
        assert engine.config.recompute_ratio == 0.1


@pytest.mark.parametrize(
    "changed",
    [
        {"revision": "v2"},
        {"quantization": "fp8"},
        {"hf_overrides": {"rope_theta": 5}},
        {"kv_cache_dtype": "fp8"},
    ],
)
def test_a_model_that_computes_other_numbers_has_a_calibration_of_its_own(changed: dict[str, Any]):
    keep(measured(anywhere()))
    assert find_calibration(anywhere(vllm_args=changed)) is None
    keep(measured(anywhere(vllm_args=changed), ratio=0.3))
    found = find_calibration(anywhere(vllm_args=changed))
    assert found
    assert found.recompute_ratio == 0.3
    kept = find_calibration(anywhere())
    assert kept
    assert kept.recompute_ratio == 0.15


def test_arguments_that_change_nothing_need_no_other_calibration():
    keep(measured(anywhere()))
    same = {"revision": None, "hf_overrides": {}, "kv_cache_dtype": "auto", "max_model_len": 4096}
    assert find_calibration(anywhere(vllm_args=same))


def test_a_calibration_of_an_earlier_version_still_holds():
    path = keep(measured(anywhere()))
    content = json.loads(path.read_text())
    del content["key"]["model_args"], content["right"], content["exact_right"]
    path.write_text(json.dumps(content))
    assert find_calibration(anywhere())
