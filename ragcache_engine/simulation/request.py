"""One request on the simulated device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from ragcache_engine.simulation.block_keys import KeyChain
from ragcache_engine.simulation.block_pool import Block
from ragcache_engine.simulation.loans import Loan
from ragcache_engine.tiers.disk.naming import PLAIN
from ragcache_engine.tiers.node_record import Key
from ragcache_engine.tiers.prompts import Prompt, describe_prompt
from ragcache_engine.tiers.provenance import ReuseReport


class State(Enum):
    WAITING = auto()  # holds no device memory
    LOADING = auto()  # its blocks are being copied from the host
    LOADED = auto()  # its blocks were copied; it waits to compute the rest
    RUNNING = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request, and its memory on the device.

    prompt: the prompt as the cache manager sees it.
    keys: the keys of the full blocks of all its tokens. Tokens at the end of a prompt may have no key;
      they are never cached.
    tokens: how many tokens the prompt and the answer so far have.
    guess: the id that adopts the request, if nobody has asked for its answer yet.
    computed_tokens: how many of its tokens have their tensors on the device.
    cached_tokens: prompt tokens found in any tier when it first got device memory; None before.
    is_decoding: whether it computes one token per step.
    offered_blocks: how many of its blocks were offered to the host.
    copies: how many of its copies between device and host are under way.
    loan: what it borrows; None if it borrows nothing. is_donor: whether it only fetches a donor.
    found_tokens: how many of its leading tokens the device had when it got its memory last.
    reuse: what it borrowed, once it has ended.
    withdrawn: documents that were forgotten since it was planned.
    """

    name: str
    prompt: Prompt
    keys: Sequence[Key]
    tokens: int
    guess: str | None = None
    state: State = State.WAITING
    blocks: list[Block] = field(default_factory=list)
    computed_tokens: int = 0
    cached_tokens: int | None = None
    is_decoding: bool = False
    offered_blocks: int = 0
    copies: int = 0
    loan: Loan | None = None
    is_donor: bool = False
    found_tokens: int = 0
    reuse: ReuseReport | None = None
    withdrawn: Sequence[str] = ()


def describe_with_keys(
    token_ids: Sequence[int],
    segments: Sequence[tuple[int, str | None]],
    *,
    prompt_tokens: int,
    tenant: str | None,
    block_tokens: int,
    depth: int | None,
    has_disk: bool,
) -> tuple[Prompt, KeyChain]:
    """Describe a prompt for the cache manager; return also its block keys, which an answer extends.

    segments: for each run of prompt tokens its end and its document's id, None for other text.
    prompt_tokens: at least len(token_ids); tokens beyond these are computed and never cached.
    depth: how many documents of a prompt are kept; None keeps all.
    """
    chain = KeyChain(block_tokens, tenant)
    chain.extend(token_ids)
    prompt = describe_prompt(
        keys=tuple(chain.keys),
        token_ids=token_ids,
        prompt_tokens=prompt_tokens,
        segments=segments,
        tenant=tenant,
        block_tokens=block_tokens,
        depth=depth,
        naming=PLAIN if has_disk else None,
    )
    return prompt, chain
