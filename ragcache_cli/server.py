"""`ragcache serve`: vLLM's OpenAI-compatible server, with the knowledge tree and its tiers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ragcache_cli.engine_settings import make_config
from ragcache_cli.logging_setup import let_libraries_speak
from ragcache_engine import ConfigError
from ragcache_engine.backends.choice import budget_of
from ragcache_engine.backends.vllm.installed import require_vllm
from ragcache_engine.serving.keys import name_by_digest, read_key_file
from ragcache_engine.serving.settings import (
    CORPORA_FOLDER,
    EMBEDDINGS,
    EMBEDDINGS_MODEL,
    KEPT_SHARE,
    KEYS_FILE,
    LEARN,
    MAX_BODY,
    MAX_CORPORA,
    MAX_REQUESTS,
    OPERATOR_KEY,
)


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """Who may use the server, and how much of it: as in `ragcache serve`. None: the default.

    corpora_folder: as CORPORA_FOLDER. learns_documents: as LEARN. kept_share: as KEPT_SHARE.
    embeddings, embeddings_model: as EMBEDDINGS.
    """

    keys_file: Path | None = None
    max_body_bytes: int | None = None
    max_requests: int | None = None
    max_corpora_bytes: int | None = None
    corpora_folder: Path | None = None
    learns_documents: bool = False
    kept_share: float | None = None
    embeddings: str | None = None
    embeddings_model: str | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment variables that bring these settings to the server."""
        told = {
            KEYS_FILE: self.keys_file and self.keys_file.expanduser().resolve(),
            MAX_BODY: self.max_body_bytes,
            MAX_REQUESTS: self.max_requests,
            MAX_CORPORA: self.max_corpora_bytes,
            CORPORA_FOLDER: self.corpora_folder,
            LEARN: "1" if self.learns_documents else None,
            KEPT_SHARE: self.kept_share,
            EMBEDDINGS: self.embeddings,
            EMBEDDINGS_MODEL: self.embeddings_model,
        }
        return {name: str(value) for name, value in told.items() if value is not None}


def build_server_command(settings: dict[str, object], given: Sequence[str]) -> list[str]:
    """Return the command that starts the server. settings: fields of EngineConfig. given: further
    arguments of `vllm serve`.

    Raises BackendUnavailable, ConfigError, ModelNotFound.
    """
    require_vllm()
    from ragcache_engine.backends.vllm.serving import server_command

    config = make_config(settings)
    return server_command(config.model, budget_of(config), given)


def require_usable_keys(doors: DoorSettings, given: Sequence[str]) -> None:
    """Raise ConfigError for keys that the server could not use."""
    if key := os.environ.get(OPERATOR_KEY):
        name_by_digest(key)
    if doors.keys_file is None:
        return
    read_key_file(doors.keys_file.expanduser())
    if any(word.split("=")[0] == "--api-key" for word in given) or os.environ.get("VLLM_API_KEY"):
        raise ConfigError(
            "give the server's keys once: leave out vLLM's --api-key (and VLLM_API_KEY), and write its "
            "keys into the file of --keys"
        )


def become_server(settings: dict[str, object], doors: DoorSettings, given: Sequence[str]) -> None:
    """Replace this process by the server. Does not return. Raises as `build_server_command` does."""
    os.environ.update(doors.environment())
    if key := os.environ.get(OPERATOR_KEY):
        # vLLM's processes below the server inherit its environment.
        os.environ[OPERATOR_KEY] = name_by_digest(key)
    command = build_server_command(settings, given)
    if (os.cpu_count() or 1) == 2:
        # vLLM keeps a core free for its scheduler; on two cores that halves the speed of a prefill.
        os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    let_libraries_speak()
    os.execv(command[0], command)
