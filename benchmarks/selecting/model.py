"""A Llama forward pass whose keys and values can be read, exchanged and computed again token by token.

vLLM's attention gives no probabilities, and rules that need them are compared here before the engine
learns any of them. The tensors of a sequence are one array [2, layers, KV heads, tokens, head size] in
float32: keys (turned to their positions) and values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu
from transformers import AutoModelForCausalLM, AutoTokenizer

Watch = Callable[[int, Tensor], None]
"""Called for each layer with the attention of the tokens that run, [heads, those tokens, all tokens]."""


class SmallLlama:
    """A decoder of Llama's form with plain rotary positions, in float32."""

    def __init__(self, folder: Path) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        config = model.config
        self._folder = folder
        self.layers = list(model.model.layers)
        self.embedding: Tensor = model.model.embed_tokens.weight.detach()
        self.head: Tensor = model.lm_head.weight.detach()
        self.norm: Tensor = model.model.norm.weight.detach()
        self.epsilon: float = config.rms_norm_eps
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_size: int = config.head_dim
        self.ends: set[int] = {config.eos_token_id}
        theta: float = config.rope_parameters["rope_theta"]
        steps = torch.arange(0, self.head_size, 2, dtype=torch.float64) / self.head_size
        self.frequencies = theta**-steps

    @cached_property
    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self._folder)

    def read(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def write(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def make_room(self, tokens: int) -> Tensor:
        """Return empty tensors for a sequence of this many tokens."""
        return torch.zeros(2, len(self.layers), self.kv_heads, tokens, self.head_size)

    def turn(self, tensors: Tensor, by: int) -> Tensor:
        """Return a copy of the tensors with the keys moved by so many positions."""
        moved = tensors.clone()
        angles = by * self.frequencies
        cos, sin = angles.cos().float(), angles.sin().float()
        moved[0] = _rotate(tensors[0], cos, sin)
        return moved

    @torch.inference_mode()
    def run(
        self,
        tokens: Sequence[int],
        positions: Tensor,
        tensors: Tensor,
        watch: Watch | None = None,
        layers: int | None = None,
    ) -> Tensor:
        """Compute these tokens at these positions; write their keys and values into `tensors`.

        Each sees what `tensors` holds at its own and all earlier positions, in every layer. So running
        scattered tokens computes them again between the old tensors of the others.
        layers: run only the first ones. Returns the hidden states after them, [tokens, hidden size].
        """
        hidden = self.embedding[torch.tensor(list(tokens))]
        end = int(positions.max()) + 1
        seen = torch.arange(end)[None, :] <= positions[:, None]
        angles = positions[:, None].double() * self.frequencies
        cos, sin = angles.cos().float(), angles.sin().float()
        for number, layer in enumerate(self.layers[:layers]):
            query, key, value = self._project(layer, hidden, cos, sin)
            tensors[0, number][:, positions] = key
            tensors[1, number][:, positions] = value
            keys, values = tensors[0, number, :, :end], tensors[1, number, :, :end]
            if watch is None:
                mixed = scaled_dot_product_attention(
                    query[None], keys[None], values[None], attn_mask=seen, enable_gqa=True
                )[0]
            else:
                share = self._attend(query, keys, seen)
                watch(number, share)
                mixed = share @ values.repeat_interleave(self.heads // self.kv_heads, dim=0)
            hidden = self._finish(layer, hidden, mixed.transpose(0, 1).flatten(1))
        return hidden

    @torch.inference_mode()
    def project_keys(self, number: int, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values that a layer makes of these hidden states."""
        angles = positions[:, None].double() * self.frequencies
        _, key, value = self._project(
            self.layers[number], hidden, angles.cos().float(), angles.sin().float()
        )
        return key, value

    @torch.inference_mode()
    def score(self, hidden: Tensor) -> Tensor:
        """Return the logits of these hidden states, [tokens, vocabulary]."""
        return rms_norm(hidden, (hidden.shape[-1],), self.norm, self.epsilon) @ self.head.T

    @torch.inference_mode()
    def answer(
        self, all_tensors: Sequence[Tensor], logits: Tensor, length: int, most: int
    ) -> list[list[int]]:
        """Continue prompts of one length greedily, all at once; return the tokens of each answer.

        all_tensors: one array for each, with room for `most` tokens more. logits: [prompts, vocabulary].
        """
        tensors = torch.stack(
            list(all_tensors)
        )  # [prompts, 2, layers, KV heads, tokens, head size]
        token = logits.argmax(-1)
        answers = [[int(one)] for one in token]
        for step in range(most - 1):
            position = length + step
            angles = position * self.frequencies
            cos, sin = angles.cos().float()[None], angles.sin().float()[None]
            hidden = self.embedding[token]
            for number, layer in enumerate(self.layers):
                query, key, value = self._project(layer, hidden, cos, sin)
                tensors[:, 0, number, :, position] = key.transpose(0, 1)
                tensors[:, 1, number, :, position] = value.transpose(0, 1)
                mixed = scaled_dot_product_attention(
                    query.transpose(0, 1)[:, :, None],
                    tensors[:, 0, number, :, : position + 1],
                    tensors[:, 1, number, :, : position + 1],
                    enable_gqa=True,
                )
                hidden = self._finish(layer, hidden, mixed.flatten(1))
            token = self.score(hidden).argmax(-1)
            for answer, one in zip(answers, token, strict=True):
                if answer[-1] not in self.ends:
                    answer.append(int(one))
            if all(answer[-1] in self.ends for answer in answers):
                break
        return answers

    def _project(
        self, layer: Any, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return query [heads, n, size], key and value [KV heads, n, size], both first ones turned."""
        normed = rms_norm(hidden, (hidden.shape[-1],), layer.input_layernorm.weight, self.epsilon)
        of = layer.self_attn
        query, key, value = (
            (normed @ part.weight.T).unflatten(-1, (-1, self.head_size)).transpose(0, 1)
            for part in (of.q_proj, of.k_proj, of.v_proj)
        )
        return _rotate(query, cos, sin), _rotate(key, cos, sin), value

    def _attend(self, query: Tensor, keys: Tensor, seen: Tensor) -> Tensor:
        keys = keys.repeat_interleave(self.heads // self.kv_heads, dim=0)
        scores = query @ keys.transpose(1, 2) * self.head_size**-0.5
        return scores.masked_fill(~seen, -torch.inf).softmax(-1)

    def _finish(self, layer: Any, hidden: Tensor, mixed: Tensor) -> Tensor:
        hidden = hidden + mixed @ layer.self_attn.o_proj.weight.T
        normed = rms_norm(
            hidden, (hidden.shape[-1],), layer.post_attention_layernorm.weight, self.epsilon
        )
        part = layer.mlp
        inner = silu(normed @ part.gate_proj.weight.T) * (normed @ part.up_proj.weight.T)
        return hidden + inner @ part.down_proj.weight.T


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of dimensions: the first half of a head with its second half, as Llama has them."""
    first, second = states.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
