"""The parts of a run. Each is carried out in a process of its own, which starts the engines it needs."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpu.asking import (
    TIERS,
    Engine,
    OurEngine,
    Prompt,
    Reply,
    StockEngine,
    prompt_of,
    words,
)
from gpu.random_model import write_model, write_weights
from gpu.run import Run
from ragcache_cli.models import demo_model
from ragcache_engine import EngineError
from ragcache_engine.rouge import rouge_l

LADDER: tuple[tuple[dict[str, str], dict[str, Any]], ...] = (
    ({}, {}),
    ({}, {"enforce_eager": True}),
    ({}, {"enforce_eager": True, "attention_backend": "TRITON_ATTN"}),
    (
        {"VLLM_USE_V2_MODEL_RUNNER": "0"},
        {"enforce_eager": True, "attention_backend": "TRITON_ATTN"},
    ),
)
"""Environment and arguments to start with: vLLM's own choice first, then less and less of it."""

WARM_BESIDE = 8
"""So many requests at a time before a stream is measured."""


async def carry_out_part(run: Run) -> None:
    """Carry out the part that the run names. Raises KeyError for an unknown one."""
    name, _, detail = run.part.partition(":")
    if name == "weights":
        weights(run)
        return
    await {
        "start": start,
        "answers": answers,
        "likeness": likeness,
        "ttft": ttft,
        "borrowed": borrowed,
        "stream": stream,
    }[name](run, detail)


# -- the model -----------------------------------------------------------------------------------------


def weights(run: Run) -> None:
    """Write a model of a 7B's shape with random weights, once; a disk tier wants weights that it can name."""
    sizes, folder = run.sizes, weights_folder(run)
    write_model(folder, demo_model(), sizes.layers, sizes.width)
    began = time.perf_counter()
    size_bytes = write_weights(folder, sizes.dtype)
    run.emit("weights", bytes=size_bytes, seconds=round(time.perf_counter() - began, 1))


def weights_folder(run: Run) -> Path:
    return run.out / "model"


def load(run: Run) -> dict[str, Any]:
    """Return which model to start, and how: the user's, or random weights from files, or from nowhere."""
    sizes = run.sizes
    if run.model:
        return {"model": run.model}
    folder = weights_folder(run)
    if next(folder.glob("*.safetensors"), None):
        return {"model": str(folder)}
    write_model(folder, demo_model(), sizes.layers, sizes.width)
    return {"model": str(folder), "load_format": "dummy"}


def token_bytes(model: str, dtype: str) -> int:
    """Return the bytes of a token's keys and values. model: a folder, or a hub id whose files are here."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model).get_text_config()
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    numbers = 2 * config.num_hidden_layers * (config.num_key_value_heads or heads) * head
    return int(numbers * (4 if dtype == "float32" else 2))


def our_engine(run: Run, *, device: int, host: int, **settings: Any) -> OurEngine:
    """Start RAGCache on the large model. device, host: tokens."""
    given = load(run)
    model, dtype = given.pop("model"), run.sizes.dtype
    each = token_bytes(model, dtype)
    arguments = {"max_model_len": run.sizes.context, **given, **settings.pop("vllm_args", {})}
    return OurEngine(
        model=model,
        device_cache=device * each,
        host_cache=host * each,
        vllm_args=run.vllm_args(dtype, **arguments),
        **settings,
    )


# -- start ---------------------------------------------------------------------------------------------


async def start(run: Run, system: str) -> None:
    """Start vLLM, or RAGCache, as it comes; say with what it runs, and how fast it prefills."""
    began, sizes = time.perf_counter(), run.sizes
    if system == "machine":
        machine(run)
        return
    if system == "ragcache":
        ours = our_engine(run, device=sizes.device, host=sizes.host)
        seconds = time.perf_counter() - began
        prompt = prompt_of({"d": words("d", sizes.lengths[0])}, "q")
        first, second = await ours.ask(prompt, 4), await ours.ask(prompt, 4)
        run.emit(
            "started",
            system="RAGCache",
            seconds=round(seconds, 1),
            processes=os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "spawn"),
            same_answer_again=first.token_ids == second.token_ids,
            cached=second.cached_tokens,
        )
        ours.close()
        return
    given = load(run)
    stock = StockEngine(
        kv_cache_memory_bytes=sizes.device * token_bytes(given["model"], sizes.dtype),
        enable_prefix_caching=False,
        **run.vllm_args(sizes.dtype, max_model_len=sizes.context, **given),
    )
    seconds = time.perf_counter() - began
    token_s = 0.0
    for length in (*sizes.lengths, sizes.lengths[-1]):  # the first prefill of a length may compile
        reply = await stock.ask(Prompt(words(f"{time.time()}", length), {}), 1)
        token_s = reply.ttft_s / reply.prompt_tokens
    run.keep_settings(prefill_token_s=token_s)
    config = stock.config
    run.emit(
        "started",
        system="vLLM",
        seconds=round(seconds, 1),
        prefill_tokens_s=round(1 / token_s),
        attention=str(config.attention_config.backend),
        eager=config.model_config.enforce_eager,
        cuda_graphs=str(config.compilation_config.cudagraph_mode),
        v2_runner=str(getattr(config, "use_v2_model_runner", "unknown")),
        arguments=run.settings.get("arguments"),
        environment=run.settings.get("environment"),
    )
    stock.close()


def machine(run: Run) -> None:
    """Say what the machine is, and how fast bytes go between host and device."""
    import platform

    import torch
    from vllm import __version__

    facts = {
        "vllm": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "shm_gib": round(shutil.disk_usage("/dev/shm").free / (1 << 30), 1),
        "disk_gib": round(shutil.disk_usage(run.out).free / (1 << 30), 1),
        "device": "CPU" if run.is_cpu else torch.cuda.get_device_name(),
    }
    if not run.is_cpu:
        facts["gpu_free_gib"] = round(torch.cuda.mem_get_info()[0] / (1 << 30), 1)
        facts |= bandwidths()
    run.emit("machine", **facts)


def bandwidths() -> dict[str, float]:
    """Return GB/s between pinned host memory and the device, both ways: the best of three gigabytes."""
    import torch

    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    found = {}
    for name, target, source in (("to_device", device, host), ("to_host", host, device)):
        seconds = []
        for _ in range(3):
            torch.cuda.synchronize()
            began = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        found[f"{name}_gb_s"] = round(host.nbytes / min(seconds) / 1e9, 1)
    return found


# -- answers -------------------------------------------------------------------------------------------


def questions(run: Run, documents: int) -> list[Prompt]:
    """Return questions about passages of Python's documentation; some passages come again and again."""
    from pydoc_data.topics import topics

    from ragcache_cli.prompts import CHATML
    from ragcache_cli.questions import QUESTIONS

    passages = {name: " ".join(text.split()[:90]) for name, text in sorted(topics.items())}
    names = list(passages)
    dice, prompts = random.Random(3), []
    for number in range(run.sizes.questions):
        chosen: dict[str, str] = {}
        while len(chosen) < documents:
            name = dice.choices(names, [1 / (rank + 1) for rank in range(len(names))])[0]
            chosen[name] = passages[name]
        text = CHATML.filled(list(chosen.values()), QUESTIONS[number % len(QUESTIONS)])
        prompts.append(Prompt(text, chosen))
    return prompts


async def ask_all(engine: Engine, run: Run, prompts: Sequence[Prompt], **how: Any) -> list[Reply]:
    """Ask one prompt after the other: company changes how bfloat16 is rounded."""
    return [await engine.ask(prompt, run.sizes.answer, **how) for prompt in prompts]


def emit_answers(run: Run, system: str, dtype: str, replies: Sequence[Reply]) -> None:
    prompt_tokens = sum(reply.prompt_tokens for reply in replies)
    shares = {
        tier: round(sum(reply.cached.get(tier, 0) for reply in replies) / prompt_tokens, 3)
        for tier in TIERS
    }
    run.emit(
        "answers",
        system=system,
        dtype=dtype,
        **shares,
        tokens=[reply.token_ids for reply in replies],
    )


async def answers(run: Run, detail: str) -> None:
    """Answer the same questions by one system, for instance "RAGCache float32"."""
    system, dtype = detail.rsplit(" ", 1)
    numbers = "bfloat16" if dtype == "invariant" else dtype
    model, prompts = str(demo_model()), questions(run, 3)
    each = token_bytes(model, numbers)
    if system != "RAGCache":
        stock = StockEngine(
            model=model,
            kv_cache_memory_bytes=8192 * each,
            enable_prefix_caching=system != "vLLM",
            **run.vllm_args(numbers, max_model_len=2048),
        )
        emit_answers(run, system, dtype, await ask_all(stock, run, prompts))
        stock.close()
        return
    with tempfile.TemporaryDirectory() as folder:
        for life, passes in ((1, ("first", "second")), (2, ("restarted",))):
            ours = OurEngine(
                model=model,
                device_cache=2240 * each,  # a prompt and a bit, so that each tier evicts
                host_cache=3400 * each,
                disk_cache=200_000 * each,
                disk_cache_dir=Path(folder),
                vllm_args=run.vllm_args(numbers, max_model_len=2048),
            )
            some = prompts if life == 1 else prompts[: max(2, len(prompts) // 3)]
            for name in passes:
                replies = await ask_all(ours, run, some)
                emit_answers(run, f"RAGCache, {name}", dtype, replies)
            ours.close()


async def likeness(run: Run, detail: str) -> None:
    """Answer from borrowed documents at ratio 1, which must be exact, at 0.15 and at 0."""
    model, dtype = str(demo_model()), run.sizes.dtypes[0]
    each = token_bytes(model, dtype)
    ours = OurEngine(
        model=model,
        device_cache=24_000 * each,
        host_cache=4_096 * each,
        reuse="anywhere",
        recompute_ratio=0.15,
        donors="alone",
        recheck_share=0.0,
        vllm_args=run.vllm_args(dtype, max_model_len=4096),
    )
    prompts = questions(run, 4)[: max(4, run.sizes.questions // 3)]
    exact = await ask_all(ours, run, prompts, exact=True)
    for ratio in (1.0, 0.15, 0.0):
        replies = await ask_all(ours, run, prompts, recompute_ratio=ratio)
        pairs = list(zip(replies, exact, strict=True))
        run.emit(
            "likeness",
            ratio=ratio,
            n=len(pairs),
            equal=sum(one.token_ids == other.token_ids for one, other in pairs),
            rouge_l=round(
                statistics.fmean(rouge_l(one.text, other.text) for one, other in pairs), 3
            ),
            borrowed=sum(reply.borrowed for reply in replies),
            recomputed=sum(reply.recomputed for reply in replies),
        )
    ours.close()


# -- TTFT ----------------------------------------------------------------------------------------------


async def ttft(run: Run, detail: str) -> None:
    """Ask the same documents again and again; note each TTFT under the tier that had most of the prompt."""
    sizes = run.sizes
    has_files = "load_format" not in load(run)
    with tempfile.TemporaryDirectory(dir=run.out) as folder:
        each = token_bytes(load(run)["model"], sizes.dtype)
        disk = (
            {"disk_cache": sizes.disk * each, "disk_cache_dir": Path(folder)} if has_files else {}
        )
        ours = our_engine(run, device=sizes.device, host=sizes.host, **disk)
        texts = {
            (length, number): words(f"{length} {number}", length)
            for length in sizes.lengths
            for number in range(sizes.repeats)
        }
        asked = 0

        async def ask(length: int, number: int, *, counts: bool = True) -> None:
            nonlocal asked
            asked += 1
            prompt = prompt_of({f"{length}/{number}": texts[length, number]}, f"ask {asked}")
            reply = await ours.ask(prompt, 1)
            places = {"computed": reply.prompt_tokens - reply.cached_tokens, **reply.cached}
            place = max(places, key=places.__getitem__)
            # The question is new each time, and only whole blocks are cached.
            if counts and places[place] > 0.85 * reply.prompt_tokens:
                run.emit(
                    "ttft",
                    length=length,
                    place=place,
                    ttft_s=round(reply.ttft_s, 5),
                    prompt_tokens=reply.prompt_tokens,
                    bytes=places[place] * each,
                )

        async def fill_device() -> None:
            """Ask for so much that nothing else stays on the device."""
            nonlocal asked
            asked += 1
            await ours.ask(Prompt(words(f"filler {asked}", int(sizes.context * 0.7)), {}), 1)

        for length in sizes.lengths:  # compiles
            await ask(length, 0, counts=False)
        await clear(ours)
        for place in texts:
            await ask(*place)  # computed
            await ask(*place)  # from the device
        for _ in range(2):
            for length in sizes.lengths:
                await ask(length, 0)
                await fill_device()
                await ask(length, 0)  # from the host
        for _ in range(2 if has_files else 0):
            for place in texts:
                await clear(ours)
                await ask(*place)  # from the disk, where it was written meanwhile
        ours.close()


async def clear(ours: OurEngine) -> None:
    """Empty device and host; what is on disk stays. Try again while copies run."""
    for _ in range(50):
        with suppress(EngineError):
            await ours.engine.aclear_cache()
            return
        await asyncio.sleep(0.1)


async def borrowed(run: Run, detail: str) -> None:
    """Ask for documents in ever new orders: computed, and borrowed at ratio 0.15 and 0."""
    sizes = run.sizes
    most = max(2, sizes.lengths[-1] // sizes.document)
    texts = {f"b{number}": words(f"b{number}", sizes.document) for number in range(most + 2)}
    ours = our_engine(
        run,
        device=5 * sizes.context,
        host=sizes.context,
        reuse="anywhere",
        donors="alone",
        recompute_ratio=0.0,
        recheck_share=0.0,
    )
    names, dice, asked = sorted(texts), random.Random(9), 0

    async def ask(chosen: Sequence[str], **how: Any) -> Reply:
        nonlocal asked
        asked += 1
        return await ours.ask(prompt_of({n: texts[n] for n in chosen}, f"ask {asked}"), 1, **how)

    for at in range(0, len(names), 2):  # every document but the first of a prompt becomes a donor
        await ask(names[at : at + 2])
        await ask(names[at : at + 2][::-1])
    ways: dict[str, dict[str, Any]] = {
        "computed": {"exact": True},
        "borrowed, 0.15": {"recompute_ratio": 0.15},
        "borrowed, 0": {"recompute_ratio": 0.0},
    }
    for length in sizes.lengths:
        count = max(2, length // sizes.document)
        for turn in range(1 + sizes.repeats):  # the first one may compile
            for way, how in ways.items():
                reply = await ask(dice.sample(names, count), **how)
                if turn:
                    run.emit(
                        "ttft",
                        length=length,
                        place=way,
                        ttft_s=round(reply.ttft_s, 5),
                        prompt_tokens=reply.prompt_tokens,
                        borrowed=reply.borrowed,
                        recomputed=reply.recomputed,
                    )
    ours.close()


# -- stream --------------------------------------------------------------------------------------------

SYSTEMS = ("ragcache", "prefix", "lru", "arc")
DOCUMENTS, SETS = 400, 300


def zipf_prompts(run: Run, count: int, seed: int) -> list[Prompt]:
    """Return prompts of three documents. Which ones are found together is drawn with Zipf weights."""
    dice = random.Random(4)
    lengths = [
        dice.randint(run.sizes.stream_words // 4, run.sizes.stream_words) for _ in range(DOCUMENTS)
    ]
    found = [dice.sample(range(DOCUMENTS), 3) for _ in range(SETS)]
    drawn = random.Random(seed).choices(found, [1 / (rank + 1) for rank in range(SETS)], k=count)
    return [
        prompt_of({f"s{n}": words(f"s{n}", lengths[n]) for n in names}, f"stream {seed} {at}")
        for at, names in enumerate(drawn)
    ]


def stream_engine(run: Run, system: str) -> Engine:
    sizes = run.sizes
    if system == "ragcache":
        return our_engine(run, device=sizes.stream_device, host=sizes.stream_host)
    given = load(run)
    each = token_bytes(given["model"], sizes.dtype)
    arguments = run.vllm_args(sizes.dtype, max_model_len=sizes.context, **given)
    if system in ("lru", "arc"):
        host_bytes = sizes.stream_host * each
        if run.is_cpu:  # vLLM's own copying wants a GPU
            from ragcache_cli.bench.stock_offload import stock_offload

            arguments |= stock_offload(system, host_bytes)
        else:
            from vllm.config import KVTransferConfig

            arguments["kv_transfer_config"] = KVTransferConfig(
                kv_connector="OffloadingConnector",
                kv_role="kv_both",
                kv_connector_extra_config={
                    "cpu_bytes_to_use": host_bytes,
                    "eviction_policy": system,
                },
            )
    if run.is_cpu:
        arguments["block_size"] = 32  # as RAGCache's
    return StockEngine(
        kv_cache_memory_bytes=sizes.stream_device * each, enable_prefix_caching=True, **arguments
    )


async def stream(run: Run, system: str) -> None:
    """Send requests at given rates to one system, as they would come from users."""
    sizes = run.sizes
    engine = stream_engine(run, system)
    gate = asyncio.Semaphore(WARM_BESIDE)

    async def warm(prompt: Prompt) -> Reply:
        async with gate:
            return await engine.ask(prompt, 1)

    warmed = await asyncio.gather(*map(warm, zipf_prompts(run, sizes.stream_warm, 1)))
    prompt_tokens = statistics.fmean(reply.prompt_tokens for reply in warmed)
    for seed, load_share in enumerate(sizes.loads, start=2):
        rate = load_share / (prompt_tokens * run.settings["prefill_token_s"])
        dice, due, at = random.Random(seed), [], 0.0
        while (at := at + dice.expovariate(rate)) < sizes.stream_s or not due:
            due.append(at)
        replies, unfinished = await play(engine, zipf_prompts(run, len(due), seed), due)
        if not replies:
            raise RuntimeError(f"none of {len(due)} requests was answered")
        run.emit(
            "stream",
            system=system,
            load=load_share,
            rate=round(rate, 2),
            unfinished=unfinished,
            ttft_s=[round(reply.ttft_s, 4) for reply in replies],
            hit_share=round(
                sum(reply.cached_tokens for reply in replies)
                / sum(reply.prompt_tokens for reply in replies),
                3,
            ),
        )
    engine.close()


async def play(
    engine: Engine, prompts: Sequence[Prompt], due: Sequence[float]
) -> tuple[list[Reply], int]:
    """Ask each prompt at its time; return the answers, and how many were not there in time."""
    began = time.perf_counter()

    async def ask(prompt: Prompt, at: float) -> Reply:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        return await engine.ask(prompt, 16)

    tasks = [asyncio.create_task(ask(*pair)) for pair in zip(prompts, due, strict=True)]
    done, pending = await asyncio.wait(tasks, timeout=3 * due[-1] + 15)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return [task.result() for task in done], len(pending)
