"""What RAGCacheLLM and ChatRAGCache have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_config_list
from pydantic import AliasChoices, ConfigDict, Field

from ragcache_engine import EngineConfig, EngineNeeded, InvalidArgument, SamplingOptions
from ragcache_integrations.engine_field import ENGINE_SECRET, Engine
from ragcache_integrations.model_repr import describe_model
from ragcache_integrations.sampling import SamplingFields

MOST_AT_ONCE = 128
"""How many requests of one batch may be in the engine at a time. A thread waits for each of them."""

_OF_REQUESTS = {
    "tenant": "tenant",
    "exact": "exact",
    "timeout": "timeout",
    "request_timeout": "timeout",
}
"""What a call may set beside sampling parameters, and the fields that it stands for."""


class EngineModel(SamplingFields):
    """A LangChain model on an engine: its name, and how it is traced and saved.

    tenant: whose cached tensors the requests may use; prompts of different tenants share nothing.
    exact: borrow nothing from other contexts, even if the engine has reuse="anywhere".
    timeout: end a request with RequestTimedOut that has no whole answer after so many seconds;
      `request_timeout` is another name for it. None: no limit but the engine's request_timeout_s.
    logprobs: tell how likely each token of an answer was. top_logprobs: of so many tokens in its place as
      well, 20 at most. They come in the form of OpenAI's chat API, as ChatOpenAI gives them.
    A call may set these for itself.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    engine: Engine = Field(exclude=True, repr=False)
    tenant: str | None = None
    exact: bool = False
    timeout: float | None = Field(
        default=None, gt=0, validation_alias=AliasChoices("timeout", "request_timeout")
    )

    logprobs: bool | None = None
    top_logprobs: int | None = None

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True

    @property
    def lc_secrets(self) -> dict[str, str]:
        """Name the engine as the secret that loading a saved model needs.

        `load(dumped, secrets_map={"RAGCACHE_ENGINE": engine})` puts the model on that engine.
        """
        return {"engine": ENGINE_SECRET}

    @property
    def lc_attributes(self) -> dict[str, Any]:
        return {"guide": asdict(self.guide)} if self.guide else {}

    def __getstate__(self) -> dict[Any, Any]:
        raise EngineNeeded(
            f"an engine lives in one process, so {type(self).__name__} cannot be pickled: send "
            f"langchain_core.load.dumps(model), and load it with secrets_map={{{ENGINE_SECRET!r}: "
            f"engine}}, as docs/guides/langchain.md shows"
        )

    def __repr__(self) -> str:
        return describe_model(self, self.engine)

    def __str__(self) -> str:
        return repr(self)

    @property
    def model_name(self) -> str:
        return self.engine.config.model_name

    @property
    def max_tokens(self) -> int:
        """`max_new_tokens`, by the name that LangChain's tracing looks for."""
        return self.max_new_tokens

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """Name everything that may change an answer, because LangChain caches answers by it."""
        return {
            "model_name": self.model_name,
            "engine": engine_fingerprint(self.engine.config),
            "tenant": self.tenant,
            "exact": self.exact,
            "logprobs": self.logprobs,
            "top_logprobs": self.top_logprobs,
            **self.sampling_parameters(),
        }

    def sampling_options(self, changes: Mapping[str, Any] | None = None) -> SamplingOptions:
        changes = dict(changes or {})
        is_refused = "logprobs" in changes and not changes["logprobs"]
        logprobs = changes.pop("logprobs", self.logprobs)
        most = changes.pop("top_logprobs", None if is_refused else self.top_logprobs)
        if most and not logprobs:
            raise InvalidArgument(f"top_logprobs={most} needs logprobs=True")
        options = super().sampling_options(
            {name: value for name, value in changes.items() if name not in _OF_REQUESTS}
        )
        return replace(options, logprobs=most or 0) if logprobs else options

    def request_settings(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a call tells the engine beside the prompt and its sampling options.

        changes: what this call sets for itself.
        """
        given = {name: getattr(self, name) for name in _OF_REQUESTS.values()} | {
            _OF_REQUESTS[name]: value for name, value in changes.items() if name in _OF_REQUESTS
        }
        return {
            "tenant": given["tenant"],
            "exact": given["exact"],
            "timeout_s": given["timeout"],
        }


def engine_fingerprint(config: EngineConfig) -> str:
    """Return a short text that differs between engines that may answer differently.

    Only a digest, because tracers and caches keep it, and vllm_args may hold a secret.
    """
    # Settings of caches and timing are left out: they do not change answers.
    facts = (
        config.model,
        config.backend,
        config.server_url,
        config.chat_template,
        config.tool_parser,
        config.reasoning_parser,
        config.dedupe,
        (config.reuse, config.recompute_ratio, config.donors),
        sorted(config.vllm_args.items()),
    )
    return sha256(repr(facts).encode()).hexdigest()[:16]


def one_thread_each(
    config: RunnableConfig | list[RunnableConfig] | None, count: int
) -> list[RunnableConfig]:
    """Return the configurations of a batch's inputs, with a thread for each input unless they say less.

    With fewer threads, the engine would get fewer requests at a time than it can batch.
    """
    configs = get_config_list(config, count)
    for one in configs:
        if one.get("max_concurrency") is None:
            one["max_concurrency"] = min(count, MOST_AT_ONCE)
    return configs
