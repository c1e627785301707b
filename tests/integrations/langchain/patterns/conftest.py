"""Each pattern is built twice: with the stock retriever and LLM, and with ours in their place.

Both sides search the same store and ask the same small model in float32, greedily. So the last
answer must be the same, whatever the framework does with documents and answers in between.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import pytest
from langchain_community.llms import VLLM
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import SimpleChatModel
from langchain_core.messages import convert_to_openai_messages, get_buffer_string
from langchain_core.retrievers import BaseRetriever

from ragcache_integrations.langchain import (
    ChatRAGCache,
    FaissVectorStore,
    RAGCacheLLM,
    RAGCacheRetriever,
)

K = 3
MAX_TOKENS = 8

# A block of KV memory holds 32 tokens; each of these texts fills two or three.
LONG_CORPUS = {
    "sky": "The sky looks blue because the gases of the air scatter short waves of sunlight far "
    "more than long ones, so that blue light reaches the eye from everywhere. At sunset the light "
    "has come a longer way through the air, most of the blue has been scattered out of it, and "
    "what is left is red. On the moon, where there is no air, the sky is black at noon.",
    "tides": "The tides rise and fall twice a day because the moon pulls the near side of the "
    "ocean harder than the far side, and the earth turns below the two bulges. When sun and moon "
    "pull along one line, at full and at new moon, the tides are highest. In a narrow bay the "
    "water piles up, and may rise by more than ten metres within six hours.",
    "bread": "Bread rises when yeast eats the sugar of the flour and breathes out gas, which the "
    "gluten of the kneaded dough holds in bubbles until the oven sets them. Salt slows the yeast "
    "and makes the dough firm. A crust browns since sugars and proteins join in the heat, and it "
    "stays crisp only while the crumb below it gives off no more steam.",
    "glass": "Glass is made of sand that is molten with soda and lime, and is cooled so quickly "
    "that its atoms find no time to settle into the order of a crystal. Cobalt makes it blue, "
    "iron makes it green, and a little gold makes it red. Panes are cast on a bath of molten tin, "
    "so that both of their faces come out flat without being ground.",
    "bees": "Bees tell each other where the flowers are with a dance on the comb, whose angle "
    "gives the direction to the sun and whose length gives the distance. A hive holds one queen "
    "and some forty thousand workers, which live for six weeks in summer. In winter they cluster "
    "around the queen and shiver, so that it stays warm in the middle.",
    "steel": "Steel is iron with a little carbon, which keeps the layers of the metal from sliding "
    "past each other, so that it bends less than pure iron does. Chromium keeps it from rusting. "
    "A blade is heated until it glows and then put into water, which makes it hard, and is warmed "
    "once more, which makes it tough enough not to break.",
}
QUESTIONS = [
    "Why does the sky look blue and not violet?",
    "Why does bread rise in the oven?",
    "How do bees tell where the flowers are?",
]


class HashedWords(Embeddings):
    def __init__(self, embed):
        self.embed = embed

    def embed_documents(self, texts):
        return [self.embed(text, 256) for text in texts]

    def embed_query(self, text):
        return self.embed(text, 256)


class Remembering:
    """vLLM's LLM class for several threads, which it is not made for.

    Each prompt is answered once and remembered, because greedy answers do not change.
    """

    def __init__(self, llm: Any) -> None:
        self._llm, self._lock, self._known = llm, Lock(), {}

    def generate(self, prompts: Any, params: Any) -> Any:
        assert params.temperature == 0
        names = [(prompt, repr(params)) for prompt in prompts]
        with self._lock:
            new = [name for name in dict.fromkeys(names) if name not in self._known]
            if new:
                outputs = self._llm.generate([prompt for prompt, _ in new], params, use_tqdm=False)
                self._known.update(zip(new, outputs, strict=True))
            return [self._known[name] for name in names]

    def chat(self, conversation: Any, params: Any) -> str:
        with self._lock:
            (output,) = self._llm.chat(conversation, params, use_tqdm=False)
        return output.outputs[0].text


class StockChat(SimpleChatModel):
    """vLLM's own chat. LangChain has no class for it."""

    client: Any
    model_name: str
    temperature: float = 0
    max_tokens: int = MAX_TOKENS

    @property
    def _llm_type(self):
        return "vllm-chat"

    def _call(self, messages, stop=None, run_manager=None, response_format=None, **kwargs):
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        form = response_format and StructuredOutputsParams(
            json=response_format["json_schema"]["schema"]
        )
        params = SamplingParams(
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            stop=stop,
            structured_outputs=form,
        )
        return self.client.chat(convert_to_openai_messages(messages), params)

    def completed(self, prompt, max_tokens):
        """Return vLLM's answer to a prompt that a chat template has written."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        (output,) = self.client.generate([str(prompt)], params)
        return output.outputs[0].text


def info_of(generation):
    """Return what a generation says about its cost; for a chat model, its message says it."""
    message = getattr(generation, "message", None)
    if message is None:
        return generation.generation_info
    return {"usage_metadata": message.usage_metadata, **message.response_metadata}


class Heard(BaseCallbackHandler):
    """Every prompt that an LLM was given, and what each answer cost."""

    def __init__(self):
        self.prompts, self.infos = [], []

    def on_llm_start(self, serialized, prompts, **kwargs):
        self.prompts += prompts

    def on_chat_model_start(self, serialized, messages, **kwargs):
        self.prompts += [get_buffer_string(conversation) for conversation in messages]

    def on_llm_end(self, response, **kwargs):
        self.infos += [info_of(generation) for (generation,) in response.generations]

    @property
    def cached(self):
        """Return how many tokens of all prompts came from the cache."""
        usages = [info["usage_metadata"] for info in self.infos]
        return sum(usage["input_token_details"]["cache_read"] for usage in usages)

    @property
    def document_ids(self):
        """Return, for each answer, the documents that the engine recognised in its prompt."""
        return [info["document_ids"] for info in self.infos]


@dataclass(frozen=True)
class Side:
    """What a user swaps, and nothing else.

    over: makes the same kind of retriever over another store.
    """

    llm: Any
    retriever: BaseRetriever
    over: Callable[..., BaseRetriever]


@dataclass(frozen=True)
class Swap:
    """Asks a pattern on both sides. engine: the engine of our side."""

    stock: Side
    ours: Side
    engine: Any

    def answers_alike(self, build, asked, ask=None):
        """Build a pattern from each side and ask it: stock once, ours with a cold cache and then again.

        build: makes the pattern from a Side. ask: (pattern, question, config) -> answer.
        Returns the answer, and what was heard in our cold and in our warm run.
        """
        ask = ask or (lambda built, asked, config: built.invoke(asked, config))
        expected = ask(build(self.stock), asked, {})
        pattern = build(self.ours)
        self.engine.clear_cache()
        cold, warm = Heard(), Heard()
        assert ask(pattern, asked, {"callbacks": [cold]}) == expected
        assert ask(pattern, asked, {"callbacks": [warm]}) == expected
        # Branches of one pattern run at the same time, so their prompts come in any order.
        assert sorted(warm.prompts) == sorted(cold.prompts)
        assert warm.cached > cold.cached
        return expected, cold, warm


@pytest.fixture
def telling_words(bag_of_words):
    """Embeds without the short words that are in every text."""

    def embed(text, size):
        return bag_of_words(" ".join(word for word in text.split() if len(word) > 3), size)

    return HashedWords(embed)


@pytest.fixture
def long_store(telling_words):
    texts = list(LONG_CORPUS.values())
    return FaissVectorStore.from_texts(texts, telling_words, ids=list(LONG_CORPUS))


@pytest.fixture(scope="session")
def stock_llm(stock_vllm):
    # VLLM's constructor would start a model of its own; its token counting would load another one.
    return VLLM.model_construct(
        model=stock_vllm.model_config.model,
        client=Remembering(stock_vllm),
        temperature=0.0,
        max_new_tokens=MAX_TOKENS,
        custom_get_token_ids=stock_vllm.get_tokenizer().encode,
    )


@pytest.fixture(scope="session")
def stock_chat(stock_llm):
    return StockChat(client=stock_llm.client, model_name=stock_llm.model)


def swap_of(store, stock_model, our_model):
    def stock_over(store, k=K):
        return store.as_retriever(search_kwargs={"k": k})

    def ours_over(store, k=K):
        return RAGCacheRetriever.from_vectorstore(store, engine=our_model.engine, k=k)

    return Swap(
        stock=Side(stock_model, stock_over(store), stock_over),
        ours=Side(our_model, ours_over(store), ours_over),
        engine=our_model.engine,
    )


@pytest.fixture
def swap(long_store, stock_llm, model_engine):
    llm = RAGCacheLLM(engine=model_engine, temperature=0, max_new_tokens=MAX_TOKENS)
    return swap_of(long_store, stock_llm, llm)


@pytest.fixture
def chat_swap(long_store, stock_chat, model_engine):
    chat = ChatRAGCache(engine=model_engine, temperature=0, max_tokens=MAX_TOKENS)
    return swap_of(long_store, stock_chat, chat)


@pytest.fixture(params=["llm", "chat"])
def either_swap(request, swap, chat_swap):
    """A swap of LLMs, and a swap of chat models."""
    return {"llm": swap, "chat": chat_swap}[request.param]


@pytest.fixture
def questions():
    return list(QUESTIONS)


@pytest.fixture
def found(long_store):
    """question -> the ids of its documents, nearest first."""
    return lambda question: [each.id for each in long_store.similarity_search(question, k=K)]


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def long_corpus():
    return dict(LONG_CORPUS)
