"""Documents prefilled before anybody asks about them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

import pytest

from ragcache_engine import (
    Document,
    MemoryBackend,
    RAGCacheEngine,
    UnknownDocument,
    UnknownTemplate,
    Warmed,
)
from ragcache_engine.protocols import BackendRequest, Delta
from ragcache_engine.values import ChatPrompt

TEMPLATE = "Use the reports.\n\n{context}\n\nQuestion: {question}"
A = Document("a", "The first report is about the harvest of the year. " * 6)
B = Document("b", "The second report is about ships and the sea. " * 6)


def asked(engine: RAGCacheEngine, *documents: Document) -> int:
    """Cached tokens of a question about the documents."""
    context = "\n\n".join(document.text for document in documents)
    prompt = TEMPLATE.format(context=context, question="Which is the longer one?")
    return engine.generate(prompt, documents).usage.cached.total


def test_what_was_warmed_is_cached_for_the_first_question(memory_engine: RAGCacheEngine):
    warmed = memory_engine.warm([[A, B], [B]], template=TEMPLATE)
    assert warmed.sets == 2
    assert warmed.computed_tokens > 0
    cached = asked(memory_engine, A, B)
    assert cached >= warmed.prompt_tokens - len(B.text) - 32
    assert asked(memory_engine, B) > 0


def test_warming_twice_computes_next_to_nothing_more(memory_engine: RAGCacheEngine):
    memory_engine.warm([[A, B]], template=TEMPLATE)
    again = memory_engine.warm([[A, B]], template=TEMPLATE)
    assert again.computed_tokens <= memory_engine.limits.block_tokens


def test_ids_stand_for_documents_of_a_corpus_or_of_earlier_searches(memory_engine: RAGCacheEngine):
    with memory_engine.retrieval("Which is longer?") as retrieval:
        retrieval.found([B])
    warmed = memory_engine.warm([["a", "b"]], template=TEMPLATE, corpus=[A])
    assert warmed.sets == 1


def test_an_unknown_id_is_named_before_any_work(
    engine_on: Callable[..., RAGCacheEngine],
):
    backend = MemoryBackend()
    engine = engine_on(backend)
    with pytest.raises(UnknownDocument, match="'nobody'"):
        engine.warm([[A], ["nobody"]], template=TEMPLATE)
    assert backend.prefilled_tokens == 0


def test_the_form_of_the_chains_last_prompt_will_do(memory_engine: RAGCacheEngine):
    question = "What is said in line 3?"
    with memory_engine.retrieval(question, chain="chain") as retrieval:
        retrieval.found([A, B])
    context = f"{A.text}\n\n{B.text}"
    memory_engine.generate(TEMPLATE.format(context=context, question=question))
    other = Document("c", "A third report about something else altogether. " * 6)
    assert memory_engine.warm([[other, A]], chain="chain").sets == 1
    assert asked(memory_engine, other, A) > 0


@pytest.mark.parametrize(
    "template", [None, "{question}\n\n{context}", lambda question, documents: "nothing of them"]
)
def test_without_a_template_that_puts_documents_first_it_says_what_to_give(
    memory_engine: RAGCacheEngine, template: object
):
    with pytest.raises(UnknownTemplate, match="template="):
        memory_engine.warm([[A, B]], template=template)  # type: ignore[arg-type]


def test_a_document_too_short_to_be_looked_for_holds_up_no_other(memory_engine: RAGCacheEngine):
    warmed = memory_engine.warm([[A], [Document("short", "It stays.")]], template=TEMPLATE)
    assert (warmed.sets, warmed.left_out) == (2, ())
    assert asked(memory_engine, A)


def test_before_a_chats_documents_there_are_no_more_special_tokens_than_its_template_wrote(
    engine_on: Callable[..., RAGCacheEngine],
):
    """Or a tokenizer that begins each text with one would make other tensors than the chat finds."""

    def write(question: str, documents: Sequence[Document]) -> ChatPrompt:
        texts = "\n\n".join(document.text for document in documents)
        return ChatPrompt(f"<user>{texts}\n\n{question}<assistant>")

    backend = Listening()
    engine = engine_on(backend)
    engine.warm([[A]], template=write)
    with engine.retrieval("Which one?", chain="chat") as retrieval:
        retrieval.found([A])
    engine.generate(write("Which one?", [A]))
    engine.warm([[B]], chain="chat")
    engine.warm([[B]], template=TEMPLATE)
    assert backend.added == [False, False, False, True]


class Listening(MemoryBackend):
    """Remembers whether special tokens were added to each prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.added: list[bool] = []

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        self.added.append(request.options.add_special_tokens)
        async for delta in super().generate(request):
            yield delta


def test_progress_is_shown_on_standard_error_if_wanted(
    memory_engine: RAGCacheEngine, capsys: pytest.CaptureFixture[str]
):
    memory_engine.warm([[A]], template=TEMPLATE)
    assert capsys.readouterr().err == ""
    memory_engine.warm([[A]], template=TEMPLATE, progress=True)
    assert "1/1" in capsys.readouterr().err


def test_coroutines_warm_as_threads_do(memory_engine: RAGCacheEngine):
    sets = [[A, B], [B], [], ["a"]]
    warmed = asyncio.run(memory_engine.awarm(sets, template=TEMPLATE, corpus=[A]))
    assert warmed.sets == 3
    assert asked(memory_engine, A, B) > 0
    assert memory_engine.warm(sets, template=TEMPLATE, corpus=[A]).prompt_tokens == (
        warmed.prompt_tokens
    )
    assert asyncio.run(memory_engine.awarm([])) == memory_engine.warm([]) == Warmed()


def test_coroutines_are_told_what_is_unknown_as_it_is(memory_engine: RAGCacheEngine):
    with pytest.raises(UnknownDocument, match="'nobody'"):
        asyncio.run(memory_engine.awarm([["nobody"]], template=TEMPLATE))
    with pytest.raises(UnknownTemplate, match="template="):
        asyncio.run(memory_engine.awarm([[A]]))
