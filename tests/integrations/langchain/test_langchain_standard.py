"""LangChain's own test suites for chat models and retrievers, on the real model in the real engine."""

import pytest
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_tests.integration_tests import ChatModelIntegrationTests, RetrieversIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from ragcache_integrations.langchain import ChatRAGCache, FaissVectorStore, RAGCacheRetriever

pytestmark = pytest.mark.vllm


class OnTheEngine:
    """What both suites for chat models need to know about ours."""

    @pytest.fixture(autouse=True)
    def _use_engine(self, model_engine):
        self.engine = model_engine

    @pytest.fixture
    def benchmark(self):
        # Replaces pytest-benchmark's fixture (see pyproject.toml): runs once, without timing.
        return lambda run: run()

    @property
    def chat_model_class(self):
        return ChatRAGCache

    @property
    def chat_model_params(self):
        return {"engine": self.engine}

    @property
    def standard_chat_model_params(self):
        # No `timeout`, `max_retries` and `api_key`: one engine serves all models in the process,
        # has its own timeout and retry (EngineConfig.request_timeout_s), and asks nobody for
        # access.
        return {"temperature": 0, "max_tokens": 32, "stop": []}

    @property
    def structured_output_kwargs(self):
        # Room to close the brackets it opened, since an answer that is cut short is an error; and so
        # small a model repeats itself without end unless that costs it something.
        return {"max_tokens": 200, "repetition_penalty": 1.3}

    @property
    def supports_model_override(self):
        return False  # an engine runs one model; another model needs another engine

    @property
    def supports_json_mode(self):
        # "any JSON object" lets the model choose the keys, which is too hard for 135M parameters.
        return False

    # Images, audio, PDFs and Anthropic's content stay off, as they are by default: the engine reads
    # text only, and says so by name.


class HeldToCalls(ChatRAGCache):
    """Always calls a tool, with texts of at most 40 characters: so small a model repeats itself in an
    argument until its room is used up."""

    def bind_tools(self, tools, **kwargs):
        schemas = [convert_to_openai_tool(tool) for tool in tools]
        for schema in schemas:
            for parameter in schema["function"]["parameters"]["properties"].values():
                if parameter["type"] == "string":
                    parameter["maxLength"] = 40
        return super().bind_tools(schemas, **{**kwargs, "tool_choice": "any"})


LEFT_TO_THE_MODEL = ("test_agent_loop", "test_unicode_tool_call_integration")
"""What fails if the model calls no tool, or has no room for its call."""


class TestUnit(OnTheEngine, ChatModelUnitTests):
    @property
    def init_from_env_params(self):
        # The engine is the one thing that is not saved with a model. The test loads it on an engine
        # in memory.
        config = f'{{"model": "{self.engine.config.model}", "backend": "memory"}}'
        return {"RAGCACHE_ENGINE": config}, {"engine": config}, {"max_new_tokens": 512}

    @pytest.mark.xfail(
        strict=True,
        raises=ValueError,
        reason="it loads with allowed_objects='all', which are the classes that langchain-core lists "
        "itself; test_langchain_chat.py loads with ours allowed by name",
    )
    def test_serdes(self, model, snapshot):
        super().test_serdes(model, snapshot)


class TestIntegration(OnTheEngine, ChatModelIntegrationTests):
    @pytest.fixture
    def model(self, request):
        params = {**self.standard_chat_model_params, **self.chat_model_params}
        params |= getattr(request, "param", None) or {}
        if request.function.__name__ in LEFT_TO_THE_MODEL:
            # Left to itself, a model of 135M parameters answers in words. test_langchain_chat.py goes
            # round the agent's loop with a model that calls by itself.
            return HeldToCalls(**{**params, "max_tokens": 96})
        return self.chat_model_class(**params)

    @property
    def supported_usage_metadata_details(self):
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream=False):
        chat = ChatRAGCache(engine=self.engine, temperature=0, max_tokens=4)
        words = " ".join(f"Word {number}." for number in range(40))
        chat.invoke(words)
        if not stream:
            return chat.invoke(words)
        chunks = list(chat.stream(words))
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole = whole + chunk
        return whole

    def test_a_prompt_that_was_cached_counts_once(self):
        usage = self.invoke_with_cache_read_input().usage_metadata
        details = usage["input_token_details"]
        assert usage["input_tokens"] / 2 < sum(details.values()) <= usage["input_tokens"]


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _use_store(self, model_engine, corpus, embeddings):
        self.engine = model_engine
        self.store = FaissVectorStore.from_texts(list(corpus.values()), embeddings)

    @property
    def retriever_constructor(self):
        return RAGCacheRetriever.from_vectorstore

    @property
    def retriever_constructor_params(self):
        return {"store": self.store, "engine": self.engine}

    @property
    def retriever_query_example(self):
        return "Why is the sky blue?"
