"""The settings of an engine, checked when they are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from ragcache_engine.errors import ConfigError
from ragcache_engine.knowledge.cost import CostProfile
from ragcache_engine.knowledge.eviction import DEFAULT_POLICY, POLICIES
from ragcache_engine.tiers.shared.address import read_address

BackendName = Literal["auto", "vllm", "memory", "server"]
SpeculationMode = Literal["auto", "on", "off"]
ReuseMode = Literal["prefix", "anywhere"]
DonorKind = Literal["neighbours", "alone", "any"]
MissingDonors = Literal["compute", "later"]
DonorDtype = Literal["auto", "int8"]

OF_A_CLIENT = {
    "model",
    "backend",
    "server_url",
    "api_key",
    "document_order",
    "dedupe",
    "policy",
    "request_timeout_s",
    "speculation",
    "chat_template",
    "tool_parser",
    "reasoning_parser",
}
"""The settings with backend="server". The others are the server's own."""


class EngineConfig(BaseModel):
    """The settings of a RAGCacheEngine. They cannot change; unknown names are refused.

        >>> config = EngineConfig(model="org/name", device_cache="2GiB", disk_cache="100GiB")
        >>> config.device_cache, config.policy
        (2147483648, 'halflife')

    model: a hub id such as "HuggingFaceTB/SmolLM2-135M-Instruct", or a folder that holds a model. With
      backend="server", the name by which the server serves it. Only backend="memory" needs none.
    served_model_name: the model's name in usage, traces and representations. None: that of vllm_args, if
      it has one; else the hub id, or the name of the folder without the way to it.
    backend: "vllm"; "memory", an in-process engine without a model, for tests of your own chains; "auto",
      which is vllm if it is installed, and an error if not; "server" asks a server, see
      RAGCacheEngine.connect.
    server_url, api_key: the server's address, such as "http://host:8000", and the key to send it; None:
      the environment variable RAGCACHE_API_KEY, if it is set.
    device_cache: bytes of device memory for key-value tensors ("2GiB", 2147483648). None: vLLM chooses
      on a GPU; on a CPU it is a quarter of the free memory, at most 4 GiB. It must hold at least one
      request of the model's full context.
    host_cache: bytes of host memory for copies of documents' tensors. The engine loads a copy back when
      the device has overwritten its own tensors. None: 4 GiB beside a GPU, at most a quarter of the
      free memory; on a CPU 0, as the device cache is host memory already, or 1 GiB if there is a disk
      cache.
    disk_cache: bytes of disk below the host cache; 0 for none. Its files survive the process, and several
      engines may share them.
    disk_cache_dir: the folder of the disk cache; None: kv/ in $RAGCACHE_HOME, by default
      ~/.cache/ragcache.
    disk_cache_key: encrypts what the disk cache and the shared one hold; None: it is not. It says where
      the key comes from: "env:NAME", "file:PATH" or "command:PROGRAM ARGUMENTS"; see docs/tiers.md.
    shared_cache: the URL of a store that the engines of several hosts share, below their disk caches:
      "redis://host:6379" (rediss:// with TLS) or "s3://bucket/prefix" (gs://, az://, file://), with
      options behind "?"; see docs/guides/hosts.md. None: there is none. Passwords come from the
      environment.
    host_cache_per_tenant, disk_cache_per_tenant: how much of these caches the documents of one tenant may
      take, those of its users among them ("shop::anna" is a user of "shop"). One that needs more evicts
      its own. Each engine counts what itself has. None: as much as fits. For the shared cache it is an
      option of its URL.
    policy: which documents a full tier evicts first; a name of knowledge.POLICIES.
    reorder_window: the waiting request with the most cached and the least to compute goes first. Each may
      be overtaken by at most this many others, or by three quarters of those that waited when it came if
      that is more. 1: in order of arrival.
    document_order: how retrievers order the documents they found. "retrieved": nearest first, so that
      the prompt is what the pipeline would write without RAGCache; "canonical": sorted by id; "cached":
      cached documents first. The last two reuse more tensors, but change the prompt, and so perhaps the
      answer.
    dedupe: leave out of a prompt what stands further up in it, written in the same way: a document of an
      earlier turn that is found again, or one text under two ids. "[as above]" stands there instead, so
      the model reads a changed prompt. See Usage.repeated_ids.
    cache_depth: cache only this many documents from the start of a prompt; None: all.
    reuse: which tensors of a document a prompt may use. "prefix": those computed behind the same tokens,
      so answers never change. "anywhere": the engine stores each document once more in a short prompt of
      its own, its donor. Prompts borrow all documents after the first from there, at any position, and
      compute a part of their tokens anew. Answers are then approximate; see docs/guides/anywhere.md.
    recompute_ratio: with reuse="anywhere", the share of a borrowed document's tokens to compute anew,
      from 0 (fastest) to 1 (exact). None: as `ragcache calibrate` found for this model, dtype, chat
      template and donors; where it found nothing, 0.1, and a warning says that it is not calibrated.
    donors: with reuse="anywhere", where each document is stored to be borrowed. "neighbours": behind the
      document's nearest one in the corpus; "alone": behind the system text only; "any": nowhere: it is
      borrowed from whatever prompt it stood in before, so nothing has to be prepared, and answers depend
      on what was asked before.
    missing_donors: with reuse="anywhere", what happens to documents that nobody has prepared. "later":
      they are computed where they stand in the prompt, and prepared while no request runs; so no prompt
      computes more than its exact answer. "compute": they are computed in their
      donors' contexts first, so that answers do not depend on what is cached; a prompt of new documents
      then takes longer than an exact one.
    donor_dtype: with reuse="anywhere", in which type donors are kept. "auto": as vLLM keeps all tensors.
      "int8": in eight bits a number, so that up to three times as many fit into each tier; what is
      borrowed has always been packed so before. A backend without tensors keeps them as they are.
    recheck_share: with reuse="anywhere", the share of greedy answers that the engine computes once more,
      exactly, while no request runs; `stats().drift` tells how unlike they were. If a calibration gave
      the ratio, and answers have become less alike than it wants, the engine borrows no more and logs a
      warning. 0: never; see docs/guides/calibrating.md.
    kept_share: which part of the host tier, and of the disk tier, `keep` may keep from eviction, 0 to 1.
    cost_profile: the file that `ragcache profile` wrote for this model and machine: how long computing
      and loading take. Without it, the engine begins with a rough formula and learns from the steps it
      sees.
    request_timeout_s: if the backend shows no token of any request for this long, the engine tries
      every waiting request once more, and then ends it with RequestTimedOut. Waiting in a busy queue
      does not count.
    speculation: whether to begin an answer before its prompt comes, on the documents that the search has
      found so far or in the end. "auto": where measurements show that it gains time, so not for prompts
      that cannot be foreseen, or under load, and during a search only if that takes more than a few
      milliseconds. It never changes an answer.
    chat_template: the Jinja text that writes conversations, or the path of a file with that text. None:
      the model's own.
    tool_parser: the name of vLLM's parser for the model's tool calls, as for `--tool-call-parser` of its
      server: "hermes", "llama3_json", ... None reads JSON between <tool_call> tags. Qwen2.5, SmolLM3
      and Hermes models write that. So do models whose chat template has no place for tools: the system
      message asks them for it.
    reasoning_parser: the name of vLLM's parser for the model's reasoning, as for `--reasoning-parser` of
      its server: "qwen3", "deepseek_r1", ... What a model thinks then stands in `Answer.reasoning` and
      `Piece.reasoning` instead of the text, and a guide holds what comes behind it; so for the answers to
      ChatPrompts, as other prompts are continued as they are. None leaves it in the text.
    vllm_log: where vLLM's log goes, and what its processes print. "file": into a file of its own in
      logs/ of $RAGCACHE_HOME, which errors name and quote; one line on standard error tells of it while
      the model loads. RAGCache's warnings go through `logging` as ever. "show": vLLM logs in its own
      way. So it does if VLLM_LOGGING_CONFIG_PATH is set, or one of vllm_args configures its logging.
      VLLM_LOGGING_LEVEL sets the level for both.
    vllm_args: arguments for vLLM's AsyncEngineArgs, passed on as they are, for example
      {"dtype": "float32", "max_model_len": 4096}. They override what RAGCache would choose.

    Raises pydantic's ValidationError, a ValueError, for a value or a combination that cannot work.
    """

    # Of what cannot be used, some is secret: a URL with a password, a key instead of its place.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    model: str = Field(default="memory", min_length=1)
    served_model_name: str | None = Field(default=None, min_length=1)
    backend: BackendName = "auto"
    server_url: str | None = None
    api_key: SecretStr | None = None
    device_cache: ByteSize | None = Field(default=None, gt=0)
    host_cache: ByteSize | None = Field(default=None, ge=0)
    disk_cache: ByteSize = Field(default=ByteSize(0), ge=0)
    disk_cache_dir: Path | None = None
    disk_cache_key: str | None = None
    shared_cache: str | None = None
    host_cache_per_tenant: ByteSize | None = Field(default=None, gt=0)
    disk_cache_per_tenant: ByteSize | None = Field(default=None, gt=0)
    policy: str = DEFAULT_POLICY
    reorder_window: int = Field(default=32, ge=1)
    document_order: Literal["retrieved", "canonical", "cached"] = "retrieved"
    dedupe: bool = False
    cache_depth: int | None = Field(default=None, ge=1)
    reuse: ReuseMode = "prefix"
    recompute_ratio: float | None = Field(default=None, ge=0, le=1)
    donors: DonorKind = "neighbours"
    missing_donors: MissingDonors = "later"
    donor_dtype: DonorDtype = "auto"
    recheck_share: float = Field(default=0.01, ge=0, le=1)
    kept_share: float = Field(default=0.5, ge=0, le=1)
    cost_profile: Path | None = None
    request_timeout_s: float = Field(default=120.0, gt=0)
    speculation: SpeculationMode = "auto"
    chat_template: str | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    vllm_log: Literal["file", "show"] = "file"
    vllm_args: dict[str, Any] = Field(default_factory=dict)

    @property
    def model_name(self) -> str:
        """The name to show for the model; see served_model_name."""
        named = self.served_model_name or self.vllm_args.get("served_model_name")
        if isinstance(
            named, (list, tuple)
        ):  # vLLM's own may be several, of which it shows the first
            named = named[0] if named else None
        if named:
            return str(named)
        path = Path(self.model).expanduser()
        is_path = path.is_absolute() or path.is_dir() or self.model.startswith(("~", "."))
        return path.resolve().name or self.model if is_path else self.model

    @property
    def tells_reasoning(self) -> bool:
        """Whether reasoning is told apart from answers; the parser may stand in vllm_args as well."""
        return bool(self.vllm_args.get("reasoning_parser", self.reasoning_parser))

    @property
    def prepares_later(self) -> bool:
        """Whether documents that nobody prepared are left to idle time; see missing_donors."""
        needs_donors = self.reuse == "anywhere" and self.donors != "any"
        return needs_donors and self.missing_donors == "later" and self.backend != "server"

    @property
    def share_to_recheck(self) -> float:
        """The share of answers to answer once more: recheck_share where anything is borrowed, else 0."""
        return self.recheck_share if self.reuse == "anywhere" else 0.0

    @field_validator("policy")
    @classmethod
    def _is_a_policy(cls, name: str) -> str:
        if name not in POLICIES:
            raise ValueError(f"there is no policy {name!r}; choose one of {', '.join(POLICIES)}")
        return name

    @field_validator("cost_profile")
    @classmethod
    def _is_a_profile(cls, path: Path | None) -> Path | None:
        if path is not None:
            path = path.expanduser()
            try:
                CostProfile.from_json(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ValueError(f"cost_profile {path} cannot be used: {error}") from error
        return path

    @field_validator("chat_template", mode="before")
    @classmethod
    def _read_chat_template(cls, template: Any) -> Any:
        if template is None or "{" in str(template):
            return template
        try:
            return Path(template).expanduser().read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(
                f"chat_template is neither a Jinja text nor a file that can be read: {error}"
            ) from error

    @model_validator(mode="after")
    def _names_a_model(self) -> Self:
        if self.backend != "memory" and "model" not in self.model_fields_set:
            raise ValueError(
                'model is missing: give a hub id such as model="HuggingFaceTB/SmolLM2-135M-Instruct", '
                'or a folder that holds a model; only backend="memory" needs none'
            )
        return self

    @model_validator(mode="after")
    def _recomputes_what_it_borrows(self) -> Self:
        if self.reuse == "prefix" and self.recompute_ratio is not None:
            raise ValueError(
                'recompute_ratio is given, and reuse="prefix" borrows nothing that could be computed '
                'anew: set reuse="anywhere" as well, or leave recompute_ratio out'
            )
        if self.reuse == "prefix":
            for name, harmless in (
                ("donors", ("neighbours",)),
                ("missing_donors", ("later",)),
                ("donor_dtype", ("auto",)),
                ("recheck_share", (0.0, 0.01)),
            ):
                if getattr(self, name) not in harmless:
                    raise ValueError(
                        f'{name} is given, and reuse="prefix" borrows nothing: set reuse="anywhere" as '
                        f"well, or leave {name} out"
                    )
        if self.donors == "any" and self.donor_dtype != "auto":
            raise ValueError(
                f'donor_dtype="{self.donor_dtype}" is given, and donors="any" borrows from prompts that '
                'are kept as they are: set donors="neighbours" or "alone", or leave donor_dtype out'
            )
        if self.donors == "any" and self.missing_donors == "compute":
            raise ValueError(
                'missing_donors="compute" is given, and donors="any" prepares no documents: set '
                'donors="neighbours" or "alone", or leave missing_donors out'
            )
        return self

    @model_validator(mode="after")
    def _leaves_to_the_server_what_is_its_own(self) -> Self:
        if (self.backend == "server") != (self.server_url is not None):
            raise ValueError(
                'backend="server" and server_url go together: RAGCacheEngine.connect(url) sets both'
            )
        if self.backend == "server" and (strays := self.model_fields_set - OF_A_CLIENT):
            raise ValueError(
                f"{', '.join(sorted(strays))}: settings of the server, for `ragcache serve`, not for a "
                f"client"
            )
        return self

    @field_validator("disk_cache_key")
    @classmethod
    def _key_is_elsewhere(cls, said: str | None) -> str | None:
        kind, _, rest = (said or "").partition(":")
        if said is not None and not (kind in ("env", "file", "command") and rest.strip()):
            raise ValueError(
                "it says where the key comes from: env:NAME, file:PATH or command:PROGRAM ARGUMENTS"
            )
        return said

    @field_validator("shared_cache")
    @classmethod
    def _store_has_an_address(cls, said: str | None) -> str | None:
        if said is not None:
            try:
                read_address(said)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return said

    @model_validator(mode="after")
    def _disk_stands_on_host(self) -> Self:
        if self.disk_cache and self.host_cache == 0:
            raise ValueError(
                "a disk cache needs a host cache, through which its blocks travel: leave host_cache "
                "out, or give it as much as one long prompt takes"
            )
        if self.disk_cache_dir is not None and not self.disk_cache:
            raise ValueError("disk_cache_dir is given and disk_cache is 0: give it a size as well")
        if self.disk_cache_key is not None and not self.disk_cache:
            raise ValueError("disk_cache_key is given and disk_cache is 0: give it a size as well")
        if self.shared_cache is not None and not self.disk_cache:
            raise ValueError(
                "shared_cache stands below a disk cache, which remembers what was forgotten: give "
                "disk_cache a size, such as 4GiB"
            )
        if self.disk_cache_per_tenant is not None and not self.disk_cache:
            raise ValueError(
                "disk_cache_per_tenant is given and disk_cache is 0: give it a size as well"
            )
        if self.host_cache_per_tenant is not None and self.host_cache == 0:
            raise ValueError(
                "host_cache_per_tenant is given and host_cache is 0: give it a size as well"
            )
        return self
