from types import SimpleNamespace

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("faiss")
pytest.importorskip("langchain_community")
pytest.importorskip("llama_index.core")

from langchain_core.language_models import FakeListLLM  # noqa: E402

from ragcache_cli import chains  # noqa: E402
from ragcache_cli.chains import (  # noqa: E402
    TOP_K,
    RAGCacheLangChain,
    RAGCacheLlamaIndex,
    langchain_chain,
    stock_ttft_s,
)
from ragcache_cli.corpus_warming import warm_corpus  # noqa: E402
from ragcache_cli.errors import CommandError  # noqa: E402
from ragcache_cli.framework_indexes import build_langchain_store, build_llamaindex_index  # noqa: E402
from ragcache_cli.index import Manifest, PassageIndex, build_ivf_index  # noqa: E402
from ragcache_cli.measurements import Side  # noqa: E402
from ragcache_cli.passage_neighbours import as_document, corpus_of  # noqa: E402
from ragcache_cli.passages import Passage  # noqa: E402
from ragcache_cli.prompts import CHATML, PromptForm  # noqa: E402
from ragcache_engine import CachedTokens, EngineConfig, RAGCacheEngine  # noqa: E402

AWKWARD = [
    'A class is written as\n\n   class A:\n       x = {"key": "{value}"}\n\nwith four spaces.',
    "Braces {context} and {question}, {context_str} and {query_str} are only text.",
    "Tabs\tand  double  spaces,\r and a carriage return; trailing spaces  \nstay.",
    "Umlauts äöü, quotes “…”, an emoji 🐍, and <|im_end|> as text.",
    "A very long passage. " + "It goes on and on. " * 900 + "It ends here.",
    "Plain.",
]


class Letters:
    """Embeds a text as its letters' counts."""

    name = "letters"

    def embed(self, texts, done=None):
        vectors = np.array([[text.lower().count(c) for c in "abcdefghijklmnop"] for text in texts])
        vectors = vectors.astype(np.float32) + 1e-3
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def count_tokens(self, text):
        return len(text.split())


QUESTIONS = ["What is a class?", "Where do {braces} go?", "Spaces and tabs?", "Does it go on?"]


def small_index() -> PassageIndex:
    passages = tuple(Passage(f"s:{n}", "s", f"title {n}", text) for n, text in enumerate(AWKWARD))
    vectors = Letters().embed([passage.shown for passage in passages])
    return PassageIndex(passages, build_ivf_index(vectors), Manifest("letters", ()))


@pytest.fixture
def engine():
    with RAGCacheEngine(EngineConfig(model="x", backend="memory")) as made:
        yield made


def stock_prompts(index: PassageIndex, form: PromptForm) -> list[str]:
    """What the stock chain sends, with a recording LLM where vLLM would be."""
    prompts = []

    class Recorder(FakeListLLM):
        def _call(self, prompt, *args, **kwargs):
            prompts.append(prompt)
            return super()._call(prompt, *args, **kwargs)

    retriever = build_langchain_store(index, Letters()).as_retriever(search_kwargs={"k": TOP_K})
    chain = langchain_chain(retriever, Recorder(responses=["answer"]), form)
    for question in QUESTIONS:
        chain.invoke(question)
    return prompts


def heard(text: str) -> None:
    pass


@pytest.mark.parametrize(
    "form", [CHATML, PromptForm("{before} {x}\n", "\n{between}\n", "\n{after}")]
)
def test_the_three_chains_send_the_same_prompts_to_the_character(engine, form):
    index = small_index()
    langchain = RAGCacheLangChain(build_langchain_store(index, Letters()), engine, form, 8)
    llamaindex = RAGCacheLlamaIndex(build_llamaindex_index(index, Letters()), engine, form, 8)
    second = [langchain.ask(question, heard).prompt for question in QUESTIONS]
    third = [llamaindex.ask(question, heard).prompt for question in QUESTIONS]
    assert second == stock_prompts(index, form)
    assert third == second


def test_the_prompt_is_the_one_that_was_promised(engine):
    index = small_index()
    (vector,) = Letters().embed([QUESTIONS[0]])
    shown = [passage.shown for passage in index.nearest(vector, TOP_K)]
    assert stock_prompts(index, CHATML)[0] == (
        "<|im_start|>system\nYou answer questions about Python from the given passages, in one or "
        "two sentences.<|im_end|>\n<|im_start|>user\n"
        + "\n\n".join(shown)
        + f"\n\nQuestion: {QUESTIONS[0]}<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("kind", ["langchain", "llamaindex"])
def test_a_chain_streams_its_answer_and_says_what_it_cost(engine, kind):
    index = small_index()
    chain = (
        RAGCacheLangChain(build_langchain_store(index, Letters()), engine, CHATML, 8)
        if kind == "langchain"
        else RAGCacheLlamaIndex(build_llamaindex_index(index, Letters()), engine, CHATML, 8)
    )
    pieces: list[str] = []
    first = chain.ask(QUESTIONS[0], pieces.append)
    second = chain.ask(QUESTIONS[0], heard)
    assert len(pieces) > 1
    assert "".join(pieces) == first.answer == second.answer
    assert first.cached == CachedTokens()
    assert second.cached.device > second.prompt_tokens - 32  # all whole blocks
    assert 0 < second.ttft_s < first.ttft_s


def test_both_frameworks_recognise_the_passages_in_the_prompt(engine):
    index = small_index()
    chain = RAGCacheLlamaIndex(build_llamaindex_index(index, Letters()), engine, CHATML, 8)
    asked = chain.ask(QUESTIONS[0], heard)
    langchain = RAGCacheLangChain(build_langchain_store(index, Letters()), engine, CHATML, 8)
    assert langchain.ask(QUESTIONS[0], heard).cached.device >= asked.prompt_tokens - 16


def test_the_stock_time_runs_from_the_question_to_the_first_token():
    metrics = SimpleNamespace(arrival_time=1000.25, first_token_latency=0.5)
    assert stock_ttft_s(metrics, asked_at_s=1000.0) == pytest.approx(0.75)


def test_without_statistics_the_stock_time_is_an_error_and_not_a_guess():
    with pytest.raises(CommandError):
        stock_ttft_s(None, asked_at_s=0.0)
    unmeasured = SimpleNamespace(arrival_time=1.0, first_token_latency=0.0)
    with pytest.raises(CommandError):
        stock_ttft_s(unmeasured, asked_at_s=0.0)


class SteppingEngine:
    """As vLLM's engine: a step gives all of the answer so far."""

    def __init__(self, texts: list[str]) -> None:
        self._texts, self.asked = texts, []

    def add_request(self, request_id, prompt, params):
        self.asked.append(prompt)
        self._left = list(self._texts)

    def has_unfinished_requests(self):
        return bool(self._left)

    def step(self):
        text = self._left.pop(0)
        return [SimpleNamespace(outputs=[SimpleNamespace(text=text)], finished=not self._left)]


def test_the_stock_client_says_an_answer_piece_by_piece_and_keeps_the_whole():
    engine = SteppingEngine(["", "The", "The", "The tides"])
    client = chains._RecordingClient(SimpleNamespace(llm_engine=engine))
    pieces: list[str] = []
    with client.said_to(pieces.append):
        (output,) = client.generate(["p"], None)
    client.generate(["q"], None)
    assert pieces == ["The", " tides"], "and nothing of the second answer"
    assert output.outputs[0].text == "The tides"
    assert client.last.finished
    assert engine.asked == ["p", "q"]


def borrowing_engine() -> RAGCacheEngine:
    return RAGCacheEngine(
        EngineConfig(
            model="x",
            backend="memory",
            reuse="anywhere",
            recompute_ratio=0.1,
            donors="neighbours",
            recheck_share=0,
        )
    )


@pytest.mark.parametrize("kind", ["langchain", "llamaindex"])
def test_one_engine_answers_exactly_and_by_borrowing_with_the_same_prompts(kind):
    index = small_index()
    with borrowing_engine() as engine:
        exact, anywhere = (
            RAGCacheLangChain(
                build_langchain_store(index, Letters()), engine, CHATML, 8, is_exact=is_exact
            )
            if kind == "langchain"
            else RAGCacheLlamaIndex(
                build_llamaindex_index(index, Letters()), engine, CHATML, 8, is_exact=is_exact
            )
            for is_exact in (True, False)
        )
        corpus = corpus_of(index)
        warm_corpus(engine, [as_document(one) for one in index.passages], corpus, CHATML)
        borrowed = anywhere.ask(QUESTIONS[2], heard)
        strict = exact.ask(QUESTIONS[2], heard)
    assert (exact.name, anywhere.name) == (Side.EXACT, Side.ANYWHERE)
    assert strict.prompt == borrowed.prompt
    assert strict.borrowed.total == 0
    assert borrowed.borrowed.total > 0
    first, *later = borrowed.passages
    assert len(later) >= 3
    assert first.cached.total > 0, "the first one stands where it was prefilled"
    assert any(one.borrowed and one.tier for one in later)
    assert all(not one.cached.total and not one.borrowed for one in strict.passages[1:])
