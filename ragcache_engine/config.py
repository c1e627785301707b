"""Settings of the engine, checked where they are born."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field

BackendName = Literal["auto", "vllm", "memory"]
SpeculationMode = Literal["auto", "on", "off"]


class EngineConfig(BaseModel):
    """How a RAGCacheEngine is set up. Frozen; unknown names are refused.

    model: a hub id such as "HuggingFaceTB/SmolLM2-135M-Instruct", or a folder holding a model.
    backend: "vllm"; "memory", an in-process fake for tests of your own chains; "auto", vllm if it is
      installed.
    device_cache: bytes of device memory for key-value tensors ("2GiB", 2147483648). None leaves the
      choice to vLLM on a GPU; on a CPU it is a quarter of the free memory, at most 4 GiB. It must
      hold at least one request of the model's full context.
    request_timeout_s: once the engine has shown no token of any request for this long, those that
      wait are tried once more, then ended with RequestTimedOut. Waiting in a busy queue is no fault.
    speculation: whether to answer on provisional search results, before the prompt has come. "auto" does
      where it is measured to gain time: not for searches of a few milliseconds, prompts that cannot be
      foreseen, or under load. Answers are the same in any case.
    vllm_args: passed to vLLM's AsyncEngineArgs as they are, for example {"dtype": "float32",
      "max_model_len": 4096}. They win over what RAGCache would choose.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1)
    backend: BackendName = "auto"
    device_cache: ByteSize | None = Field(default=None, gt=0)
    request_timeout_s: float = Field(default=120.0, gt=0)
    speculation: SpeculationMode = "auto"
    vllm_args: dict[str, Any] = Field(default_factory=dict)
