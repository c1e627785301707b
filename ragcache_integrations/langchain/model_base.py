"""What LangChain's LLM and chat model on an engine have in common."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import ConfigDict, Field

from ragcache_integrations.engine_field import ENGINE_SECRET, Engine
from ragcache_integrations.sampling import SamplingFields


class EngineModel(SamplingFields):
    """A model on an engine: how it is named, traced and saved.

    tenant: whose cached tensors may be shared; prompts of another tenant never share.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    engine: Engine = Field(exclude=True, repr=False)
    tenant: str | None = None

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True

    @property
    def lc_secrets(self) -> dict[str, str]:
        """`load(dumped, secrets_map={"RAGCACHE_ENGINE": engine})` gives it an engine again."""
        return {"engine": ENGINE_SECRET}

    @property
    def lc_attributes(self) -> dict[str, Any]:
        return {"guide": asdict(self.guide)} if self.guide else {}

    @property
    def model_name(self) -> str:
        return self.engine.config.model

    @property
    def max_tokens(self) -> int:
        """max_new_tokens by the name under which LangChain's tracing looks for it."""
        return self.max_new_tokens

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self.model_name, **self.sampling_parameters()}
