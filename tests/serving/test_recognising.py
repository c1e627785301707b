"""Registered documents are found in prompts that name none, and get neighbours to be stored behind."""

from __future__ import annotations

import asyncio
from typing import Any

from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.corpora.document import Registered
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.serving import recognising
from ragcache_engine.serving.recognising import MOST_SEARCHES, recognise
from ragcache_engine.serving.routes import Served, WrittenPrompt

PAGES = [
    f"Page {n} tells of the sea at depth {n}, of its cold and of its fish. " for n in range(20)
]
MESSAGES = {"messages": [{"role": "user", "content": PAGES[0]}]}


async def served(**settings: Any) -> Served:
    backend = MemoryBackend(recompute_ratio=0.1)
    known = Served(backend, await backend.start(), ("any",), reuse="anywhere", **settings)
    for number, text in enumerate(PAGES):
        known.corpora.put(None, "sea", Registered(f"{number}", text, vector=[1.0, number / 10]))
    return known


async def recognised(known: Served, pages: range) -> BackendRequest:
    said = {"prompt": "Read.\n\n" + "\n\n".join(PAGES[page] for page in pages)}
    found = await recognise("/v1/completions", said, None, None, known)
    assert found
    return found


async def test_neighbours_are_searched_for_a_few_documents_a_prompt_wherever_they_stand():
    known = await served()
    first = await recognised(known, range(MOST_SEARCHES + 4))
    assert len(first.contexts) == MOST_SEARCHES
    again = await recognised(known, range(MOST_SEARCHES + 4))
    assert len(again.contexts) == MOST_SEARCHES + 4, "the others' turn has come"


async def test_a_chat_template_that_takes_long_is_not_waited_for(monkeypatch):
    async def write(path: str, said: Any) -> WrittenPrompt:
        await asyncio.sleep(60)
        return WrittenPrompt("", None)

    monkeypatch.setattr(recognising, "RENDER_S", 0.05)
    known = await served(write_chat=write)
    assert await recognise("/v1/chat/completions", MESSAGES, None, None, known) is None
