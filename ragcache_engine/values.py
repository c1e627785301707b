"""The values that go into the engine and come out: frozen, with units in their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from sys import getsizeof
from typing import Any, NamedTuple, Self

from ragcache_engine.checks import (
    LARGEST_INT,
    require_instance,
    require_items,
    require_number,
    require_switch,
    require_text,
    require_whole_number,
)
from ragcache_engine.errors import InvalidArgument
from ragcache_engine.guide import Guide
from ragcache_engine.tables import Share, ShownAsTable, Table


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"  # the model ended it, or a stop string appeared
    LENGTH = "length"  # max_tokens or the model's context was reached


class SegmentKind(StrEnum):
    """What a run of prompt tokens belongs to."""

    SYSTEM = "system"
    DOCUMENT = "document"
    QUESTION = "question"


BORROWED = "borrowed (approximate)"
"""How tables name tokens that were taken from another context. What the tiers gave besides is exact."""

DOCUMENTS_HINT = (
    "make each one with ragcache_engine.Document(id, text), the text as it stands in the prompt"
)


@dataclass(frozen=True, slots=True)
class Document:
    """A retrieved document with its text, exactly as the prompt contains it.

        >>> Document("tides", "The tides follow the moon.").id
        'tides'

    id: the same in every question. The cache treats two texts with one id as two documents.
    label: the name under which `stats` shows the document once it was retrieved, such as "tides.pdf,
      page 3"; None: its id. It distinguishes nothing.
    Raises InvalidArgument, a TypeError and ValueError, unless these are strings.
    """

    id: str
    text: str
    label: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        require_text(self.id, "a document's id")
        require_instance(self.text, str, "a document's text")
        if self.label is not None:
            require_text(self.label, "a document's label")

    @property
    def size_bytes(self) -> int:
        """About how many bytes of memory it takes."""
        return getsizeof(self.id) + getsizeof(self.text) + getsizeof(self.label)


MOST_LOGPROBS = 20
"""So many tokens at most are named beside each token of an answer; vLLM's own default."""

_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How to generate an answer. The defaults are greedy: the same prompt gets the same answer.

    max_tokens: the most tokens an answer may have. None: as many as the model's context has room for.
    temperature: 0 to 2; 0 is greedy. Above it, tokens are drawn at random, and repeatably if `seed` is
      given.
    top_k: consider only this many tokens; 0: all of them.
    stop: strings that end the answer; the answer does not contain them.
    guide: a form that the answer must have, such as a JSON schema.
    logprobs: tell with each token how likely it was, and of so many most likely ones, 0 to 20; None: tell
      nothing. They are in `Answer.logprobs` and `Piece.logprobs`.
    add_special_tokens: whether the tokenizer begins the prompt as it begins every text, for example
      with a token for the beginning. A chat template writes that itself, so a text that it wrote needs
      False; for a ChatPrompt the engine sets this.
    skip_special_tokens: whether to leave special tokens out of the answer's text. Some models write
      tool calls with them.
    template_args: with a reasoning_parser, the variables that the chat template had which wrote the
      prompt: the answer's reasoning is told apart from its text. None: nothing is told apart, and a guide
      begins with the answer's first token. For a ChatPrompt the engine sets this.
    Raises InvalidArgument, a ValueError and TypeError, for values that no answer can be generated with.

        >>> SamplingOptions(max_tokens=64, stop=(".",)).temperature
        0.0
        >>> SamplingOptions(max_tokens=0)
        Traceback (most recent call last):
        ragcache_engine.errors.InvalidArgument: max_tokens must be at least 1, got 0
    """

    max_tokens: int | None = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    guide: Guide | None = None
    logprobs: int | None = None
    add_special_tokens: bool = True
    skip_special_tokens: bool = True
    template_args: dict[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", *_PENALTIES):
            object.__setattr__(self, name, require_number(getattr(self, name), name))
        for name in ("ignore_eos", "add_special_tokens", "skip_special_tokens"):
            require_switch(getattr(self, name), name)
        for name, least, most in (
            ("max_tokens", 1, LARGEST_INT),
            ("top_k", 0, LARGEST_INT),
            ("seed", -(1 << 63), (1 << 63) - 1),
            ("logprobs", 0, MOST_LOGPROBS),
        ):
            if name == "top_k" or getattr(self, name) is not None:
                number = require_whole_number(getattr(self, name), name, least, most)
                object.__setattr__(self, name, number)
        if isinstance(self.stop, str):
            raise InvalidArgument(f"stop takes a sequence of strings: stop=({self.stop!r},)")
        stop = require_items(self.stop, str, "stop")
        object.__setattr__(
            self, "stop", tuple(require_text(text, "a stop string") for text in stop)
        )
        if not 0 <= self.temperature <= 2:
            raise InvalidArgument(
                f"temperature must be between 0 (greedy) and 2, got {self.temperature}"
            )
        if not 0 < self.top_p <= 1:
            raise InvalidArgument(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise InvalidArgument(f"min_p must be between 0 and 1, got {self.min_p}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise InvalidArgument(f"{name} must be between -2 and 2, got {getattr(self, name)}")
        if not self.repetition_penalty > 0:
            raise InvalidArgument(
                f"repetition_penalty must be above 0 (1: none), got {self.repetition_penalty}"
            )
        if any(not text for text in self.stop):
            raise InvalidArgument(
                "an empty stop string would end every answer at once; leave it out"
            )
        if self.guide is not None:
            require_instance(self.guide, Guide, "guide", "such as Guide.json(schema)")
        if self.template_args is not None:
            require_instance(self.template_args, dict, "template_args")

    @property
    def depend_on_start(self) -> bool:
        """Whether an answer's tokens depend on where in it a request begins.

        A guide applies from the answer's first token, not from its middle. Presence and frequency
        penalties count the tokens of the answer, and a request for the rest has the first of them in its
        prompt. The repetition penalty counts the prompt too.
        """
        return bool(self.guide or self.presence_penalty or self.frequency_penalty)


def require_options(options: SamplingOptions | None) -> SamplingOptions:
    """Return these options, or the default ones for None. Raises InvalidArgument."""
    if options is None:
        return SamplingOptions()
    return require_instance(options, SamplingOptions, "options", "SamplingOptions(max_tokens=...)")


ONE_TOKEN = SamplingOptions(max_tokens=1)
"""The options of a request that is made for what its prompt leaves in the cache."""


class ChatPrompt(str):
    """A prompt that a model's chat template wrote, special tokens included; the engine adds none to it.

    A text made from a ChatPrompt, for example by joining, is a plain text again.
    template_args: as in SamplingOptions.
    cache_points: up to which of its characters it is to stay cached, and for how many seconds; see
      `cache_point`.
    """

    __slots__ = ("cache_points", "template_args")
    template_args: dict[str, Any] | None
    cache_points: tuple[tuple[int, float], ...]

    def __new__(
        cls,
        text: str,
        template_args: dict[str, Any] | None = None,
        cache_points: tuple[tuple[int, float], ...] = (),
    ) -> Self:
        prompt = super().__new__(cls, text)
        prompt.template_args = template_args
        prompt.cache_points = cache_points
        return prompt

    def fit_options(self, options: SamplingOptions) -> SamplingOptions:
        """Return the options as this prompt needs them."""
        options = replace(options, add_special_tokens=False)
        if self.template_args is None:
            return options
        # Many models mark their reasoning with special tokens.
        return replace(options, template_args=self.template_args, skip_special_tokens=False)


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt as the model reads it.

    token_ids: one integer for each token.
    offsets: for each token, the characters [start, end) of the text that it stands for; empty if the
      tokenizer cannot tell.
    """

    text: str
    token_ids: Sequence[int]
    offsets: Sequence[tuple[int, int]] = ()

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class TokenSegment:
    """A run of prompt tokens [start, end) that belong to one thing, such as one document.

    text_start: where a document's own text begins, behind what stands between it and the one before.
    """

    kind: SegmentKind
    start: int
    end: int
    document_id: str | None = None
    text_start: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"a segment holds at least one token, got [{self.start}, {self.end})")
        if (self.kind is SegmentKind.DOCUMENT) != (self.document_id is not None):
            raise ValueError("documents, and only documents, carry a document_id")

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Prompt tokens whose key-value tensors were reused, by the tier that held them."""

    device: int = 0
    host: int = 0
    disk: int = 0

    def __add__(self, other: CachedTokens) -> CachedTokens:
        return CachedTokens(
            self.device + other.device, self.host + other.host, self.disk + other.disk
        )

    def within(self, tokens: int) -> CachedTokens:
        """Return the first of these, at most so many: those on the device come first in a prompt."""
        device = min(self.device, tokens)
        host = min(self.host, tokens - device)
        return CachedTokens(device, host, min(self.disk, tokens - device - host))

    @property
    def total(self) -> int:
        """All reused tokens together."""
        return self.device + self.host + self.disk


def shares_by_source(
    prompt_tokens: int, cached: CachedTokens, borrowed: CachedTokens
) -> list[Share]:
    """Return what each tier gave of so many prompt tokens, and what was borrowed and computed.

    All sources are there, in the same order, also those that gave nothing. Without prompt tokens there
    are no shares.
    """
    if not prompt_tokens:
        return []
    parts = {
        "device": cached.device,
        "host": cached.host,
        "disk": cached.disk,
        BORROWED: borrowed.total,
        "computed": prompt_tokens - cached.total - borrowed.total,
    }
    return [Share(name, tokens / prompt_tokens) for name, tokens in parts.items()]


class SpeculationOutcome(StrEnum):
    """What became of the work that the engine began before the prompt came."""

    NONE = "none"  # nothing was begun
    ADOPTED = "adopted"  # the answer begun beforehand is the answer
    PREFILLED = "prefilled"  # as planned, the prompt was computed beforehand up to its documents
    OTHER_DOCUMENTS = "other documents"  # cancelled: the search found other documents in the end
    OTHER_PROMPT = "other prompt"  # cancelled: another prompt came than the expected one
    OTHER_OPTIONS = "other options"  # cancelled: the expected prompt came with other options
    EXPIRED = "expired"  # no prompt came in time
    FAILED = "failed"  # the backend failed


class SpeculationStep(StrEnum):
    """What happened to a question between its search and its first token."""

    STAGE = "stage"  # the search had provisional or final documents
    CANDIDATES = "candidates"  # documents were found, of which some will be in the prompt
    STARTED = "started"
    CANCELLED = "cancelled"
    PROMPT = "prompt"  # the engine was given the finished prompt
    ADOPTED = "adopted"
    FIRST_TOKEN = "first token"  # the backend computed it; before PROMPT if the answer was adopted


@dataclass(frozen=True, slots=True)
class SpeculationEvent:
    """One step on the way of a question to its answer. at_s: seconds since the question."""

    at_s: float
    step: SpeculationStep
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """What the engine did for one question before its prompt came.

    timeline: in the order of time. Empty if speculation is off, or if no retrieval led to the prompt.
    """

    outcome: SpeculationOutcome = SpeculationOutcome.NONE
    timeline: tuple[SpeculationEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentReuse:
    """Where the tensors of one document in a prompt came from.

    tokens: of the document. tier: where they were when the request came; None if they were computed for
      it. borrowed: tokens taken from another context. recomputed: tokens of a borrowed document that were
      computed anew in this prompt. The other tokens are exact, or computed where they stand: exactly, but
      behind documents that may be borrowed.
    joined: tokens between it and the document before it that were borrowed with it; none of `tokens`.
    """

    document: str
    tokens: int
    tier: str | None
    borrowed: int = 0
    recomputed: int = 0
    joined: int = 0


@dataclass(frozen=True, slots=True)
class Usage(ShownAsTable):
    """What one answer cost. `print(usage)` shows a table, and so does a notebook.

    ttft_s: seconds from the question to the first token. The question begins with the retrieval of the
      documents in the prompt, if this is the first prompt made from that retrieval; otherwise with the
      call to the engine.
    retrieval_s: the part of ttft_s before the engine was called; 0 without a retrieval.
    total_s: seconds from the question to the last token.
    cached: prompt tokens that were reused; of an answer that goes on after a failed attempt, those that
      the last attempt reused.
    document_ids: the documents recognised in the prompt, in the prompt's order.
    repeated_ids: the documents whose text stands further up in the prompt, written in the same way, once
      for each time. With EngineConfig.dedupe these places are left out, and are not in document_ids.
    borrowed: tokens taken from another context and not computed anew, by the tier that held them; see
      EngineConfig.reuse. recomputed_tokens: tokens of borrowed documents that were computed anew.
    reused: for each document of a prompt that borrowed, where its tensors came from.
    why_exact: why a prompt borrowed nothing, where the engine borrows at all.
    has_account: whether the backend told where the prompt's tokens came from. If not, `cached`,
      `borrowed` and `reused` are empty because nobody knows, as with a plain vLLM server.
    has_lost_attempt: whether the answer goes on after an attempt that was lost with the model's process
      and may have borrowed, though this one did not.
    speculation: what the engine did before the prompt came. If the request adopted an answer begun
      earlier, `cached` counts the tokens that were cached when that answer began.
    reasoning_tokens: those of output_tokens that are reasoning, as the reasoning parser counts them; 0 if
      it does not.

        >>> usage = Usage(1200, 64, CachedTokens(device=700, host=300), ttft_s=0.2, total_s=2.1)
        >>> usage.cached.total, usage.computed_tokens
        (1000, 200)
        >>> usage
        Usage(prompt_tokens=1200, cached=1000, output_tokens=64, ttft_s=0.200, total_s=2.100)
    """

    prompt_tokens: int
    output_tokens: int
    cached: CachedTokens
    ttft_s: float
    total_s: float
    retrieval_s: float = 0.0
    document_ids: tuple[str, ...] = ()
    repeated_ids: tuple[str, ...] = ()
    speculation: SpeculationReport = field(default_factory=SpeculationReport)
    borrowed: CachedTokens = field(default_factory=CachedTokens)
    recomputed_tokens: int = 0
    reused: tuple[DocumentReuse, ...] = ()
    why_exact: str | None = None
    has_lost_attempt: bool = False
    has_account: bool = True
    reasoning_tokens: int = 0

    @property
    def computed_tokens(self) -> int:
        """How many prompt tokens had to be prefilled, in this or in a donor; all if nobody knows."""
        return self.prompt_tokens - self.cached.total - self.borrowed.total

    @property
    def is_exact(self) -> bool:
        """Whether all tensors are known to be those that this prompt alone would have given."""
        is_known = self.has_account or self.why_exact is not None
        return is_known and not (self.reused or self.has_lost_attempt)

    def __repr__(self) -> str:
        borrowed = "" if self.is_exact else f", borrowed={self.borrowed.total}"
        cached = f"cached={self.cached.total}{borrowed}" if self.has_account else "cached=unknown"
        return (
            f"Usage(prompt_tokens={self.prompt_tokens}, {cached}, "
            f"output_tokens={self.output_tokens}, ttft_s={self.ttft_s:.3f}, total_s={self.total_s:.3f})"
        )

    def __str__(self) -> str:
        return self._table().as_text()

    def _table(self) -> Table:
        reused = f"{self.cached.total:,} of them reused exactly"
        if not self.has_account:
            reused = "how many were reused is not known"
        rows = [
            (
                "prompt tokens",
                f"{self.prompt_tokens:,}, {reused}",
            ),
            *([(BORROWED, f"{self.borrowed.total:,} tokens")] if self.reused else []),
            *([("recomputed", f"{self.recomputed_tokens:,} tokens")] if self.reused else []),
            *([("begun before a restart", "perhaps borrowed")] if self.has_lost_attempt else []),
            *([("borrowed nothing", self.why_exact)] if self.why_exact else []),
            ("answer tokens", f"{self.output_tokens:,}"),
            ("first token", f"after {self.ttft_s:.3f} s"),
            ("last token", f"after {self.total_s:.3f} s"),
        ]
        if self.retrieval_s:
            rows.append(("search", f"{self.retrieval_s:.3f} s of it"))
        if self.document_ids:
            rows.append(("documents", _list_some(self.document_ids)))
        if self.repeated_ids:
            rows.append(("repeated documents", _list_some(self.repeated_ids)))
        if self.speculation.outcome is not SpeculationOutcome.NONE:
            rows.append(("begun early", self.speculation.outcome.value))
        known_tokens = self.prompt_tokens if self.has_account else 0
        bar = shares_by_source(known_tokens, self.cached, self.borrowed)
        return Table("Usage", rows, bar)


class TokenLogprob(NamedTuple):
    """How likely a token of an answer was.

    token: the token's own text. logprob: the natural logarithm of its probability, by the model's own
    distribution, before temperature, top_p and the like. top: the most likely tokens at its place with
    theirs, the likeliest first.
    """

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer that streams. Only the last piece has a finish_reason and a usage.

    logprobs: of its tokens, if SamplingOptions.logprobs asked for them.
    reasoning: what the model thought, which is not in the text; see EngineConfig.reasoning_parser.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Answer(ShownAsTable):
    """A whole answer. `print(answer)` shows a table, and so does a notebook; `text` is the text alone.

    logprobs: of its tokens, if SamplingOptions.logprobs asked for them.
    reasoning: what the model thought before, which is not in the text; see
      EngineConfig.reasoning_parser.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""

    def __repr__(self) -> str:
        start = self.text if len(self.text) <= _START else f"{self.text[:_START]}…"
        return f"Answer({start!r}, {self.finish_reason.value!r}, {self.usage!r})"

    def __str__(self) -> str:
        return self._table().as_text()

    def _table(self) -> Table:
        usage = self.usage._table()
        answer = [("text", self.text), ("ended by", self.finish_reason.value)]
        return Table("Answer", [*answer, *usage.rows], usage.bar)


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What became of all speculations: work that was begun before its prompt came.

    started: all speculations. Those not counted in another field still run, or wait for their prompt.
    adopted: speculations whose answer became the answer to the prompt.
    prefilled: speculations that, as planned, computed the prompt up to its documents.
    cancelled: those for which other documents, another prompt or other options came. expired: those
      whose prompt did not come in time.
    wasted_prefill_tokens: prompt tokens computed for speculations that came to nothing. Where a prefill
      was cut short, the number is estimated from the time it took. It is an upper bound: later prompts
      may reuse these tokens from the cache.
    """

    started: int = 0
    adopted: int = 0
    prefilled: int = 0
    cancelled: int = 0
    expired: int = 0
    failed: int = 0
    wasted_prefill_tokens: int = 0


@dataclass(frozen=True, slots=True)
class HitRate:
    """How much of some prompts came from the cache.

    name: a document's id, or the name of a chain. prompts: how many answered prompts.
    tokens: prompt tokens of the chain, or tokens of the document, in these prompts. cached_tokens:
      those of them that were reused exactly, from any tier. borrowed_tokens: those that were borrowed
      from another context. label: the document's, if it has one.

        >>> HitRate("tides", prompts=2, tokens=200, cached_tokens=100).rate
        0.5
    """

    name: str
    prompts: int
    tokens: int
    cached_tokens: int
    borrowed_tokens: int = 0
    label: str | None = None

    @property
    def rate(self) -> float:
        """The share of tokens that were reused exactly; 0 without any token."""
        return self.cached_tokens / self.tokens if self.tokens else 0.0

    @property
    def borrowed_rate(self) -> float:
        """The share of tokens that were borrowed, so are approximate; 0 without any token."""
        return self.borrowed_tokens / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """How much the started model can take.

    context_tokens: the most tokens a prompt and its answer may have together.
    block_tokens: tokens in one block of KV memory; caching works in whole blocks.
    device_blocks, host_blocks: how many blocks the device tier and the host tier hold.
    step_tokens: the most tokens that one step of the model computes, for all requests together, while a
      provisional request is among them.
    """

    context_tokens: int
    block_tokens: int
    device_blocks: int
    step_tokens: int = 2048
    host_blocks: int = 0

    @property
    def device_tokens(self) -> int:
        """How many tokens the device tier holds."""
        return self.block_tokens * self.device_blocks

    @property
    def host_tokens(self) -> int:
        """How many tokens the host tier holds."""
        return self.block_tokens * self.host_blocks


_SHOWN = 5
_START = 60
"""So many characters of an answer stand in its short form."""


def _list_some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
