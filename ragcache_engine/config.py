"""Settings of the engine, checked where they are born."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator, model_validator

from ragcache_engine.knowledge.cost import CostProfile
from ragcache_engine.knowledge.eviction import DEFAULT_POLICY, POLICIES

BackendName = Literal["auto", "vllm", "memory"]
SpeculationMode = Literal["auto", "on", "off"]


class EngineConfig(BaseModel):
    """How a RAGCacheEngine is set up. Frozen; unknown names are refused.

        >>> config = EngineConfig(model="org/name", device_cache="2GiB", disk_cache="100GiB")
        >>> config.device_cache, config.policy
        (2147483648, 'halflife')

    model: a hub id such as "HuggingFaceTB/SmolLM2-135M-Instruct", or a folder that holds a model. Only
      backend="memory" needs none.
    backend: "vllm"; "memory", an in-process fake for tests of your own chains; "auto", vllm if it is
      installed.
    device_cache: bytes of device memory for key-value tensors ("2GiB", 2147483648). None leaves the
      choice to vLLM on a GPU; on a CPU it is a quarter of the free memory, at most 4 GiB. It must
      hold at least one request of the model's full context.
    host_cache: bytes of host memory that documents' tensors are copied to, to be loaded back when the
      device has overwritten them. None is 4 GiB beside a GPU, at most a quarter of the free memory;
      on a CPU it is 0, as the device cache is host memory already, or 1 GiB if there is a disk cache.
    disk_cache: bytes of disk below that; 0 for none. It survives the process, and engines may share it.
    disk_cache_dir: the folder of the disk cache; ~/.cache/ragcache/kv if None.
    policy: who leaves a full tier, a name of knowledge.POLICIES.
    reorder_window: among so many waiting requests, the one with most cached and least to compute goes
      first; no request is overtaken more often than that. 1 is first come, first served.
    document_order: how retrievers hand over what they found. "retrieved": nearest first, the prompt is
      what the pipeline writes; "canonical": sorted by id; "cached": what is cached comes first. The last
      two change the prompt, and with it perhaps the answer, for more reuse.
    cache_depth: only the first so many documents of a prompt are kept; None keeps all.
    cost_profile: the file `ragcache profile` wrote for this model and machine: what computing and loading
      take, where the engine would else begin with a rough formula and learn from the steps it sees.
    request_timeout_s: once the engine has shown no token of any request for this long, those that
      wait are tried once more, then ended with RequestTimedOut. Waiting in a busy queue is no fault.
    speculation: whether to answer on provisional search results, before the prompt has come. "auto" does
      where it is measured to gain time: not for searches of a few milliseconds, prompts that cannot be
      foreseen, or under load. Answers are the same in any case.
    chat_template: the Jinja text that conversations are written with, or the path of a file with it; None
      is the model's own.
    tool_parser: the name of vLLM's parser for the model's tool calls, as `--tool-call-parser` of its
      server: "hermes", "llama3_json", ... None reads JSON between <tool_call> tags, which Qwen2.5,
      SmolLM3 and Hermes models write, and all that are told of tools in the system message.
    vllm_args: passed to vLLM's AsyncEngineArgs as they are, for example {"dtype": "float32",
      "max_model_len": 4096}. They win over what RAGCache would choose.

    Raises pydantic's ValidationError, a ValueError, for a value or a combination that cannot work.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(default="memory", min_length=1)
    backend: BackendName = "auto"
    device_cache: ByteSize | None = Field(default=None, gt=0)
    host_cache: ByteSize | None = Field(default=None, ge=0)
    disk_cache: ByteSize = Field(default=ByteSize(0), ge=0)
    disk_cache_dir: Path | None = None
    policy: str = DEFAULT_POLICY
    reorder_window: int = Field(default=32, ge=1)
    document_order: Literal["retrieved", "canonical", "cached"] = "retrieved"
    cache_depth: int | None = Field(default=None, ge=1)
    cost_profile: Path | None = None
    request_timeout_s: float = Field(default=120.0, gt=0)
    speculation: SpeculationMode = "auto"
    chat_template: str | None = None
    tool_parser: str | None = None
    vllm_args: dict[str, Any] = Field(default_factory=dict)

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
    def _disk_stands_on_host(self) -> Self:
        if self.disk_cache and self.host_cache == 0:
            raise ValueError(
                "a disk cache needs a host cache, through which its blocks travel: leave host_cache "
                "out, or give it as much as one long prompt takes"
            )
        if self.disk_cache_dir is not None and not self.disk_cache:
            raise ValueError("disk_cache_dir is given and disk_cache is 0: give it a size as well")
        return self
