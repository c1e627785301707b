"""What the docstrings of all that is public and the guides show runs as it stands, without a model."""

from __future__ import annotations

import ast
import asyncio
import doctest
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import GenericAlias, ModuleType
from typing import Any

import http_servers
import pytest

from ragcache_engine import EngineConfig, MemoryBackend, RAGCacheEngine

ROOT = Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))

NEEDED = {
    "agents": ["langchain.agents"],
    "any-client": ["openai"],
    "fastapi": ["fastapi"],
    "langgraph": ["langgraph.graph"],
    "observing": ["dash"],
}
"""What single guides import beside the frameworks."""

PUBLIC = (
    "ragcache_engine",
    "ragcache_engine.search",
    "ragcache_engine.knowledge",
    "ragcache_integrations.langchain",
    "ragcache_integrations.llamaindex",
)
SHOWS_CODE = {
    "ragcache_engine": {"RAGCacheEngine", "EngineConfig", "Document", "SamplingOptions", "Usage"},
    "ragcache_engine.search": {"stages", "astages"},
    "ragcache_engine.knowledge": {"KnowledgeTree"},
    "ragcache_integrations.langchain": {
        "ChatRAGCache",
        "FaissVectorStore",
        "RAGCacheLLM",
        "RAGCacheRetriever",
        "accelerate",
    },
    "ragcache_integrations.llamaindex": {"RAGCacheLLM", "RAGCacheRetriever", "accelerate"},
}
"""Those that must; whatever else shows code is run as well."""

FENCED = re.compile(
    r"^(?P<margin> *)```python\n(?P<code>.*?)^(?P=margin)```", re.DOTALL | re.MULTILINE
)
SHOWN_SERVER = "http://localhost:8000"
REAL_MODEL = re.compile(r'EngineConfig\((\s*)model="(?!any")[\w./-]+"')


def public_names(package: str) -> list[str]:
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        pytest.skip(f"{error.name} is not installed")
    return [name for name in module.__all__ if not name.startswith("_")]


def everything_public() -> Iterator[tuple[str, str]]:
    for package in PUBLIC:
        try:
            names = public_names(package)
        except pytest.skip.Exception:
            continue
        yield from ((package, name) for name in names)


def face() -> dict[str, Any]:
    """What a reader of the reference has imported: all that is public of the engine."""
    module = importlib.import_module("ragcache_engine")
    return {name: getattr(module, name) for name in module.__all__}


def doctests_of(package: str, name: str) -> list[doctest.DocTest]:
    shown = getattr(importlib.import_module(package), name)
    home = inspect.getmodule(shown)
    if not (inspect.isclass(shown) or inspect.isfunction(shown)) or home is None:
        return []
    if not home.__name__.startswith("ragcache"):
        return []
    finder = doctest.DocTestFinder(exclude_empty=True)
    globs = {**vars(home), **face(), **public_vars(package)}
    return [test for test in finder.find(shown, name, module=home, globs=globs) if test.examples]


def public_vars(package: str) -> dict[str, Any]:
    module = importlib.import_module(package)
    return {name: getattr(module, name) for name in module.__all__}


def fenced_code(text: str) -> list[str]:
    return [textwrap.dedent(found["code"]) for found in FENCED.finditer(text)]


def run_blocks(blocks: list[str], names: dict[str, Any]) -> dict[str, Any]:
    """One after the other, as in a notebook: `await` may stand outside of functions."""
    for block in blocks:
        # Without this file's `from __future__`, which makes annotations texts.
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(block, "shown", "exec", flags=flags, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, names))
        else:
            exec(code, names)
    return names


def docstrings_of(package: str, name: str) -> Iterator[str]:
    shown = getattr(importlib.import_module(package), name)
    yield inspect.getdoc(shown) or ""
    if inspect.isclass(shown):
        for member in vars(shown).values():
            member = getattr(member, "__func__", getattr(member, "fget", member))
            if inspect.isfunction(member):
                yield inspect.getdoc(member) or ""


@pytest.mark.parametrize(("package", "name"), everything_public())
def test_what_a_docstring_shows_is_so(package: str, name: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report: list[str] = []
    for test in doctests_of(package, name):
        runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)
    with RAGCacheEngine(EngineConfig(model="any", backend="memory")) as engine:
        for text in docstrings_of(package, name):
            run_blocks(fenced_code(text), {"engine": engine})


@pytest.mark.parametrize("package", PUBLIC)
def test_the_names_that_people_begin_with_show_code(package: str):
    names = public_names(package)
    assert set(names) >= SHOWS_CODE[package]
    for name in SHOWS_CODE[package]:
        assert doctests_of(package, name) or any(map(fenced_code, docstrings_of(package, name)))


@pytest.mark.parametrize("package", PUBLIC)
def test_everything_public_has_a_docstring(package: str):
    without = [name for name in public_names(package) if not _is_told(package, name)]
    assert without == []


def _is_told(package: str, name: str) -> bool:
    shown = getattr(importlib.import_module(package), name)
    if isinstance(shown, GenericAlias):  # a type's other name, which cannot carry a docstring
        return True
    return bool(inspect.getdoc(shown)) if callable(shown) or isinstance(shown, ModuleType) else True


@pytest.fixture
def old_store(tmp_path):
    """The folder of langchain_community that one of the guides moves over from."""
    community = pytest.importorskip("langchain_community.vectorstores")
    embeddings = importlib.import_module("langchain_core.embeddings")
    old = community.FAISS.from_texts(
        ["Old text."], embeddings.DeterministicFakeEmbedding(size=64), ids=["old"]
    )
    old.save_local(str(tmp_path / "old_store"))


@pytest.mark.parametrize(
    "page",
    ["agents", "costs", "getting-started", "langchain", "langgraph", "llamaindex", "workers"],
)
def test_a_script_that_starts_a_model_does_nothing_outside_its_guard(page: str):
    shown = fenced_code((ROOT / "docs" / "guides" / f"{page}.md").read_text(encoding="utf-8"))
    script = next(block for block in shown if REAL_MODEL.search(block))
    # vLLM's processes import the script again: what is not below the guard runs in each of them.
    *definitions, guarded = ast.parse(script).body
    assert isinstance(guarded, ast.If)
    assert ast.unparse(guarded.test) == "__name__ == '__main__'"
    harmless = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    assert all(isinstance(statement, harmless) for statement in definitions)


@pytest.fixture
def shown_server(tmp_path) -> Iterator[str]:
    """The address of a server without a model, with the keys that the guides show."""
    keys = tmp_path / "keys.toml"
    keys.write_text('[tenants]\nshop = ["the key of the shop"]\n')
    with http_servers.serve(MemoryBackend(), keys_file=keys) as server:
        yield server.url


@pytest.mark.parametrize("guide", [pytest.param(path, id=path.stem) for path in GUIDES])
def test_what_a_guide_shows_runs(guide: Path, old_store, shown_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for needed in ("faiss", "langchain_core", "llama_index.core", *NEEDED.get(guide.stem, ())):
        pytest.importorskip(needed)
    # A guide sets LlamaIndex's tokenizer; this puts it back afterwards.
    monkeypatch.setattr("llama_index.core.global_tokenizer", None)
    # The same code on the engine without a model; its answers are other ones, and it borrows nothing.
    monkeypatch.setattr(MemoryBackend, "borrows", True)
    blocks = [
        REAL_MODEL.sub(r'EngineConfig(\1backend="memory", model="any"', block).replace(
            SHOWN_SERVER, shown_server
        )
        for block in fenced_code(guide.read_text(encoding="utf-8"))
    ]
    names = run_blocks(blocks, {"__name__": "__main__"})
    if guide.stem == "langchain-store":
        store = names["FaissVectorStore"]
        assert names["store"].get_by_ids(["old"])[0].page_content == "Old text."
        assert store.load_local("my_store", names["embeddings"]).document_count == 3
        assert store.load_local("new_store", names["embeddings"]).document_count == 1


def test_every_file_in_the_picture_of_the_architecture_is_there():
    picture = (ROOT / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8")
    shown = " ".join(re.findall(r"<text[^>]*>([^<]*)<", picture))
    named = {name.rstrip("/") for name in re.findall(r"(?:\w+/)+\w*(?:\.py)?|\w+\.py", shown)}
    assert {"requests/runner.py", "speculation", "tiers/disk"} <= named
    sources = [f"/{path.relative_to(ROOT)}" for path in ROOT.glob("ragcache_*/**/*")]
    gone = {name for name in named if not any(path.endswith(f"/{name}") for path in sources)}
    assert gone == set()
