"""The notebooks of examples/, run in a kernel of their own, and as they are kept."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ("langchain", "llamaindex")
ANYWHERE = "anywhere"

ABSOLUTE_PATH = re.compile(r"(?<![\w.:/<~])/\w[\w.-]*/")

nbformat = pytest.importorskip("nbformat")


@pytest.fixture(scope="module")
def runner() -> Any:
    """tools/run_notebooks.py, by which `make notebooks` runs them."""
    for module in ("nbclient", "ipykernel", "matplotlib"):
        pytest.importorskip(module)
    spec = importlib.util.spec_from_file_location("nb", ROOT / "tools" / "run_notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(notebook: Any) -> str:
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    texts = [out.get("text", "") for out in outputs]
    tables = [out.get("data", {}).get("text/markdown", "") for out in outputs]
    return "\n".join([*texts, *tables])


def shown(notebook: Any) -> str:
    """All that a reader sees as text: sources, and outputs of every kind but pictures."""
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    data = [out.get("data", {}) for out in outputs]
    texts = [str(value) for each in data for kind, value in each.items() if "image" not in kind]
    sources = [cell.source for cell in notebook.cells]
    return "\n".join([*sources, *(out.get("text", "") for out in outputs), *texts])


def pictures(notebook: Any) -> int:
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    return sum("image/png" in out.get("data", {}) for out in outputs)


def cached_in_second_round(text: str) -> dict[str, int]:
    rows = re.findall(r"^\| (stock|RAGCache) \|.*\| (\d+) \|$", text, re.MULTILINE)
    return {side: int(tokens) for side, tokens in rows}


@pytest.mark.vllm
@pytest.mark.program
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_shows_what_it_claims(runner, demo_model, name, monkeypatch):
    for module in ("langchain_community", "llama_index.core", "sentence_transformers"):
        pytest.importorskip(module)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # What silences the command line's own progress bars; vLLM's divides by their time.
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    notebook = runner.executed(ROOT / "examples" / f"{name}.ipynb")
    text = printed(notebook)
    assert "Same answers: 10 of 10." in text
    cached = cached_in_second_round(text)
    assert cached["RAGCache"] > 500 > cached["stock"]
    assert pictures(notebook) == 2


@pytest.mark.vllm
@pytest.mark.program
@pytest.mark.timeout(900)
def test_the_notebook_on_any_position_borrows_and_tells_what_it_costs(
    runner, demo_model, monkeypatch
):
    for module in ("langchain_core", "sentence_transformers"):
        pytest.importorskip(module)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("SAMPLE_QUESTIONS", "2")
    text = printed(runner.executed(ROOT / "examples" / f"{ANYWHERE}.ipynb"))
    borrowed = list(map(int, re.findall(r"^\|.*\| (\d+) \| \d+ \|$", text, re.MULTILINE)))
    assert len(borrowed) == 4
    assert min(borrowed) > 300
    quality = dict(re.findall(r"^\| (\d\.\d\d) \| \d+\.\d\d \| (\d\.\d\d) \|$", text, re.MULTILINE))
    assert quality["1.00"] == "1.00"
    assert float(quality["0.00"]) < 1


def test_what_a_notebook_promises_is_in_what_is_kept():
    for name in NOTEBOOKS:
        notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
        assert "Same answers: 10 of 10." in printed(notebook)
        assert pictures(notebook) == 2
    notebook = nbformat.read(ROOT / "examples" / f"{ANYWHERE}.ipynb", as_version=4)
    assert "times sooner (median of 10)." in printed(notebook)
    assert pictures(notebook) == 1


@pytest.mark.parametrize("name", [*NOTEBOOKS, ANYWHERE])
def test_a_notebook_is_kept_with_its_outputs_and_without_the_machine(name):
    path = ROOT / "examples" / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    text = path.read_text(encoding="utf-8")
    for noise in ("iopub", "Traceback", '"stderr"', "shell."):
        assert noise not in text
    assert ABSOLUTE_PATH.findall(shown(notebook)) == []
