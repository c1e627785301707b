"""What cannot borrow is refused before vLLM starts, with the reason and the way out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")
pytest.importorskip("vllm")

from ragcache_engine import CannotBorrow  # noqa: E402
from ragcache_engine.backends.vllm.arguments import build_vllm_config  # noqa: E402
from ragcache_engine.backends.vllm.budget import TierBudget  # noqa: E402

pytestmark = pytest.mark.vllm

BORROWS = TierBudget("halflife", recompute_ratio=0.1)
SHAPE: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
}
ROPE = {"rope_theta": 10_000.0}


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {**ROPE, "rope_type": kind, **parameters}}


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
BORROWABLE = {
    "plain": ("LlamaConfig", {}),
    "llama3": ("LlamaConfig", rope("llama3", **LLAMA3)),
    "linear": ("LlamaConfig", rope("linear", factor=2.0)),
    "qwen2": ("Qwen2Config", {}),
}
REFUSED = {
    "yarn": (
        "LlamaConfig",
        rope("yarn", factor=2.0, original_max_position_embeddings=1024),
        "kind 'yarn'",
    ),
    "dynamic": ("LlamaConfig", rope("dynamic", factor=2.0), "kind 'dynamic'"),
    "partial": (
        "Phi3Config",
        {**rope("default", partial_rotary_factor=0.5), "pad_token_id": 0},
        "a part of each head",
    ),
    "elsewhere": ("GlmConfig", {"pad_token_id": 0}, "code of transformers"),
    "learned": ("GPT2Config", {"n_positions": 2048}, "no rotary positions"),
    "sliding-window": ("MistralConfig", {"sliding_window": 64}, "sliding window"),
    "interleaved-windows": (
        "Gemma3TextConfig",
        {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]},
        "sliding window",
    ),
    "hybrid": (
        "FalconH1Config",
        {"hidden_size": 128, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16},
        "no key-value tensors",
    ),
    "latent": (
        "DeepseekV2Config",
        {"kv_lora_rank": 32, "q_lora_rank": None, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16},
        "latent",
    ),
    "encoder-decoder": ("WhisperConfig", {"max_target_positions": 448}, "encoder and decoder"),
}
ARCHITECTURES = {
    "LlamaConfig": "LlamaForCausalLM",
    "Qwen2Config": "Qwen2ForCausalLM",
    "Phi3Config": "Phi3ForCausalLM",
    "GlmConfig": "GlmForCausalLM",
    "GPT2Config": "GPT2LMHeadModel",
    "MistralConfig": "MistralForCausalLM",
    "Gemma3TextConfig": "Gemma3ForCausalLM",
    "FalconH1Config": "FalconH1ForCausalLM",
    "DeepseekV2Config": "DeepseekV2ForCausalLM",
    "WhisperConfig": "WhisperForConditionalGeneration",
}


@pytest.fixture
def configured(tmp_path: Path, demo_model: str):
    """Writes a model's configuration, without weights: nothing here may need them."""

    def make(config: str, changes: dict[str, Any]) -> str:
        folder = tmp_path / "model"
        shape = {} if config == "WhisperConfig" else SHAPE
        made = getattr(transformers, config)(**{**shape, **changes})
        made.architectures = [ARCHITECTURES[config]]
        made.save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(Path(demo_model) / file, folder / file)
        return str(folder)

    return make


def build(model: str, budget: TierBudget = BORROWS, **arguments: Any) -> Any:
    return build_vllm_config(
        model, 256 << 20, budget, {"dtype": "float32", "max_model_len": 256, **arguments}
    )


@pytest.mark.parametrize("kind", BORROWABLE)
def test_models_with_plain_rotations_borrow(configured, kind: str):
    config = build(configured(*BORROWABLE[kind]))
    assert config.parallel_config.worker_cls.endswith("BorrowingWorker")


@pytest.mark.parametrize("kind", REFUSED)
def test_other_models_are_refused_with_the_reason(configured, kind: str):
    name, changes, reason = REFUSED[kind]
    with pytest.raises(CannotBorrow, match=rf'{reason}.*Set reuse="prefix"'):
        build(configured(name, changes))


def test_what_is_refused_still_starts_with_prefix_reuse(configured):
    name, changes, _ = REFUSED["yarn"]
    assert build(configured(name, changes), TierBudget("halflife")).kv_transfer_config


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2"),
        ({"kv_cache_dtype": "fp8"}, "fp8"),
        ({"enable_prefix_caching": False}, "prefix caching"),
        ({"scheduler_cls": None}, "knowledge tree"),
        ({"kv_transfer_config": None}, "knowledge tree"),
        ({"worker_cls": "vllm.v1.worker.cpu_worker.CPUWorker"}, "worker of its own"),
    ],
)
def test_arguments_of_vllm_that_forbid_borrowing_are_refused(
    demo_model: str, arguments: dict[str, Any], reason: str
):
    with pytest.raises(CannotBorrow, match=reason):
        build(demo_model, **arguments)


def test_adapters_are_no_reason_to_refuse(demo_model: str):
    assert build(demo_model, enable_lora=True).lora_config
