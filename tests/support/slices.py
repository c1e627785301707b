"""Two documents about Python, and prompts over documents in the model's own form."""

from __future__ import annotations

from ragcache_engine import Document, SamplingOptions

SLICES = Document("slices", "A slicing selects a range of items in a sequence object. " * 8)
WITH = Document("with", "The with statement wraps a block with a context manager's methods. " * 8)
TWELVE = SamplingOptions(max_tokens=12)


def prompt_of(*documents: Document, question: str = "What is a slice?") -> str:
    passages = "\n\n".join(document.text for document in documents)
    return (
        f"<|im_start|>user\nUse the passages.\n\n{passages}\n\nQuestion: {question}<|im_end|>\n"
        f"<|im_start|>assistant\n"
    )
