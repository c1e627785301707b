"""Tells which optional extras of this package are installed, from the metadata of packages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution, requires

DISTRIBUTION = "ragcache-integrations"

EXTRAS = {
    "langchain": "the classes that replace LangChain's",
    "llamaindex": "the classes that replace LlamaIndex's",
    "client": "an engine whose model is in a server",
    "fleet": "many servers behind one door",
    "shared": "a store that several hosts share",
    "encryption": "an encrypted disk cache",
    "index": "a Faiss index for other processes",
    "dashboard": "the live page",
    "demo": "the small models and plots of ragcache demo and ask",
}
"""What each extra of users is for. vLLM is looked for elsewhere: one of its two packages is enough."""

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+).*;\s*extra\s*==\s*['\"](?P<extra>[\w-]+)['\"]$")


def missing_packages() -> dict[str, tuple[str, ...]]:
    """Return what is not installed of each of EXTRAS; nothing if this package itself is not installed."""
    try:
        required = packages_by_extra(requires(DISTRIBUTION) or ())
    except PackageNotFoundError:
        return {}
    return {
        extra: tuple(name for name in required[extra] if not _is_installed(name))
        for extra in EXTRAS
        if extra in required
    }


def packages_by_extra(requirements: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return the packages that each extra asks for on every machine."""
    found: dict[str, list[str]] = {}
    for requirement in requirements:
        if match := _REQUIREMENT.match(requirement):
            found.setdefault(match["extra"], []).append(match["name"])
    return found


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
