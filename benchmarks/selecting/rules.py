"""Rules that choose which tokens of borrowed documents are computed again.

Each gives every borrowed token a score, and the highest are taken: of all documents together, or, where a
rule is of each document by itself, of each. All but `rate_blended` and `rate_asked` need nothing but the
document and its donors, so their order can be kept beside the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from selecting.donors import Attention, Donor
from selecting.model import SmallLlama


@dataclass
class Mixed:
    """A prompt whose later documents were borrowed and turned to their places.

    tensors: of the whole prompt; those of the system text and the first document are exact.
    spans: start and end of each borrowed document. gaps: positions between documents, always computed.
    """

    model: SmallLlama
    tokens: list[int]
    tensors: Tensor
    exact_end: int
    spans: list[tuple[int, int]]
    donors: list[Donor]
    others: list[Tensor]
    """For each document its tensors from another context, turned to the same place."""
    gaps: list[int]
    asked: list[int]
    kept: dict[str, Tensor] = field(default_factory=dict)

    @property
    def places(self) -> Tensor:
        return torch.cat([torch.arange(start, end) for start, end in self.spans])

    def attend_from_question(self) -> Tensor:
        """Return how much the question attends to each borrowed token (ProphetKV, arXiv:2602.02579)."""
        if "asked" not in self.kept:
            tensors = self.tensors.clone()
            fresh = [*self.gaps, *self.asked]
            rows = torch.arange(len(self.gaps), len(fresh))
            seen = Attention(self.model, rows)
            self.model.run([self.tokens[at] for at in fresh], torch.tensor(fresh), tensors, seen)
            assert isinstance(seen.share, Tensor)
            self.kept["asked"] = seen.share.sum(0)[self.places]
        return self.kept["asked"]

    def deviate_early(self) -> Tensor:
        """Return how far keys and values of the second layer are from right ones (CacheBlend).

        The first layer's are right wherever the tokens stand; computing it for all gives the second's.
        """
        if "early" not in self.kept:
            tensors = self.tensors.clone()
            everything = torch.arange(len(self.tokens))
            hidden = self.model.run(self.tokens, everything, tensors, layers=1)
            right = self.model.project_keys(1, hidden, everything)
            off = torch.zeros(len(self.tokens))
            for old, new in zip(self.tensors[:, 1], right, strict=True):
                off += (old[:, : len(self.tokens)] - new).square().sum((0, 2))
            self.kept["early"] = off[self.places]
        return self.kept["early"]


def rate_first(mixed: Mixed) -> Tensor:
    """First tokens of each document first."""
    return torch.cat([1 - torch.arange(b - a) / (b - a) for a, b in mixed.spans])


def rate_asked(mixed: Mixed) -> Tensor:
    return mixed.attend_from_question()


def rate_blended(mixed: Mixed) -> Tensor:
    return mixed.deviate_early()


def rate_asked_and_blended(mixed: Mixed) -> Tensor:
    return mixed.attend_from_question() * mixed.deviate_early().sqrt()


def rate_outside(mixed: Mixed) -> Tensor:
    """Tokens that looked most at the documents before them, where they were computed (inter)."""
    return torch.cat([donor.outside for donor in mixed.donors])


def rate_unstable(mixed: Mixed) -> Tensor:
    """Tokens whose tensors differ most between two contexts (stat), each layer weighted alike."""
    rated = []
    for (start, end), other in zip(mixed.spans, mixed.others, strict=True):
        mine = mixed.tensors[:, :, :, start:end]
        off = (mine - other).square().sum((2, 4))  # [2, layers, tokens]
        rated.append((off / mine.square().sum((2, 4)).mean(-1, keepdim=True)).sum((0, 1)))
    return torch.cat(rated)


@dataclass(frozen=True, slots=True)
class Rule:
    """rate: scores of all borrowed tokens. by_document: the same share of each document.

    extra: what rating costs, in tokens computed through all layers.
    """

    name: str
    rate: Callable[[Mixed], Tensor]
    by_document: bool = False
    extra: Callable[[Mixed], float] = lambda mixed: 0.0


def _count_asked(mixed: Mixed) -> float:
    return len(mixed.asked) + len(mixed.gaps)


def _count_early(mixed: Mixed) -> float:
    return len(mixed.places) / len(mixed.model.layers)


FIRST = Rule("first", rate_first, by_document=True)
ASKED = Rule("question", rate_asked, extra=_count_asked)
BLENDED = Rule("CacheBlend", rate_blended, extra=_count_early)
BOTH = Rule(
    "question x CacheBlend",
    rate_asked_and_blended,
    extra=lambda mixed: _count_asked(mixed) + _count_early(mixed),
)
OUTSIDE = Rule("inter", rate_outside, by_document=True)
UNSTABLE = Rule("stat", rate_unstable, by_document=True)


def choose(mixed: Mixed, rule: Rule, ratio: float) -> list[int]:
    """Return the positions to compute again: this share of the borrowed tokens, highest rated first."""
    rated = rule.rate(mixed)
    if not rule.by_document:
        return _take(mixed.places, rated, math.ceil(ratio * len(rated)))
    taken: list[int] = []
    at = 0
    for start, end in mixed.spans:
        length = end - start
        taken += _take(torch.arange(start, end), rated[at : at + length], math.ceil(ratio * length))
        at += length
    return taken


def choose_half(mixed: Mixed, rule: Rule, ratio: float) -> list[int]:
    """Return half of the positions by `first`, and the other half by this rule among the rest."""
    first = choose(mixed, FIRST, ratio / 2)
    rated = rule.rate(mixed).clone()
    rated[torch.isin(mixed.places, torch.tensor(first))] = -torch.inf
    more = math.ceil(ratio * len(rated)) - len(first)
    return [*first, *_take(mixed.places, rated, max(0, more))]


def choose_as_cache_craft(mixed: Mixed, alpha: float, names: Sequence[str]) -> list[int]:
    """Return CFO's share of each document by inter (Cache-Craft, equations 12 and 14).

    names: all documents of the prompt; the borrowed ones are the last of them.
    """
    taken: list[int] = []
    first = len(names) - len(mixed.spans)
    for place, ((start, end), donor) in enumerate(zip(mixed.spans, mixed.donors, strict=True)):
        share = min(1.0, alpha * donor.measure_overhead(names[: first + place]))
        count = math.ceil(share * (end - start))
        rated = donor.outside if donor.before else -torch.arange(end - start).float()
        taken += _take(torch.arange(start, end), rated, count)
    return taken


def _take(places: Tensor, rated: Tensor, count: int) -> list[int]:
    return [int(place) for place in places[rated.topk(min(count, len(rated))).indices]]
