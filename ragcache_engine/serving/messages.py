"""What a client and a RAGCache server say to each other, as JSON. Both ends read and write it here.

A generation is one POST. Its answer is a stream of server-sent events, each with one JSON object: first
how many tokens the prompt has, then one for each step of the model. An object with "error" ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ragcache_engine.checks import LARGEST_INT, LONGEST_ID
from ragcache_engine.errors import EngineError, InvalidArgument, RAGCacheError
from ragcache_engine.guide import Guide
from ragcache_engine.protocols import BackendRequest, Conversation, Delta, PromptText
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.kept import LONGEST_KEPT_S
from ragcache_engine.tiers.provenance import ReuseReport
from ragcache_engine.tiers.tree_snapshot import MOST_DOCUMENTS
from ragcache_engine.values import (
    CachedTokens,
    FinishReason,
    ModelLimits,
    SamplingOptions,
    TokenLogprob,
)
from ragcache_engine.visible import quoted

PROTOCOL = 1
"""Both ends must speak the same; a change that an older end would misread raises it."""

ALIVE_S = 15.0
"""After how many seconds without a token the server sends a sign of life to the reader of an answer."""

PREFIX = "/ragcache"
"""All paths of ours begin so. vLLM's server has none below it."""

CORPORA = f"{PREFIX}/corpora"
"""Where documents are registered."""

MOST_DIMENSIONS = 8192
"""How many numbers the vector of a registered document may have."""

LINES = "application/x-ndjson"
"""The kind of a body of which each line is a JSON object."""


MOST_ADOPTED = 1000
"""How many earlier guesses one request may adopt; a client tells of others with its next one."""

MOST_WITHDRAWN = 2000
"""A prompt has at most half as many documents, each behind one other."""

MOST_STOPS, LONGEST_STOPS = 64, 4096
"""How many stop strings an answer may have, and of how many characters together. Each is looked for with
every token."""

LONGEST_GUIDE, MOST_CHOICES = 1 << 16, 1000
"""How many characters a guide may have, and how many texts a choice: a grammar is made of them."""

RequestName = Annotated[str, Field(max_length=200, pattern=r"^[!-~]*$")]
"""A client's own name for a request. It stands in the server's log, so it is of visible characters."""


class _Body(BaseModel):
    """A body that refuses what it does not know: a newer client must not be half understood."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GenerateBody(_Body):
    """The body of a generation.

    documents: (start, end, id) of each document in the prompt, in characters.
    options: the fields of SamplingOptions that differ from their defaults.
    request: the client's own name for the request; `adopted` of a later one refers to it.
    guess, provisional, exact, recompute_ratio, makes_donors, withdrawn: as in BackendRequest.
    neighbours: for each document that is stored behind another one: that one's id and text.
    adopted: earlier guesses that somebody asked for by now.
    """

    prompt: str
    documents: list[tuple[int, int, str]] = []
    options: dict[str, Any] = {}
    tenant: str | None = None
    request: RequestName
    guess: bool = False
    provisional: bool = False
    adopted: list[RequestName] = Field(default=[], max_length=MOST_ADOPTED)
    exact: bool = False
    recompute_ratio: float | None = Field(default=None, ge=0, le=1)
    neighbours: dict[str, tuple[str, str]] = {}
    makes_donors: bool = False
    withdrawn: list[str] = Field(default=[], max_length=MOST_WITHDRAWN)

    @classmethod
    def of(cls, request: BackendRequest, name: str, adopted: Sequence[str]) -> GenerateBody:
        """Write a request. name: what the server is to call it."""
        prompt = request.prompt
        assert isinstance(prompt, PromptText)
        return cls(
            prompt=prompt.text,
            documents=[(span.start, span.end, span.document_id) for span in request.spans],
            options=options_to_json(request.options),
            tenant=request.tenant,
            request=name,
            guess=request.is_guess,
            provisional=request.is_provisional,
            adopted=list(adopted),
            exact=request.is_exact,
            recompute_ratio=request.recompute_ratio,
            neighbours={
                name: (one.document, one.text)
                for name, one in request.contexts.items()
                if one.text is not None
            },
            makes_donors=request.makes_donors,
            withdrawn=list(request.withdrawn)[:MOST_WITHDRAWN],
        )


class TokenizeBody(_Body):
    """A text to tokenise."""

    text: str
    add_special_tokens: bool = True


class DetokenizeBody(_Body):
    """Tokens to write as text."""

    token_ids: list[Annotated[int, Field(ge=0, le=LARGEST_INT)]]
    skip_special_tokens: bool = True


class RenderBody(_Body):
    """A Conversation, for the chat template to write."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template: str | None = None
    template_args: dict[str, Any] = {}

    @classmethod
    def of(cls, conversation: Conversation) -> RenderBody:
        """Write a conversation."""
        return cls.model_validate(
            {
                **{field.name: getattr(conversation, field.name) for field in fields(conversation)},
                "messages": [dict(message) for message in conversation.messages],
                "tools": [dict(tool) for tool in conversation.tools],
            }
        )

    def conversation(self) -> Conversation:
        """Read the conversation."""
        return Conversation(**{name: getattr(self, name) for name in type(self).model_fields})


class ToolCallsBody(_Body):
    """An answer, to read the calls of these tools from."""

    tools: list[dict[str, Any]]
    text: str


class CorpusLine(_Body):
    """A document to register: a line of a body.

    metadata: what its client wants to find there again. vector: as in Registered.
    """

    id: str
    text: str
    metadata: dict[str, Any] = {}
    vector: list[float] | None = Field(default=None, min_length=1, max_length=MOST_DIMENSIONS)


class RemoveBody(_Body):
    """Documents of a corpus to register no more."""

    ids: list[str]


class KeepBody(_Body):
    """How to keep documents from eviction. for_s: how many seconds; None: until they are released."""

    tier: Literal["host", "disk"] = "disk"
    for_s: Annotated[float, Field(gt=0, le=LONGEST_KEPT_S, allow_inf_nan=False)] | None = None


class ReleaseBody(_Body):
    """Documents of a corpus to keep no longer; without ids all of them."""

    ids: list[str] | None = None


class WarmBody(_Body):
    """Documents of a corpus to prepare now; without ids all of them.

    cache_salt: as the prompts have it that are to find them. keep: keep them from then on; None: they may
    be evicted like all others.
    """

    ids: list[str] | None = None
    keep: KeepBody | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=LONGEST_ID)] | None = None


class ForgetBody(_Body):
    """Documents to forget, by id, and tenants to forget whole, with their users."""

    document_ids: list[str] = Field(default_factory=list)
    tenants: list[str] = Field(default_factory=list)


class TreeBody(_Body):
    """A look at the knowledge tree, with at most this many documents; see Backend.snapshot."""

    documents: int = Field(default=MOST_DOCUMENTS, ge=1, le=MOST_DOCUMENTS)
    with_bloom_filter: bool = False


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """What a server tells of itself.

    models: the names by which requests may ask for its model, the first one first.
    tool_parser, reasoning_parser: as in EngineConfig.
    tenant: whose tensors the client's key gives access to; None if the client names the tenant itself.
    is_operator: whether the key may forget, clear the cache and read the counters.
    reuse: its settings of reuse at any position, by their names in EngineConfig; empty without it.
    """

    models: tuple[str, ...]
    limits: ModelLimits
    tool_parser: str | None = None
    tenant: str | None = None
    is_operator: bool = False
    reuse: Mapping[str, Any] = field(default_factory=dict)
    protocol: int = PROTOCOL
    reasoning_parser: str | None = None

    def to_json(self) -> dict[str, Any]:
        said = asdict(self)
        if self.reasoning_parser is None:
            del said["reasoning_parser"]  # older clients do not know it
        return said

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> ServerDescription:
        known = {name: said[name] for name in cls.__dataclass_fields__ if name in said}
        return cls(
            **{**known, "models": tuple(said["models"]), "limits": ModelLimits(**said["limits"])}
        )


def options_to_json(options: SamplingOptions) -> dict[str, Any]:
    """Return the options that are not the default ones, as plain values."""
    default = SamplingOptions()
    said = {
        field.name: getattr(options, field.name)
        for field in fields(options)
        if getattr(options, field.name) != getattr(default, field.name)
    }
    if options.guide:
        said["guide"] = {"kind": options.guide.kind.value, "form": list(options.guide.form)}
    if "stop" in said:
        said["stop"] = list(options.stop)
    return said


def options_from_json(said: Mapping[str, Any]) -> SamplingOptions:
    """Read options. Raises InvalidArgument for a value that cannot be, or a field that is not known."""
    given = dict(said)
    if unknown := set(given) - {field.name for field in fields(SamplingOptions)}:
        raise InvalidArgument(
            f"this server knows no option {quoted(sorted(unknown))}: use the RAGCache version of the "
            f"server, or leave the option out"
        )
    guide = given.pop("guide", None)
    if guide is not None:
        if not isinstance(guide, Mapping) or set(guide) != {"kind", "form"}:
            raise InvalidArgument('guide must be {"kind": ..., "form": [...]}')
        given["guide"] = Guide(guide["kind"], _read_form(guide["form"]))
    if "stop" in given:
        _require_size("stop", given["stop"], MOST_STOPS, LONGEST_STOPS)
    return SamplingOptions(**given)


def _read_form(form: Any) -> tuple[str, ...]:
    _require_size("guide", form, MOST_CHOICES, LONGEST_GUIDE)
    return tuple(form)


def _require_size(name: str, texts: Any, most: int, characters: int) -> None:
    """Raise InvalidArgument unless these are so few texts with so few characters together."""
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidArgument(f"{name} has a list of texts")
    if len(texts) > most or sum(map(len, texts)) > characters:
        raise InvalidArgument(
            f"{name} has {len(texts):,} texts of {sum(map(len, texts)):,} characters together, and a "
            f"server takes {most:,} of {characters:,}: shorten it"
        )


def delta_to_json(delta: Delta, counters: Counters | None) -> dict[str, Any]:
    """Write a delta. counters: those of the tiers, with the last delta for a client that may see them."""
    said: dict[str, Any] = {"text": delta.text, "tokens": list(delta.token_ids)}
    if delta.logprobs:
        said["logprobs"] = delta.logprobs
    if delta.reasoning:
        said["reasoning"] = delta.reasoning
    if delta.cached is not None:
        said["cached"] = [delta.cached.device, delta.cached.host, delta.cached.disk]
    if delta.finish_reason is not None:
        said["finish"] = delta.finish_reason.value
        if delta.reasoning_tokens:
            said["reasoning_tokens"] = delta.reasoning_tokens
        if counters is not None:
            said["counters"] = counters.as_dict()
        if delta.reuse is not None:
            said["reuse"] = delta.reuse.to_dict()
        if delta.why_exact is not None:
            said["why_exact"] = delta.why_exact
    return said


def delta_from_json(said: Mapping[str, Any]) -> Delta:
    """Read a delta, or the count of the prompt's tokens before the first one."""
    cached, finish = said.get("cached"), said.get("finish")
    return Delta(
        said.get("text", ""),
        tuple(said.get("tokens", ())),
        CachedTokens(*cached) if cached is not None else None,
        FinishReason(finish) if finish is not None else None,
        reuse=ReuseReport.from_dict(said["reuse"]) if "reuse" in said else None,
        why_exact=said.get("why_exact"),
        prompt_tokens=said.get("prompt_tokens"),
        logprobs=tuple(
            TokenLogprob(token, logprob, tuple((text, number) for text, number in top))
            for token, logprob, top in said.get("logprobs", ())
        ),
        reasoning=said.get("reasoning", ""),
        reasoning_tokens=said.get("reasoning_tokens", 0),
    )


def error_to_json(error: Exception) -> dict[str, Any]:
    """Write an error. An unexpected one tells its class only: its text may say too much."""
    if isinstance(error, RAGCacheError):
        return {"error": {"kind": type(error).__name__, "message": str(error)}}
    message = f"the server failed with {type(error).__name__}; its log tells more"
    return {"error": {"kind": "GenerationFailed", "message": message}}


def error_from_json(said: Mapping[str, Any]) -> RAGCacheError | None:
    """Read an error that `error_to_json` wrote; None for anything else, such as another server's."""
    error = said.get("error")
    if not isinstance(error, Mapping) or not isinstance(error.get("kind"), str):
        return None
    kind = _find_kind(error["kind"], RAGCacheError) or EngineError  # of a newer server
    return kind(str(error.get("message")))


def _find_kind(name: str, root: type[RAGCacheError]) -> type[RAGCacheError] | None:
    """Return the error of this name at or below `root`, if the engine's tree of errors has one."""
    if root.__name__ == name and root.__module__ == RAGCacheError.__module__:
        return root
    return next((found for one in root.__subclasses__() if (found := _find_kind(name, one))), None)
