"""Measure what it costs a server to find registered documents in a prompt.

    python benchmarks/recognition.py                        # 1,000, 10,000 and 100,000 documents

Documents of made-up words, a prompt of 32,000 tokens with 20 of them, one with none, one of near-misses;
and what is meant to cost more: megabytes of one text, and documents that share all but one word.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence

from programs import command_line
from tables import spread, table

from ragcache_engine.corpora.fingerprints import FingerprintIndex

CHARACTERS = 128_000
"""Of a prompt of 32,000 tokens."""
LONG = 1_000_000
WORDS = 120
"""Of a document: some 800 characters."""
SHARED_WORDS = 60
ALIKE = 20_000
REPEATS = 30
MOST_WEIGHED = 10_000

HEADS = ("documents", "prompt", "found", "ms to find them", "bytes a document", "us to add one")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    write = writer(random.Random(asked.seed))
    head = [*table(HEADS, [])][:-1]
    print(*head, sep="\n")
    for count in asked.documents:
        texts = [write(WORDS) for _ in range(count)]
        misses = [f"{text[:-1]}#" for text in texts[: CHARACTERS // len(texts[0])]]
        prompts = {
            "20 of them": "\n\n".join([*texts[:20], write(CHARACTERS // 6)])[:CHARACTERS],
            "none of them": write(CHARACTERS // 5)[:CHARACTERS],
            "near-misses": "\n\n".join(misses),
        }
        print_rows(f"{count:,}", texts, prompts)
    shared = write(SHARED_WORDS)
    texts = [f"{shared} {number:x} {shared}" for number in range(ALIKE)]
    prompts = {
        "1 MB of one of them": repeat(f"{texts[0]}\n"),
        "1 MB of what they share": repeat(f"{shared} "),
        "1 MB of one letter, which is one of them": repeat("a"),
    }
    print_rows(f"{ALIKE:,} that differ in a word", [*texts, "a" * 1_000], prompts)


def writer(drawn: random.Random) -> Callable[[int], str]:
    """Return a function that writes so many made-up words."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(drawn.choices(letters, k=drawn.randint(2, 9))) for _ in range(20_000)]
    return lambda length: " ".join(drawn.choices(words, k=length))


def repeat(text: str) -> str:
    return text * (LONG // len(text))


def print_rows(documents: str, texts: Sequence[str], prompts: dict[str, str]) -> None:
    """Measure one index with several prompts, and print a row for each."""
    index, add_s = fill(texts)
    size_bytes = weigh(texts[:MOST_WEIGHED])
    for name, prompt in prompts.items():
        times_s = [*time_calls(lambda prompt=prompt: index.find(prompt))]
        told = (documents, name, f"{len(index.find(prompt)):,}", spread(times_s, times=1000))
        row = " | ".join((*told, f"{size_bytes:,.0f}", f"{add_s * 1e6:.0f}"))
        print(f"| {row} |", flush=True)


def fill(texts: Sequence[str]) -> tuple[FingerprintIndex[int], float]:
    """Return an index of these texts, and the seconds that it took to add one."""
    index: FingerprintIndex[int] = FingerprintIndex()
    began_s = time.perf_counter()
    for number, text in enumerate(texts):
        index.add(number, text)
    return index, (time.perf_counter() - began_s) / len(texts)


def weigh(texts: Sequence[str]) -> float:
    """Return the bytes that each text takes in an index."""
    tracemalloc.start()
    index, _ = fill(texts)
    taken_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return taken_bytes / len(index)


def time_calls(call: Callable[[], object]) -> Iterator[float]:
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        call()
        yield time.perf_counter() - began_s


if __name__ == "__main__":
    main()
