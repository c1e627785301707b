"""Find texts of documents that stand in a prompt already, and leave them out.

A conversation whose messages hold what was found for them has many documents twice: what was found for an
earlier question is found again for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ragcache_engine.prompt.segments import Span

AS_ABOVE = "[as above]"
"""What stands in a prompt for a text that is left out. Shorter than any text that is found."""


class Shortened(NamedTuple):
    """A prompt in which each text of a document stands once.

    spans: the documents that are still there. cuts: those that were left out, by where they stood.
    """

    text: str
    spans: tuple[Span, ...]
    cuts: tuple[Span, ...]

    def place(self, at: int) -> int:
        """Return where a character of the whole prompt stands now; of a cut one, the end of AS_ABOVE."""
        before = [cut for cut in self.cuts if cut.start < at]
        gone = sum(len(cut) - len(AS_ABOVE) for cut in before)
        return max(at, before[-1].end) - gone if before else at


def find_repeats(prompt: str, spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return those of a prompt's documents whose very text stands in it further up, too."""
    first: dict[str, Span] = {}
    for span in spans:
        first.setdefault(prompt[span.start : span.end], span)
    kept = set(first.values())
    return tuple(span for span in spans if span not in kept)


def leave_out_repeats(prompt: str, spans: Sequence[Span]) -> Shortened:
    """Return the prompt with AS_ABOVE for each text that stands further up; spans: in its order."""
    cuts = find_repeats(prompt, spans)
    repeated = set(cuts)
    parts: list[str] = []
    left: list[Span] = []
    reached = gone = 0
    for span in spans:
        if span in repeated:
            parts += [prompt[reached : span.start], AS_ABOVE]
            reached = span.end
            gone += len(span) - len(AS_ABOVE)
        else:
            left.append(replace(span, start=span.start - gone, end=span.end - gone))
    return Shortened("".join([*parts, prompt[reached:]]), tuple(left), cuts)
