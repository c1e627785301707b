"""ContextPilot (arXiv:2511.03475) as a step between retriever and prompt: it only reorders documents.

RAGCache does not install ContextPilot, because it puts a hook into every Python start. If it is
installed (`pip install contextpilot`), the full report compares it too. Its index does not hear what
vLLM evicts; that would need ContextPilot's HTTP server.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import Any

from ragcache_cli.bench.systems import STOCK, System

PACKAGE = "contextpilot"
CONTEXTPILOT = System(
    "contextpilot",
    "vLLM, ContextPilot",
    STOCK,
    {"prefix_caching": True},
    changes_prompt=True,
    documents_step="studies.contextpilot_order:make_step",
)
"""vLLM with its prefix cache, behind a step that reorders the documents of a prompt."""


def is_installed() -> bool:
    return find_spec(PACKAGE) is not None


def make_step() -> Any:
    """Make a runnable that puts documents into ContextPilot's order. Its index is empty at first."""
    from langchain_core.runnables import RunnableLambda

    pilot = import_module(PACKAGE).ContextPilot(use_gpu=False)
    one_at_a_time = Lock()  # its index mixes up the documents of calls that overlap

    def reorder(documents: list[Any]) -> list[Any]:
        by_text = {document.page_content: document for document in documents}
        with one_at_a_time:
            (order,), _ = pilot.reorder([list(by_text)])
        return [by_text[text] for text in order]

    return RunnableLambda(reorder)
