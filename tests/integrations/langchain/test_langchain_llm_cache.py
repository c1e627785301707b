"""LangChain's cache of answers gives no model an answer that another model would have given."""

import asyncio

import pytest
from langchain_core.caches import InMemoryCache

from ragcache_engine import EngineConfig, Guide, RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.langchain import ChatRAGCache, RAGCacheLLM

PROMPT = "Why is the sky blue?"
KINDS = [RAGCacheLLM, ChatRAGCache]


@pytest.fixture
def make_model(engine_on):
    """kind, reply, settings of the engine -> a model that gives this reply; all share one cache."""
    cache = InMemoryCache()

    def make(kind, reply, engine_settings=None, **settings):
        engine = engine_on(MemoryBackend(lambda prompt: reply), **(engine_settings or {}))
        return kind(engine=engine, cache=cache, **settings)

    return make


def text_of(answer):
    return getattr(answer, "content", answer)


def answer_of(model, way, **options):
    if way == "invoke":
        return text_of(model.invoke(PROMPT, **options))
    return text_of(asyncio.run(model.ainvoke(PROMPT, **options)))


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_model_answers_from_the_cache(make_model, kind, way):
    assert answer_of(make_model(kind, "first"), way) == "first"
    assert answer_of(make_model(kind, "second"), way) == "first"


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "settings",
    [{"vllm_args": {"dtype": "float32"}}, {"tool_parser": "hermes"}],
    ids=["vllm_args", "tool_parser"],
)
def test_an_engine_with_other_settings_answers_for_itself(make_model, kind, way, settings):
    assert answer_of(make_model(kind, "first"), way) == "first"
    assert answer_of(make_model(kind, "second", settings), way) == "second"


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_of_another_model_answers_for_itself(make_model, kind):
    other = RAGCacheEngine(
        EngineConfig(model="other", backend="memory"), backend=MemoryBackend(lambda p: "second")
    )
    first = make_model(kind, "first")
    with other:
        assert text_of(first.invoke(PROMPT)) == "first"
        assert text_of(kind(engine=other, cache=first.cache).invoke(PROMPT)) == "second"


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{"tenant": "them"}, {"stop": ["?"]}, {"seed": 7}], ids=str)
def test_a_model_with_other_settings_answers_for_itself(make_model, kind, way, settings):
    assert answer_of(make_model(kind, "first"), way) == "first"
    assert answer_of(make_model(kind, "second", **settings), way) == "second"


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_with_other_parameters_is_answered_for_itself(make_model, kind, way):
    model = make_model(kind, "blue or red")
    blue, red = (Guide.choice([text]) for text in ("blue", "red"))
    assert answer_of(model.bind(guide=blue), way) == "blue"
    assert answer_of(model.bind(guide=red), way) == "red"
    assert answer_of(model, way) == "blue or red"
    assert answer_of(model, way, max_tokens=1) == "blue"


def test_a_changed_model_answers_for_itself(make_model):
    chat = make_model(ChatRAGCache, "one two three")
    assert chat.invoke(PROMPT).content == "one two three"
    chat.max_new_tokens = 1
    assert chat.invoke(PROMPT).content == "one"


def test_other_variables_of_the_chat_template_are_another_model(make_model):
    plain = make_model(ChatRAGCache, "first")
    thinking = make_model(ChatRAGCache, "second", template_args={"enable_thinking": True})
    assert [plain.invoke(PROMPT).content, thinking.invoke(PROMPT).content] == ["first", "second"]


def test_another_chat_template_is_another_model(engine_on):
    # The memory backend writes no template, so the keys themselves are compared.
    plain, other = (
        ChatRAGCache(engine=engine_on(MemoryBackend(), chat_template=template))
        for template in (None, "{{ messages }}")
    )
    assert plain._get_llm_string() != other._get_llm_string()


def test_an_engine_that_leaves_out_repeats_is_another_model(engine_on):
    plain, other = (
        ChatRAGCache(engine=engine_on(MemoryBackend(), dedupe=dedupe)) for dedupe in (False, True)
    )
    assert plain._get_llm_string() != other._get_llm_string()


@pytest.mark.parametrize("kind", KINDS)
def test_what_identifies_an_engine_shows_none_of_its_arguments(engine_on, kind):
    engine = engine_on(MemoryBackend(), vllm_args={"hf_token": "hf_secret"})
    identified = kind(engine=engine, tenant="us").asdict()
    assert "hf_secret" not in str(identified)
    assert identified["tenant"] == "us"
