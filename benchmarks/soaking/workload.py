"""Prompts that share documents in many orders, and the answers of an engine without a cache."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics

from ragcache_engine import Document, EngineConfig, RAGCacheEngine, SamplingOptions

MAX_TOKENS = 8
OPTIONS = SamplingOptions(max_tokens=MAX_TOKENS)
SHORTEST, LONGEST = 180, 420
"""Characters of a document: some 40 to 120 tokens, so that a prompt costs a small machine little."""
MOST_DOCUMENTS = 3
SYSTEM = "<|im_start|>system\nYou answer questions about Python.<|im_end|>\n<|im_start|>user\n"
QUESTIONS = ("What is this about?", "Give an example.", "When is it used?", "What raises an error?")

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """A finished prompt with its documents, in the prompt's order."""

    prompt: str
    documents: tuple[Document, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """What may be asked, and the only right answers.

    shared: asked by all callers; the first ones most. private: each has a document that stands in no
      other prompt, so that its caller knows when the document may be cached.
    answers: the tokens of each prompt's answer, greedy, computed without any cache.
    """

    shared: tuple[Ask, ...]
    private: tuple[Ask, ...]
    answers: dict[str, Tokens]

    def draw(self, dice: random.Random) -> Ask:
        """Draw a shared prompt. Half of all draws fall on the first tenth."""
        return self.shared[int(len(self.shared) * dice.random() ** 3.3)]


def make_asks(count: int, private: int, seed: int) -> tuple[list[Ask], list[Ask]]:
    """Make `count` shared and `private` private prompts from paragraphs of Python's help topics."""
    dice = random.Random(seed)
    paragraphs = sorted(
        {
            part.strip()
            for text in topics.values()
            for part in text.split("\n\n")
            if SHORTEST <= len(part.strip()) <= LONGEST
        }
    )
    dice.shuffle(paragraphs)
    documents = [Document(f"topic-{at}", text) for at, text in enumerate(paragraphs)]
    owned, common = documents[:private], documents[private : private + max(12, count // 4)]
    shared: dict[str, Ask] = {}
    while len(shared) < count:
        some = dice.sample(common, dice.randint(1, MOST_DOCUMENTS))
        ask = _write(some, dice.choice(QUESTIONS))
        shared.setdefault(ask.prompt, ask)
    return list(shared.values()), [_write([one], QUESTIONS[0]) for one in owned]


def _write(documents: Sequence[Document], question: str) -> Ask:
    context = "\n\n".join(document.text for document in documents)
    prompt = f"{SYSTEM}{context}\n\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return Ask(prompt, tuple(documents))


def answer_with_vllm(model: str, context_tokens: int, prompts: Sequence[str]) -> list[Tokens]:
    """Answer with vLLM's own LLM class in float32, its prefix cache off."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model,
        dtype="float32",
        max_model_len=context_tokens,
        kv_cache_memory_bytes=512 << 20,
        enable_prefix_caching=False,
        enforce_eager=True,
    )
    options = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    outputs = llm.generate(list(prompts), options, use_tqdm=True)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


def answer_with_memory_backend(prompts: Sequence[str]) -> list[Tokens]:
    """Answer with the backend that needs no model, each prompt in an engine that has seen no other."""

    def answer(prompt: str) -> Tokens:
        with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
            return engine.generate(prompt, [], OPTIONS).token_ids

    return [answer(prompt) for prompt in prompts]
