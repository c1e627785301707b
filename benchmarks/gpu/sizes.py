"""How much each part asks: on a GPU, and at a try on a CPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Everything that differs between a GPU and a CPU.

    layers, width: the shape of the model with random weights. dtype: its numbers.
    context: the longest prompt, in tokens. device, host, disk: the tiers, in tokens of that model; the
      longest prompt takes all of the device, so that nothing else stays there.
    lengths: words of the documents of one prompt whose TTFT is measured. repeats: prompts of a length.
    document: words of a document that is borrowed.
    stream_device, stream_host: the tiers under the stream, in tokens. stream_words: the longest document
      there. stream_warm: requests before it is measured. stream_s: how long requests come.
    loads: rates of requests, as shares of what prefilling every prompt would allow.
    questions, answer: questions whose answers are compared, and the tokens of each answer.
    dtypes: in which answers are compared; "invariant" is bfloat16 with VLLM_BATCH_INVARIANT=1.
    at_once: how many of the processes that compare answers run beside each other.
    """

    layers: int
    width: int
    dtype: str
    context: int
    device: int
    host: int
    disk: int
    lengths: tuple[int, ...]
    repeats: int
    document: int
    stream_device: int
    stream_host: int
    stream_words: int
    stream_warm: int
    stream_s: float
    loads: tuple[float, ...]
    questions: int
    answer: int
    dtypes: tuple[str, ...]
    at_once: int


GPU = Sizes(
    layers=32,
    width=4096,
    dtype="bfloat16",
    context=12_288,
    device=12_288 + 64,
    host=40_000,
    disk=300_000,
    lengths=(1000, 4000, 8000),
    repeats=3,
    document=500,
    stream_device=48_000,
    stream_host=96_000,
    stream_words=1200,
    stream_warm=80,
    stream_s=10.0,
    loads=(0.6, 1.0),
    questions=60,
    answer=12,
    dtypes=("float32", "bfloat16", "invariant"),
    at_once=10,
)

CPU = Sizes(
    layers=2,
    width=256,
    dtype="float32",
    context=1024,
    device=1024 + 64,
    host=3200,
    disk=40_000,
    lengths=(200, 400, 700),
    repeats=2,
    document=96,
    stream_device=2048,
    stream_host=4096,
    stream_words=100,
    stream_warm=8,
    stream_s=2.0,
    loads=(1.0,),
    questions=4,
    answer=8,
    dtypes=("float32",),
    at_once=1,
)
