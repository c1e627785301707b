"""Compare donors and rules of selection for reuse at any position, by the answers of a small model.

    python benchmarks/selection.py --sets squad nq_open --questions 200 --out FOLDER

Each question's passages stand in one prompt. The first passage is exact; the tensors of the others come
from a donor and are turned to their places; a share of their tokens is computed again. Every way answers
greedily in float32, and is compared with the exact answer. Rows are added to FOLDER/rows.jsonl; a second
call goes on where the first one stopped. Writes report.md and selection.png. It measures answers and
computed tokens; benchmarks/anywhere.py measures times, in the engine.

Donors: `alone` behind the system text; `near1`, `near2` behind the nearest one or two passages of the
corpus; `served` from prompts of other questions, as Cache-Craft has them: of each passage from as many as
were computed, one at least (only questions all of whose passages stand in a prompt of another question).
compute: tokens computed, what choosing costs included, over tokens of the prompt.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from selecting.donors import Attention, Donor, DonorStore, Harvest, cut_donor
from selecting.model import SmallLlama
from selecting.question_sets import (
    ASK,
    SEPARATOR,
    SYSTEM,
    USER,
    Question,
    find_nearest,
    read_set,
)
from selecting.rules import (
    ASKED,
    BLENDED,
    BOTH,
    FIRST,
    OUTSIDE,
    UNSTABLE,
    Mixed,
    Rule,
    choose,
    choose_as_cache_craft,
    choose_half,
)
from torch import Tensor

from ragcache_cli.bench.grading import contained
from ragcache_cli.models import demo_model
from ragcache_engine import Document
from ragcache_engine.anywhere.rouge import rouge_l

MOST_TOKENS = 24
AT_ONCE = 42
"""Answers decoded together: each holds the tensors of a whole prompt."""


class Way(NamedTuple):
    """donor: which donors. pick: which positions are computed again. extra: what choosing them costs."""

    donor: str
    label: str
    ratio: float
    pick: Callable[[Mixed, Sequence[str]], list[int]]
    extra: Callable[[Mixed], float] = lambda mixed: 0.0


def main() -> None:
    asked = _parse()
    torch.set_num_threads(asked.threads)
    out: Path = asked.out
    out.mkdir(parents=True, exist_ok=True)
    file = out / "rows.jsonl"
    model = SmallLlama(Path(asked.model) if asked.model else demo_model())
    if not asked.only_report:
        studies = [
            iter(study(asked.data / name, asked.questions, asked.top_k, model, _done(file, name)))
            for name in asked.sets
        ]
        # One question of each set in turn, so that a cut run has as many of each.
        while studies:
            for one in list(studies):
                rows = next(one, None)
                if rows is None:
                    studies.remove(one)
                    continue
                with open(file, "a", encoding="utf-8") as written:
                    written.writelines(json.dumps(row) + "\n" for row in rows)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    (out / "report.md").write_text(report(rows))
    draw(rows, out / "selection.png")
    print(report(rows))


def ways() -> list[Way]:
    def by(donor: str, rule: Rule, ratio: float) -> Way:
        return Way(donor, rule.name, ratio, lambda mixed, _: choose(mixed, rule, ratio), rule.extra)

    def half(donor: str, ratio: float) -> Way:
        return Way(
            donor,
            "half first, half question",
            ratio,
            lambda mixed, _: choose_half(mixed, ASKED, ratio),
            ASKED.extra,
        )

    made = [Way(donor, "nothing", 0.0, lambda *_: []) for donor in ("alone", "near1", "near2")]
    made += [by("near1", FIRST, ratio) for ratio in (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)]
    made += [by(donor, FIRST, ratio) for donor in ("alone", "near2") for ratio in (0.1, 0.3)]
    for ratio in (0.15, 0.3):
        made += [by("near1", rule, ratio) for rule in (ASKED, BLENDED, BOTH, OUTSIDE, UNSTABLE)]
        made += [half("near1", ratio), half("alone", ratio)]
        made += [by("alone", rule, ratio) for rule in (ASKED, BLENDED, BOTH, UNSTABLE)]
        made.append(by("served", OUTSIDE, ratio))
    made.append(Way("served", "nothing", 0.0, lambda *_: []))
    made.append(by("served", FIRST, 0.15))
    for alpha in (0.25, 0.5, 1.0):
        made.append(
            Way(
                "served",
                f"CFO, alpha {alpha:g}",
                math.nan,
                lambda mixed, names, alpha=alpha: choose_as_cache_craft(mixed, alpha, names),  # type: ignore[misc]
            )
        )
    return made


def study(
    folder: Path, count: int, top_k: int, model: SmallLlama, done: set[int]
) -> Iterator[list[dict[str, Any]]]:
    corpus, questions = read_set(folder, None, top_k, most_words=900)
    nearest = find_nearest(corpus, 2)
    others = _find_others(questions)
    separator = model.read(SEPARATOR)
    store = DonorStore(model, model.read(SYSTEM + USER), separator, most=250)
    harvest = Harvest(most=250)
    for number, question in enumerate(questions[:count]):
        if number in done:
            continue
        started = time.perf_counter()
        names = [document.id for document in question.documents]
        compared = Comparison(model, question, nearest, store, harvest)
        if all(len(others[name]) > 1 for name in names[1:]):
            for name in names[1:]:
                if not harvest.has(name, other_than=number):
                    other = next(one for one in others[name] if one != number)
                    Comparison(model, questions[other], nearest, store, harvest).serve(other)
        rows = compared.run(number)
        seconds = time.perf_counter() - started
        print(f"{folder.name} {number + 1} of {count}: {seconds:.0f} s", flush=True)
        yield [{"set": folder.name, "question": number, **row} for row in rows]


def _find_others(questions: Sequence[Question]) -> dict[str, list[int]]:
    """Return for each document the questions whose prompts have it."""
    others: dict[str, list[int]] = defaultdict(list)
    for number, question in enumerate(questions):
        for document in question.documents:
            others[document.id].append(number)
    return others


class Waiting(NamedTuple):
    """A prompt that is ready to be answered in one way: tensors, first logits, and what that cost."""

    way: Way
    tensors: Tensor
    logits: Tensor
    compute: float


class Comparison:
    """Answers one question exactly and in every way.

    nearest: for each document its neighbours. store, harvest: where donors come from.
    """

    def __init__(
        self,
        model: SmallLlama,
        question: Question,
        nearest: dict[str, list[Document]],
        store: DonorStore,
        harvest: Harvest,
    ) -> None:
        self._model, self._question, self._nearest = model, question, nearest
        self._store, self._harvest = store, harvest
        self._parts = {one.id: model.read(one.text) for one in question.documents}
        self._gaps: list[int] = []
        self._spans: list[tuple[str, int, int]] = []
        self._tokens = self._lay_out()
        self._asked = model.read(ASK.format(question=question.text))
        start = len(self._tokens)
        self._tokens += self._asked
        self._length = len(self._tokens)
        self._question_places = list(range(start, self._length))

    def _lay_out(self) -> list[int]:
        """Return the tokens before the question; note where the documents and the gaps between are."""
        separator, tokens = self._model.read(SEPARATOR), self._model.read(SYSTEM + USER)
        for place, (name, part) in enumerate(self._parts.items()):
            if place:
                self._gaps += range(len(tokens), len(tokens) + len(separator))
                tokens += separator
            self._spans.append((name, len(tokens), len(tokens) + len(part)))
            tokens += part
        return tokens

    def run(self, number: int) -> list[dict[str, Any]]:
        """Return a row for each way. number: the question's; its own prompt lends it nothing."""
        seen = self._compute_exactly()
        self._right = self._first.log_softmax(-1)
        (answer,) = self._model.answer([self._exact], self._right[None], self._length, MOST_TOKENS)
        self._exact_text = self._model.write(answer)
        self._number = number
        rows: list[dict[str, Any]] = []
        waiting: list[Waiting] = []
        mixes: dict[str, Mixed | None] = {}
        for way in ways():
            if way.donor not in mixes:
                mixes[way.donor] = self._mix(way.donor)
            mixed = mixes[way.donor]
            if mixed is None:
                continue
            waiting.append(self._prepare(way, mixed))
            if len(waiting) == AT_ONCE:
                rows += self._answer(waiting)
                waiting.clear()
        if waiting:
            rows += self._answer(waiting)
        self._add_to_harvest(number, seen)
        return rows

    def serve(self, number: int) -> None:
        """Compute the prompt and harvest its documents. number: the question's."""
        self._add_to_harvest(number, self._compute_exactly())

    def _add_to_harvest(self, number: int, seen: Tensor) -> None:
        for place, (name, start, end) in enumerate(self._spans):
            donor = cut_donor(self._exact, seen, (start, end), self._spans[:place])
            self._harvest.add(name, donor, number)

    def _compute_exactly(self) -> Tensor:
        """Compute the prompt in full. Returns the attention of all tokens to all."""
        model, length = self._model, self._length
        self._exact = model.make_room(length + MOST_TOKENS)
        seen = Attention(model, torch.arange(length))
        hidden = model.run(self._tokens, torch.arange(length), self._exact, seen)
        self._first = model.score(hidden[-1:])[0]
        assert isinstance(seen.share, Tensor)
        return seen.share

    def _find_donors(self, kind: str) -> list[Donor] | None:
        """Return a donor for each document behind the first; None if one was never served."""
        later = self._spans[1:]
        if kind == "served":
            names = [name for name, _, _ in self._spans]
            found = [
                self._harvest.choose(name, names[: place + 1], other_than=self._number)
                for place, (name, _, _) in enumerate(later)
            ]
            return None if None in found else [one for one in found if one is not None]
        behind = {"alone": 0, "near1": 1, "near2": 2}[kind]
        return [
            self._store.find(
                [
                    *(
                        (near.id, self._model.read(near.text))
                        for near in reversed(self._nearest[name][:behind])
                    ),
                    (name, self._parts[name]),
                ]
            )
            for name, _, _ in later
        ]

    def _mix(self, kind: str) -> Mixed | None:
        """Put these donors' tensors into the places of their documents; None without donors."""
        donors = self._find_donors(kind)
        if donors is None:
            return None
        tensors = self._exact.clone()
        tensors[:, :, :, self._spans[0][2] :] = 0
        others = []
        elsewhere = self._find_donors("alone" if kind != "alone" else "near1") or []
        for (_, start, end), donor, other in zip(self._spans[1:], donors, elsewhere, strict=True):
            tensors[:, :, :, start:end] = self._model.turn(donor.tensors, start - donor.start)
            others.append(self._model.turn(other.tensors, start - other.start))
        return Mixed(
            self._model,
            self._tokens,
            tensors[:, :, :, : self._length],
            self._spans[0][2],
            [(start, end) for _, start, end in self._spans[1:]],
            donors,
            others,
            self._gaps,
            self._question_places,
        )

    def _prepare(self, way: Way, mixed: Mixed) -> Waiting:
        """Compute anew what a way chooses, and the question behind it."""
        model = self._model
        fresh = sorted([*self._gaps, *way.pick(mixed, [name for name, _, _ in self._spans])])
        tensors = self._exact.clone()
        tensors[:, :, :, : self._length] = mixed.tensors
        fresh += self._question_places
        hidden = model.run([self._tokens[at] for at in fresh], torch.tensor(fresh), tensors)
        compute = (len(fresh) + way.extra(mixed)) / self._length
        return Waiting(way, tensors, model.score(hidden[-1:])[0], compute)

    def _answer(self, waiting: Sequence[Waiting]) -> list[dict[str, Any]]:
        """Answer these prompts together, and compare the answers with the exact one."""
        answers = self._model.answer(
            [one.tensors for one in waiting],
            torch.stack([one.logits for one in waiting]),
            self._length,
            MOST_TOKENS,
        )
        golds, right = self._question.answers, self._right
        rows = []
        for (way, _, logits, compute), answered in zip(waiting, answers, strict=True):
            text = self._model.write(answered)
            first = logits.log_softmax(-1)
            rows.append(
                {
                    "donor": way.donor,
                    "rule": way.label,
                    "ratio": None if math.isnan(way.ratio) else way.ratio,
                    "tokens": self._length,
                    "compute": compute,
                    "rouge_l": rouge_l(text, self._exact_text),
                    "equal": text == self._exact_text,
                    "first_kl": float((right.exp() * (right - first)).sum()),
                    "contained": any(contained(text, gold) for gold in golds),
                    "can_answer": any(contained(self._exact_text, gold) for gold in golds),
                }
            )
        return rows


# -- the report ----------------------------------------------------------------------------------------


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Write one table over all sets, one a set, and what each way gains over `near1, first` by pairs."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    parts = []
    for title, of in [("All sets", sets), *((name, [name]) for name in sets if len(sets) > 1)]:
        parts.append(f"## {title}\n\n{_table([row for row in rows if row['set'] in of])}")
    return "\n".join(parts)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| donor | rule | ratio | n | compute | ROUGE-L | equal | first-token KL | contained, of those"
        " the model can answer | ROUGE-L less that of near1, first, at most this compute |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str, float | None], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["donor"], row["rule"], row["ratio"]].append(row)
    simple = {
        key: {(row["set"], row["question"]): row for row in group}
        for key, group in groups.items()
        if key[:2] in {("near1", "first"), ("near1", "nothing")}
    }
    costs = {
        key: statistics.fmean(row["compute"] for row in simple[key].values()) for key in simple
    }
    for key in sorted(groups, key=lambda one: (one[0], one[1], one[2] or 0)):
        group = groups[key]
        compute = statistics.fmean(row["compute"] for row in group)
        able = [row["contained"] for row in group if row["can_answer"]]
        least = [other for other in costs if costs[other] <= compute + 0.005 and other != key]
        beside = ""
        if least and key not in simple:
            other = simple[max(least, key=lambda one: costs[one])]
            gains = [
                row["rouge_l"] - other[row["set"], row["question"]]["rouge_l"]
                for row in group
                if (row["set"], row["question"]) in other
            ]
            beside = f"{statistics.fmean(gains):+.3f} ± {_error(gains):.3f}"
        rouge = [row["rouge_l"] for row in group]
        lines.append(
            f"| {key[0]} | {key[1]} | {'' if key[2] is None else f'{key[2]:g}'} | {len(group)} "
            f"| {compute:.2f} | {statistics.fmean(rouge):.3f} ± {_error(rouge):.3f} "
            f"| {statistics.fmean(row['equal'] for row in group):.2f} "
            f"| {statistics.fmean(row['first_kl'] for row in group):.4f} "
            f"| {f'{statistics.fmean(able):.2f} ({len(able)})' if able else ''} | {beside} |"
        )
    return "\n".join(lines) + "\n"


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw ROUGE-L against compute: a line for each donor and rule."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    groups: dict[tuple[str, str, Any], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["donor"], row["rule"].split(",")[0], row["rule"] + str(row["ratio"])].append(row)
    for (donor, rule, _), group in groups.items():
        point = tuple(statistics.fmean(row[key] for row in group) for key in ("compute", "rouge_l"))
        lines[donor, "first" if rule == "nothing" else rule].append((point[0], point[1]))
    colours = {"alone": "#c2568f", "near1": "#2f9e64", "near2": "#3b6fb5", "served": "#b5803b"}
    rules = list(dict.fromkeys(rule for _, rule in lines))
    figure, panel = pyplot.subplots(figsize=(8, 5.5))
    for (donor, rule), points in lines.items():
        panel.plot(
            *zip(*sorted(points), strict=True),
            marker="osv^Dx*P"[rules.index(rule) % 8],
            linestyle="-" if rule == "first" else ":",
            color=colours[donor],
            label=f"{donor}, {rule}",
        )
    panel.set(xlabel="computed tokens / tokens of the prompt", ylabel="ROUGE-L against exact")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=7, ncols=2)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _done(file: Path, name: str) -> set[int]:
    if not file.exists():
        return set()
    rows = map(json.loads, file.read_text().splitlines())
    return {row["question"] for row in rows if row["set"] == name}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    data = Path(__file__).parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=data, help="the folder of the question sets")
    parser.add_argument("--sets", nargs="+", default=["squad", "nq_open"])
    parser.add_argument("--questions", type=int, default=200, help="of each set")
    parser.add_argument("--top-k", type=int, default=5, help="passages of a question")
    parser.add_argument("--model", help="a folder of a Llama model (default: the demo's model)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only-report", action="store_true", help="write the report again")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
