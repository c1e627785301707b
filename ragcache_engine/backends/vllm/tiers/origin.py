"""Works out, inside vLLM's processes, what determines the bytes of the tensors that go to the disk.

The final configuration is known only there: after the user's arguments, the platform's choices and the
choice of the attention kernels. Each worker describes how its kernels lay out a block; the scheduler's
process adds what all workers share.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from vllm import __version__ as vllm_version
from vllm.config import ModelConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

from ragcache_engine.backends.vllm.tiers.weights import KEPT_DIGESTS, identify_weights
from ragcache_engine.tiers.disk.block_file import Origin

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NOT_CONTENT = ("_name_or_path", "transformers_version")
"""Fields of a model's configuration that change nothing about its tensors."""


class NoOrigin(Exception):
    """Tensors of this engine cannot be told from others, so they must not go to the disk."""


@dataclass
class WorkerLayout(KVConnectorHandshakeMetadata):
    """What a worker tells the scheduler's process once its cache exists.

    layout: how its attention kernels lay out a block. machine: identifies the machine it runs on.
    """

    layout: str
    machine: str


def describe_worker(config: VllmConfig, blocks: int) -> WorkerLayout:
    """Describe this worker's cache. Call it in the worker's process, after the cache was made.

    blocks: how many blocks the cache has.
    """
    seen = {
        _describe_layer(layer, blocks)
        for layer in config.compilation_config.static_forward_context.values()
        if isinstance(layer, AttentionLayerBase)
    }
    return WorkerLayout(" | ".join(sorted(seen)), _identify_machine())


def build_origin(
    config: VllmConfig,
    workers: Mapping[tuple[int, int], WorkerLayout],
    *,
    block_tokens: int,
    block_layout: str,
    folder: Path,
) -> Origin:
    """Build the origin of this engine's tensors. Reads the weights' files if they are not known yet.

    workers: what each worker described, by its ranks in pipeline and tensor parallelism.
    block_tokens: tokens in a block of the cache manager. block_layout: vLLM's own words for a block.
    folder: the disk tier's, where digests of weights are kept.
    Raises NoOrigin, UnknownWeights, OSError.
    """
    model, load = config.model_config, config.load_config
    if load.load_format == "dummy":
        raise NoOrigin("load_format='dummy' draws random weights")
    if any(worker.machine != _identify_machine() for worker in workers.values()):
        raise NoOrigin("a worker runs on another machine, where the host tier's memory is not")
    layouts = [f"{rank}: {worker.layout}" for rank, worker in sorted(workers.items())]
    return Origin(
        weights=identify_weights(
            model.model, model.revision, load.download_dir, folder / KEPT_DIGESTS
        ),
        configuration=digest_configuration(model),
        dtype=str(model.dtype) + " " + str(config.cache_config.cache_dtype),
        block_tokens=block_tokens,
        layout="; ".join([block_layout, *layouts]),
        software=f"vllm {vllm_version}",
    )


def digest_configuration(model: ModelConfig) -> str:
    """Return a digest of everything in the model's configuration that may change its tensors."""
    content = json.loads(model.hf_config.to_json_string(use_diff=False))
    kept = {name: value for name, value in content.items() if name not in NOT_CONTENT}
    rope = getattr(model.hf_text_config, "rope_parameters", None)
    # Some scaled kinds of RoPE depend on the longest prompt that vLLM was told of.
    longest = model.max_model_len if "default" not in str(rope) else None
    text = json.dumps([kept, rope, longest, str(model.quantization)], sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _describe_layer(layer: AttentionLayerBase, blocks: int) -> str:
    """Describe how a layer lays out its blocks; equal for layers whose bytes mean the same."""
    cache: Any = getattr(layer, "kv_cache", None)
    isa = getattr(layer, "isa", None)  # of vLLM's CPU kernels: AMX packs keys in another order
    axes = "" if cache is None else f"{cache.dtype} {_describe_axes(cache, blocks)}"
    return f"{layer.get_attn_backend().get_name()} {isa or ''} {axes}"


def _describe_axes(cache: Any, blocks: int) -> str:
    """Describe a cache's axes, those that lie closest in memory first, whatever its number of blocks."""
    axes = sorted(zip(cache.stride(), range(cache.dim()), cache.shape, strict=True))
    return str([(axis, "blocks" if size == blocks else size) for _, axis, size in axes])


def _identify_machine() -> str:
    boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
    return f"{socket.gethostname()} {boot}"
