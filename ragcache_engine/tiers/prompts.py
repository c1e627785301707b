"""Describes a request's prompt for the cache manager: its keys, cuts and file names. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ragcache_engine.tiers.block_index import Cut
from ragcache_engine.tiers.disk.naming import Naming
from ragcache_engine.tiers.node_record import Key

SegmentEnd = tuple[int, str | None]
"""A run of prompt tokens: its end, and its document's id, None for other text."""


@dataclass(slots=True)
class Prompt:
    """A request's prompt, as the cache manager sees it.

    keys: keys of its full blocks.
    cuts: where documents end, in blocks; blocks after the last cut are not kept.
    tokens: tokens of the whole prompt.
    file_names: names of its blocks' files; empty if the prompt stays off the disk.
    marks: for each cut, the marks of its tenant and of all documents up to it; empty without file names.
    tenant: whose prompt it is.
    lent_blocks: of a packed donor, how many blocks it fills of the prompt that borrows from it.
    """

    keys: Sequence[Key]
    cuts: Sequence[Cut]
    tokens: int
    file_names: Sequence[str] = ()
    marks: Sequence[Sequence[str]] = ()
    tenant: str | None = None
    lent_blocks: int | None = None

    @property
    def size_bytes(self) -> int:
        """About how many bytes of memory this takes."""
        return 500 + 80 * len(self.keys) + 90 * len(self.file_names) + 300 * len(self.cuts)

    def before(self, block: int) -> Prompt:
        """Return the prompt as if nothing of it was to be kept from this block on."""
        whole = sum(cut.end <= block for cut in self.cuts)
        cuts, marks = list(self.cuts[:whole]), list(self.marks[:whole])
        if whole < len(self.cuts) and block > (cuts[-1].end if cuts else 0):
            cuts.append(Cut(block))
            marks += self.marks[whole : whole + 1]
        return replace(self, cuts=cuts, marks=marks, file_names=self.file_names[:block])


def cut_prompt(
    segments: Sequence[SegmentEnd],
    *,
    prompt_tokens: int,
    block_tokens: int,
    depth: int | None,
) -> list[Cut]:
    """Cut a prompt's blocks at the end of each segment, and at the end of the question after them.

    segments: as RequestMessage carries them. Without any, all full blocks belong to one cut.
    depth: how many leading documents are kept; None keeps all.
    """
    blocks = prompt_tokens // block_tokens
    if not segments:
        return [Cut(blocks)] if blocks else []
    cuts: list[Cut] = []
    names: list[str] = []
    documents = 0
    for end, document in (*segments, (prompt_tokens, None)):  # the question comes last
        if document is not None:
            documents += 1
            if depth is not None and documents > depth:
                break
            names.append(document)
        at = min(end, prompt_tokens) // block_tokens
        if at > (cuts[-1].end if cuts else 0):
            cuts.append(Cut(at, tuple(names)))
            names = []
    return cuts


def describe_prompt(
    *,
    keys: Sequence[Key],
    token_ids: Sequence[int] | None,
    prompt_tokens: int,
    segments: Sequence[SegmentEnd],
    tenant: str | None,
    block_tokens: int,
    depth: int | None,
    naming: Naming | None,
) -> Prompt:
    """Describe a request's prompt for the cache manager.

    keys: keys of its full blocks, as vLLM hashes them. depth: as in `cut_prompt`.
    token_ids: None if the token ids alone do not determine the tensors; then the prompt stays off the
      disk.
    naming: names the files of the disk tier; None without one.
    """
    cuts = cut_prompt(segments, prompt_tokens=prompt_tokens, block_tokens=block_tokens, depth=depth)
    blocks = min(cuts[-1].end if cuts else 0, len(keys))
    cuts = [cut for cut in cuts if cut.end <= blocks]
    names: list[str] = []
    marks: list[list[str]] = []
    if naming is not None and token_ids is not None:
        names = naming.files(token_ids, tenant, blocks=blocks, block_tokens=block_tokens)
    if naming is not None and names:
        marks = [*_marks_by_cut(cuts, naming, tenant)]
    return Prompt(
        keys=keys,
        cuts=cuts,
        tokens=prompt_tokens,
        file_names=names,
        marks=marks,
        tenant=tenant,
    )


def _marks_by_cut(cuts: Iterable[Cut], naming: Naming, tenant: str | None) -> Iterator[list[str]]:
    marks = naming.tenant(tenant)
    for cut in cuts:
        marks = [*marks, *map(naming.mark, cut.documents)]
        yield marks
