"""Raises errors so that LlamaIndex passes them on, and says what to change where it packed a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ragcache_engine import BadRequest, PromptTooLong, RAGCacheError


@contextmanager
def query_errors() -> Iterator[None]:
    """Raise a BadRequest in the place of any error of ours that is a ValueError or a TypeError.

    Of those, LlamaIndex's default response mode makes the answer "Empty Response". PromptTooLong says in
    addition how LlamaIndex learns to count this model's tokens.
    """
    try:
        yield
    except PromptTooLong as error:
        raise PromptTooLong(
            f"{error}. If LlamaIndex has packed this prompt, it counted another model's tokens: set "
            f"Settings.tokenizer = llm.tokenize before you make the query engine, or give its response "
            f"synthesizer prompt_helper=llm.prompt_helper()"
        ) from error
    except (ValueError, TypeError) as error:
        if not isinstance(error, RAGCacheError):
            raise
        raise BadRequest(f"{type(error).__name__}: {error}") from error
