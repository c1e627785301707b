"""Says what to change when a prompt that LlamaIndex has packed does not fit the model's context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ragcache_engine import PromptTooLong


@contextmanager
def advise_on_packing() -> Iterator[None]:
    """Add to PromptTooLong how LlamaIndex learns to count this model's tokens."""
    try:
        yield
    except PromptTooLong as error:
        raise PromptTooLong(
            f"{error}. If LlamaIndex has packed this prompt, it counted another model's tokens: set "
            f"Settings.tokenizer = llm.tokenize before you make the query engine, or give its response "
            f"synthesizer prompt_helper=llm.prompt_helper()"
        ) from error
