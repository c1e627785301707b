"""Who may import whom (docs/design.md, layout), and how light the face is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ragcache_engine

ROOT = Path(ragcache_engine.__file__).parents[1]

HEAVY = {"torch", "vllm", "faiss", "numpy", "transformers", "langchain_core", "llama_index"}

# For each part: what of this project it may import. The first prefix that fits counts.
MAY_IMPORT = {
    "ragcache_engine.errors": [],
    "ragcache_engine.guide": [],
    "ragcache_engine.chat": ["chat", "guide", "errors"],
    "ragcache_engine.values": ["knowledge", "tiers.counters", "guide"],
    "ragcache_engine.config": ["knowledge"],
    "ragcache_engine.loop": [],
    "ragcache_engine.protocols": ["values", "tiers.counters", "chat"],
    "ragcache_engine.streams": ["values"],
    "ragcache_engine.knowledge": ["knowledge"],
    "ragcache_engine.prompt": ["prompt", "values"],
    "ragcache_engine.processes": [],
    "ragcache_engine.warming": ["prompt", "values", "errors"],
    "ragcache_engine.document_order": ["knowledge", "values"],
    "ragcache_engine.tiers": ["tiers", "knowledge", "processes"],
    "ragcache_engine.simulation": [
        "simulation",
        "tiers",
        "knowledge",
        "document_order",
        "values",
    ],
    "ragcache_engine.backends.choice": ["backends", "config", "protocols", "errors"],
    "ragcache_engine.speculation": ["speculation", "prompt", "protocols", "values", "errors"],
    "ragcache_engine.backends": [
        "backends",
        "chat",
        "guide",
        "protocols",
        "simulation",
        "values",
        "errors",
        "knowledge",
        "tiers",
        "processes",
    ],
    "ragcache_engine.search": ["search", "errors"],
    "ragcache_engine.retry": ["protocols", "values", "errors"],
    "ragcache_engine.engine": [""],
    "ragcache_engine": [""],
}


def modules(package: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(node.module or "")
    return names


def allowed_for(module: str) -> list[str]:
    best = max((part for part in MAY_IMPORT if f"{module}.".startswith(f"{part}.")), key=len)
    return [f"ragcache_engine.{name}" if name else "ragcache_engine" for name in MAY_IMPORT[best]]


@pytest.mark.parametrize(
    "package", ["ragcache_engine", "ragcache_integrations.langchain", "ragcache_cli.main"]
)
def test_importing_it_loads_nothing_heavy(package: str):
    if package == "ragcache_integrations.langchain":
        pytest.importorskip("langchain_core")
    heavy = HEAVY - {"langchain_core", "numpy"} if "langchain" in package else HEAVY
    script = f"import sys, {package}; print(*sorted(set(sys.modules) & {heavy!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(("module", "path"), modules("ragcache_engine"))
def test_inside_the_engine_imports_point_one_way(module: str, path: Path):
    ours = {name for name in imports_of(path) if name.startswith("ragcache")}
    allowed = allowed_for(module)
    strays = {
        name for name in ours if not any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed)
    }
    assert not strays


@pytest.mark.parametrize(("module", "path"), modules("ragcache_engine"))
def test_vllm_and_torch_stay_in_their_backend(module: str, path: Path):
    tops = {name.split(".")[0] for name in imports_of(path)}
    if not module.startswith("ragcache_engine.backends.vllm"):
        assert not tops & {"torch", "vllm", "transformers"}
    if not module.startswith("ragcache_engine.search"):
        assert not tops & {"faiss"}
    assert not tops & {"langchain_core", "llama_index", "ragcache_integrations", "ragcache_cli"}


@pytest.mark.parametrize(("module", "path"), modules("ragcache_integrations"))
def test_integrations_know_only_the_face_of_the_engine(module: str, path: Path):
    ours = {name for name in imports_of(path) if name.startswith(("ragcache", "vllm", "torch"))}
    other = (
        "llamaindex" if ".langchain" in module else "langchain" if ".llamaindex" in module else "-"
    )
    face = {"ragcache_engine", "ragcache_engine.search"}
    assert all(name in face or "ragcache_integrations" in name for name in ours)
    assert not [name for name in ours if other in name]


@pytest.mark.parametrize(("module", "path"), modules("ragcache_engine"))
def test_the_core_of_decisions_needs_only_the_standard_library(module: str, path: Path):
    core = (
        "ragcache_engine.knowledge",
        "ragcache_engine.prompt",
        "ragcache_engine.tiers",
        "ragcache_engine.simulation",
    )
    if module.startswith(core):
        tops = {name.split(".")[0] for name in imports_of(path)} - {"ragcache_engine"}
        assert tops <= set(sys.stdlib_module_names) | {"__future__"}
