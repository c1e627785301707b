"""Measure what a chat computes again in each turn, and what borrowing earlier turns does to answers.

    python benchmarks/conversations.py --model FOLDER --conversations 25 --out FOLDER

A conversation is the first eight questions of squad about one article, each with the five passages that
were found for it. Two ways to write its prompts are counted in tokens: with the passages of the latest
question above the history, as chains do that keep the history apart, or with every question's passages in
its own message, as agents do; and how much of the latter stood in the conversation already.

With --conversations the former are answered: exactly, which is the answer that the history holds, and
with the earlier turns borrowed from the prompts that they stood in before. Passages are computed, also
those found again, so that only the turns differ.
"""

from __future__ import annotations

import json
import statistics
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from programs import command_line
from prompt_sets import SEPARATOR
from pydantic import ByteSize
from question_files import Asked, read_asked
from tables import table

from ragcache_cli.calibrating.grading import is_right, token_f1
from ragcache_cli.models import demo_model
from ragcache_engine import Answer, Document, EngineConfig, RAGCacheEngine, SamplingOptions
from ragcache_engine.anywhere.rouge import rouge_l

TURNS, TOP_K = 8, 5
SYSTEM = "<|im_start|>system\nYou answer questions from the documents you are given, briefly.\n\n"
END, USER, ASSISTANT = "<|im_end|>\n", "<|im_start|>user\n", "<|im_start|>assistant\n"
OPTIONS = SamplingOptions(max_tokens=24, add_special_tokens=False)

Row = dict[str, Any]


class Turn(NamedTuple):
    """A question, its passages and its accepted answers."""

    question: str
    passages: list[Document]
    accepted: list[str]

    def told(self, answer: str) -> str:
        """Return the turn as the history has it."""
        return f"{USER}{self.question}{END}{ASSISTANT}{answer}{END}"


def read_conversations(asked: Iterable[Asked], titles: dict[str, str]) -> list[list[Turn]]:
    """Return the first turns about each article that has enough. titles: of passages, by id."""
    by_article: dict[str, list[Turn]] = defaultdict(list)
    for one in asked:
        question = one.question
        passages = [Document(row["doc_id"], row["text"]) for row in one.documents]
        turn = Turn(question["query"], passages, question["answers"])
        by_article[titles[question["gold_doc_ids"][0]]].append(turn)
    return [turns[:TURNS] for turns in by_article.values() if len(turns) >= TURNS]


def write(turn: Turn, history: Sequence[str]) -> str:
    """Write a prompt with the passages of its question above the history."""
    texts = SEPARATOR.join(one.text for one in turn.passages)
    return f"{SYSTEM}{texts}{END}{''.join(history)}{USER}{turn.question}{END}{ASSISTANT}"


def ask(
    engine: RAGCacheEngine, turn: Turn, history: Sequence[str], ratio: float | None, tenant: str
) -> Answer:
    """Answer a turn. If exactly, what stands in its prompt is lent to later ones of the tenant."""
    # By names of their own, passages were in no prompt before, and so are computed where they stand.
    passages = [replace(one, id=f"{one.id} at {len(history)}") for one in turn.passages]
    turns = [Document(f"turn {number}", text) for number, text in enumerate(history)]
    return engine.generate(
        write(turn, history),
        [*passages, *turns],
        OPTIONS,
        tenant=tenant,
        exact=ratio is None,
        recompute_ratio=ratio,
    )


def play(
    engine: RAGCacheEngine, turns: Sequence[Turn], tenant: str, borrowing: float = 0.1
) -> list[Row]:
    """Ask a conversation's questions. What borrows is asked first: it finds earlier prompts only."""
    history: list[str] = []
    rows = []
    for number, turn in enumerate(turns):
        for ratio in (borrowing, None) if number > 1 else (None,):
            answer = ask(engine, turn, history, ratio, tenant)
            rows.append(
                {
                    "turn": number,
                    "ratio": ratio,
                    "accepted": turn.accepted,
                    "text": answer.text,
                    "token_ids": answer.token_ids,
                    "borrowed": answer.usage.borrowed.total,
                    "prompt_tokens": answer.usage.prompt_tokens,
                }
            )
        history.append(turn.told(answer.text))
    return rows


def count(engine: RAGCacheEngine, turns: Sequence[Turn]) -> list[Row]:
    """Count a conversation's tokens by turn, with its accepted answers in the history."""

    def tokens(text: str) -> int:
        return len(engine.tokenize(text, add_special_tokens=False))

    history, seen, messages, rows = "", set[str](), SYSTEM.rstrip() + END, []
    for turn in turns:
        prompt = tokens(write(turn, [history]))
        again = [tokens(one.text) for one in turn.passages if one.id in seen]
        seen |= {one.id for one in turn.passages}
        texts = SEPARATOR.join(one.text for one in turn.passages)
        messages += f"{USER}{texts}{SEPARATOR}{turn.question}{END}{ASSISTANT}"
        rows.append(
            {
                "prompt": prompt,
                "history": tokens(history) if history else 0,
                "whole": tokens(messages),
                "passages": len(turn.passages),
                "again": len(again),
                "again_tokens": sum(again),
            }
        )
        messages += f"{turn.accepted[0]}{END}"
        history += turn.told(turn.accepted[0])
    return rows


def count_report(conversations: Sequence[Sequence[Row]]) -> list[str]:
    lines, left_out = [], [0] * len(conversations)
    for number in range(TURNS):
        rows = [rows[number] for rows in conversations]
        left_out = [gone + row["again_tokens"] for gone, row in zip(left_out, rows, strict=True)]
        lines.append(
            [
                str(number + 1),
                f"{statistics.fmean(row['prompt'] for row in rows):,.0f}",
                f"{_share(rows, 'history', 'prompt'):.0%}",
                f"{statistics.fmean(row['whole'] for row in rows):,.0f}",
                f"{_share(rows, 'again', 'passages'):.0%}",
                f"{sum(left_out) / sum(row['whole'] for row in rows):.0%}",
            ]
        )
    heads = ("turn", "prompt", "of it history", "with all passages", "found again", "left out")
    return [f"{len(conversations)} conversations, tokens:", "", *table(heads, lines)]


def _share(rows: Sequence[Row], part: str, whole: str) -> float:
    return float(sum(row[part] for row in rows) / sum(row[whole] for row in rows))


def answers_report(rows: Sequence[Row]) -> list[str]:
    """Compare answers from the third turn on. rows: with the number of their conversation."""
    exact = {(row["conversation"], row["turn"]): row for row in rows if row["ratio"] is None}
    lines = []
    for ratio in sorted(
        {row["ratio"] for row in rows}, key=lambda ratio: (ratio is not None, ratio)
    ):
        pairs = [
            (row, exact[row["conversation"], row["turn"]])
            for row in rows
            if row["ratio"] == ratio and row["turn"] > 1
        ]
        if pairs:
            graded = [
                (
                    is_right(row["text"], row["accepted"]),
                    token_f1(row["text"], row["accepted"]),
                    rouge_l(row["text"], other["text"]),
                    row["token_ids"] == other["token_ids"],
                )
                for row, other in pairs
            ]
            lines.append(
                [
                    "exact" if ratio is None else f"{ratio:g}",
                    str(len(pairs)),
                    *(f"{statistics.fmean(grades):.3f}" for grades in zip(*graded, strict=True)),
                    f"{_share([row for row, _ in pairs], 'borrowed', 'prompt_tokens'):.0%}",
                ]
            )
    heads = ("turns computed anew", "n", "right", "F1", "ROUGE-L", "equal", "tokens borrowed")
    return [*table(heads, lines)]


def main() -> None:
    asked = _parse()
    questions = read_asked("squad", TOP_K)
    titles = {row["doc_id"]: row["title"] for one in questions for row in one.documents}
    gold = [one for one in questions if one.question["gold_doc_ids"][0] in titles]
    conversations = read_conversations(gold, titles)
    model = asked.model or str(demo_model())
    config = EngineConfig(
        model=model,
        device_cache=ByteSize(1 << 30),
        reuse="anywhere",
        donors="any",
        recompute_ratio=0.0,
        recheck_share=0.0,
        speculation="off",
        vllm_args={"dtype": asked.dtype, "max_model_len": 8192},
    )
    with RAGCacheEngine(config) as engine:
        lines = count_report([count(engine, turns) for turns in conversations])
        rows: list[Row] = []
        for number, turns in enumerate(conversations[: asked.conversations]):
            rows += [
                {"conversation": number, **row}
                for row in play(engine, turns, str(number), asked.ratio)
            ]
            print(f"\r{number + 1} of {asked.conversations} conversations", end="", flush=True)
            _keep(asked.out, lines, rows)
    print(*_keep(asked.out, lines, rows), sep="\n")


def _keep(out: Path, lines: list[str], rows: Sequence[Row]) -> list[str]:
    """Write the report and the rows so far; return the report."""
    out.mkdir(parents=True, exist_ok=True)
    lines = lines + (answers_report(rows) if rows else [])
    (out / "conversations.md").write_text("\n".join(lines))
    (out / "conversations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return lines


def _parse() -> Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--model", help="a folder or hub id (default: the demo's model)")
    parser.add_argument("--dtype", default="float32", help="as vLLM's (default: float32)")
    parser.add_argument("--ratio", type=float, default=0.1, help="computed anew (default: 0.1)")
    parser.add_argument("--conversations", type=int, default=0, help="answer so many")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
