"""What the guide and the docstring show, as it stands there."""

import ast
import asyncio
import inspect
import re
import textwrap
from pathlib import Path

from langchain_community.vectorstores import FAISS
from langchain_core.embeddings import DeterministicFakeEmbedding

from ragcache_integrations.langchain import FaissVectorStore

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "langchain-store.md"


def run_examples(text):
    """Run the Python blocks one after the other, and return what they leave."""
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        code = compile(block, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, names))
        else:
            exec(code, names)
    return names


def test_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old = FAISS.from_texts(["Old text."], DeterministicFakeEmbedding(size=64), ids=["old"])
    old.save_local("old_store")
    names = run_examples(GUIDE.read_text(encoding="utf-8"))
    assert names["store"].get_by_ids(["old"])[0].page_content == "Old text."
    assert FaissVectorStore.load_local("my_store", names["embeddings"]).document_count == 3
    assert FaissVectorStore.load_local("new_store", names["embeddings"]).document_count == 1


def test_the_docstring_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_examples(textwrap.dedent(inspect.getdoc(FaissVectorStore)).replace("\n    ", "\n"))
    assert [document.id for document in names["store"].similarity_search("tide")] == ["tides"]
