"""Tensors of documents computed in other contexts, and what was seen while they were computed."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selecting.model import SmallLlama


@dataclass(frozen=True, slots=True)
class Donor:
    """A document's tensors from one context.

    start: its first position there. outside: for each token, the attention it paid to the documents
    before it, its mean over layers and heads. inside: the attention that all tokens paid to the document
    itself, likewise added up. before: the documents before it, in their order, each with the attention it
    drew from this one and its length in tokens.
    """

    tensors: Tensor
    start: int
    outside: Tensor
    inside: float
    before: tuple[tuple[str, float, int], ...]

    @property
    def context_impact(self) -> float:
        """CCI of Cache-Craft (equations 9 to 11): how much the document depends on what stood before."""
        length = self.tensors.shape[3]
        between = sum(drawn / (length * other) for _, drawn, other in self.before)
        within = self.inside / length**2
        return 1 / (1 + math.exp(-between / within))

    def measure_overlap(self, names: Sequence[str]) -> float:
        """Return beta' of Cache-Craft (equations 6 to 8) for these documents before it, in their order.

        A donor that stood first has no such documents: 0, as for one whose documents are all others.
        """
        whole = sum(drawn for _, drawn, _ in self.before)
        common = [(name, drawn) for name, drawn, _ in self.before if name in names]
        if not whole or not common:
            return 0.0
        pairs = list(itertools.combinations([names.index(name) for name, _ in common], 2))
        discordant = sum(left > right for left, right in pairs)
        order = 1 - discordant / len(pairs) if pairs else 1.0
        return order * sum(drawn for _, drawn in common) / whole

    def measure_overhead(self, names: Sequence[str]) -> float:
        """Return CFO of Cache-Craft (equation 12), alpha 1: the share of tokens to compute again."""
        return self.context_impact * (1 - self.measure_overlap(names))


class Attention:
    """Adds up who attends to whom while a sequence is computed, its mean over layers and heads."""

    def __init__(self, model: SmallLlama, rows: Tensor) -> None:
        """rows: the tokens, by their place in the run, whose attention is kept."""
        self._rows = rows
        self._weight = 1 / (len(model.layers) * model.heads)
        self.share: Tensor | float = 0.0

    def __call__(self, layer: int, share: Tensor) -> None:
        self.share = self.share + share[:, self._rows].sum(0) * self._weight


def cut_donor(
    tensors: Tensor, share: Tensor, span: tuple[int, int], before: Sequence[tuple[str, int, int]]
) -> Donor:
    """Cut a document out of a computed sequence.

    share: the attention of all tokens to all. before: documents that stood before it: name, start, end.
    """
    start, end = span
    mine = share[start:end]
    drawn = tuple((name, float(mine[:, a:b].sum()), b - a) for name, a, b in before)
    outside = torch.zeros(end - start)
    for _, a, b in before:
        outside += mine[:, a:b].sum(1)
    return Donor(
        tensors[:, :, :, start:end].clone(),
        start,
        outside,
        float(mine[:, start:end].sum()),
        drawn,
    )


class DonorStore:
    """Computes donors [system, neighbours, document] once, and keeps the last ones used."""

    def __init__(
        self, model: SmallLlama, system: Sequence[int], separator: Sequence[int], most: int
    ):
        self._model = model
        self._system = list(system)
        self._separator = list(separator)
        self._most = most
        self._kept: OrderedDict[tuple[str, ...], Donor] = OrderedDict()

    def find(self, contents: Sequence[tuple[str, list[int]]]) -> Donor:
        """Return the last document's tensors behind the others. contents: name and tokens of each."""
        key = tuple(name for name, _ in contents)
        found = self._kept.pop(key, None)
        if found is None:
            found = self._compute(contents)
        self._kept[key] = found
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return found

    def _compute(self, contents: Sequence[tuple[str, list[int]]]) -> Donor:
        tokens = list(self._system)
        spans = []
        for name, part in contents:
            spans.append((name, len(tokens), len(tokens) + len(part)))
            tokens += [*part, *self._separator]
        *before, (_, start, end) = spans
        tokens = tokens[:end]
        room = self._model.make_room(end)
        seen = Attention(self._model, torch.arange(end))
        self._model.run(tokens, torch.arange(end), room, seen)
        assert isinstance(seen.share, Tensor)
        return cut_donor(room, seen.share, (start, end), before)


class Harvest:
    """Donors cut out of served prompts, some variants of each document (Cache-Craft, section 3.3)."""

    VARIANTS = 5

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, dict[int, Donor]] = OrderedDict()

    def add(self, name: str, donor: Donor, prompt: int) -> None:
        """Keep a document's tensors out of the prompt of this number, once."""
        variants = {**self._kept.pop(name, {}), prompt: donor}
        self._kept[name] = dict(list(variants.items())[-self.VARIANTS :])
        while sum(map(len, self._kept.values())) > self._most:
            self._kept.popitem(last=False)

    def has(self, name: str, other_than: int) -> bool:
        """Return whether a prompt other than this one lends the document."""
        return any(prompt != other_than for prompt in self._kept.get(name, ()))

    def choose(self, name: str, before: Sequence[str], other_than: int) -> Donor | None:
        """Return the variant with the lowest overhead behind these documents, None if there is none.

        other_than: the number of the prompt that borrows, which may have been served before.
        """
        variants = self._kept.get(name, {})
        return min(
            (donor for prompt, donor in variants.items() if prompt != other_than),
            key=lambda one: one.measure_overhead(before),
            default=None,
        )
