"""What a request tells of its prompt, turned into cuts and file names. Pure functions."""

from __future__ import annotations

import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from ragcache_engine.tiers.disk.block_file import document_mark
from ragcache_engine.tiers.keeper import Prompt
from ragcache_engine.tiers.ledger import Cut, Key

FIELD = "ragcache"
"""Under this name a request carries what concerns us, in vLLM's `kv_transfer_params`."""


class MalformedRequest(ValueError):
    """What the request says of its segments cannot be so. It is answered as if it said nothing."""


def request_field(
    segments: Iterable[tuple[int, str | None]] = (),
    forget: Iterable[str] = (),
    *,
    guess: str | None = None,
    is_provisional: bool = False,
    adopted: Iterable[str] = (),
) -> dict[str, Any]:
    """What a request carries.

    segments: for each run of prompt tokens its end and its document's id, None for other text; what
      lies behind the last document is left out. forget: documents to drop, by a request that asks
      nothing else.
    guess: the request's own name, if nobody has asked for it yet. is_provisional: it is likely to be
      cancelled. adopted: guesses that turned out to be what was asked.
    """
    content: dict[str, Any] = {}
    if listed := [[end, document] for end, document in segments]:
        content["segments"] = listed
    if names := list(forget):
        content["forget"] = names
    if guess is not None:
        content["guess"] = guess
    if is_provisional:
        content["provisional"] = True
    if taken := list(adopted):
        content["adopted"] = taken
    return {FIELD: content} if content else {}


def segments_of(params: Mapping[str, Any] | None) -> list[tuple[int, str | None]]:
    """The segments a request carries; empty if it says nothing. Raises MalformedRequest."""
    said = _said(params).get("segments", [])
    if not isinstance(said, list):
        raise MalformedRequest("segments are a list of [end token, document id or null]")
    segments: list[tuple[int, str | None]] = []
    for segment in said:
        if not isinstance(segment, (list, tuple)) or len(segment) != 2:
            raise MalformedRequest(f"a segment is [end token, document id or null], not {segment}")
        end, document = segment
        if not isinstance(end, int) or (segments and end < segments[-1][0]) or end < 0:
            raise MalformedRequest("the ends of segments are rising token counts")
        if not isinstance(document, (str, type(None))):
            raise MalformedRequest(f"a document's id is a string or null, not {document!r}")
        segments.append((end, document))
    return segments


def forgotten_by(params: Mapping[str, Any] | None) -> list[str]:
    """The documents a request asks to forget."""
    return _names(_said(params).get("forget"))


def guess_of(params: Mapping[str, Any] | None) -> str | None:
    """The request's own name, if it is a guess."""
    name = _said(params).get("guess")
    return name if isinstance(name, str) else None


def is_provisional(params: Mapping[str, Any] | None) -> bool:
    """Whether the request says that it is likely to be cancelled."""
    return _said(params).get("provisional") is True


def adopted_by(params: Mapping[str, Any] | None) -> list[str]:
    """Guesses that turned out to be what was asked, as this request tells."""
    return _names(_said(params).get("adopted"))


def _names(said: object) -> list[str]:
    return [name for name in said if isinstance(name, str)] if isinstance(said, list) else []


def _said(params: Mapping[str, Any] | None) -> Mapping[str, Any]:
    said = (params or {}).get(FIELD)
    return said if isinstance(said, Mapping) else {}


def cuts_of(
    segments: Sequence[tuple[int, str | None]],
    *,
    prompt_tokens: int,
    block_tokens: int,
    depth: int | None,
) -> list[Cut]:
    """Where the prompt's blocks are cut: at the end of each segment, and of the question behind them.

    segments: as a request carries them. Without any, all full blocks belong together.
    depth: only so many documents are kept; None keeps all.
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


def file_names(
    token_ids: Sequence[int], tenant: str | None, *, blocks: int, block_tokens: int
) -> list[str]:
    """The names of the blocks' files: each stands for all tokens up to its end, and the tenant.

    vLLM's own hashes begin with a number drawn at each start, so they do not outlive it.
    """
    reached = sha256(f"{block_tokens}\0{tenant or ''}\0".encode())
    names = []
    for block in range(blocks):
        tokens = token_ids[block * block_tokens : (block + 1) * block_tokens]
        reached.update(array.array("q", tokens).tobytes())
        names.append(reached.hexdigest()[:40])
    return names


def prompt_of(
    *,
    keys: Sequence[Key],
    token_ids: Sequence[int] | None,
    prompt_tokens: int,
    segments: Sequence[tuple[int, str | None]],
    tenant: str | None,
    block_tokens: int,
    depth: int | None,
    on_disk: bool,
) -> Prompt:
    """A request's prompt as the keeper wants it.

    token_ids: None if they alone do not determine the tensors; such a prompt stays off the disk.
    """
    cuts = cuts_of(segments, prompt_tokens=prompt_tokens, block_tokens=block_tokens, depth=depth)
    blocks = min(cuts[-1].end if cuts else 0, len(keys))
    cuts = [cut for cut in cuts if cut.end <= blocks]
    names: list[str] = []
    if on_disk and token_ids is not None:
        names = file_names(token_ids, tenant, blocks=blocks, block_tokens=block_tokens)
    return Prompt(
        keys=keys,
        cuts=cuts,
        tokens=prompt_tokens,
        names=names,
        documents=list(_documents_so_far(cuts)) if names else [],
    )


def _documents_so_far(cuts: Iterable[Cut]) -> Iterator[list[str]]:
    marks: list[str] = []
    for cut in cuts:
        marks = [*marks, *map(document_mark, cut.names)]
        yield marks
