"""Runs a system in a process of its own: reads orders as JSON lines, and answers with JSON lines.

    {"do": "start", "system": {...}, "sizes": {...}}
    {"do": "prepare", "folder": "...", "top_k": 2}
    {"do": "play", "requests": [[question, at_s, max_tokens], ...], "at_once": null, "ignore_eos": true}
    {"do": "warm", "questions": [question, ...]}
    {"do": "clear"}   {"do": "read_counters"}   {"do": "close"}

An answer is {"ok": ...} or {"error": ..., "kind": ...}. Standard output carries nothing else: the
output of libraries goes to standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from comparing.systems import STOCK, Sizes, System
from comparing.workload import Request
from ragcache_cli.logging_setup import silence_libraries


async def carry_out_orders(read: Callable[[], str], write: Callable[[str], None]) -> None:
    """Carry out orders until there are no more. After an order that fails, the next one is read."""
    from comparing.running_system import RunningSystem

    running: RunningSystem | None = None
    try:
        while line := await asyncio.to_thread(read):
            order = json.loads(line)
            try:
                if order["do"] == "start":
                    system = System(**order["system"])
                    if system.kind == STOCK:
                        # As RAGCache does for a worker: vLLM reserves a core for a connector's network,
                        # so that systems with and without host offload would differ in cores.
                        os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "1")
                    running = RunningSystem(system, Sizes(**order["sizes"]))
                    await running.start()
                    done: Any = None
                elif running is None:
                    raise RuntimeError("nothing was started")
                else:
                    done = await _carry_out(running, order)
            except Exception as error:  # the bench decides what to do
                done = {"error": str(error), "kind": type(error).__name__}
                write(json.dumps(done))
            else:
                write(json.dumps({"ok": done}))
            if order["do"] == "close":
                running = None
                return
    finally:
        if running:
            await running.close()


async def _carry_out(running: Any, order: dict[str, Any]) -> Any:
    if order["do"] == "prepare":
        return running.prepare(Path(order["folder"]), order["top_k"])
    if order["do"] == "play":
        requests = [Request(*one) for one in order["requests"]]
        return await running.play(requests, order["at_once"], ignore_eos=order["ignore_eos"])
    if order["do"] == "warm":
        return await running.warm(order["questions"])
    if order["do"] == "clear":
        return await running.clear()
    if order["do"] == "read_counters":
        return running.read_counters()
    if order["do"] == "close":
        return await running.close()
    raise ValueError(f"there is no order {order['do']!r}")


def main() -> None:
    """Read orders from standard input until it ends, or until the order to close."""
    silence_libraries()
    # A SIGTERM closes the engine, as Ctrl-C does: otherwise vLLM's processes would stay behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def write(line: str) -> None:
        answers.write(line + "\n")
        answers.flush()

    with suppress(KeyboardInterrupt):
        asyncio.run(carry_out_orders(sys.stdin.readline, write))


# vLLM starts processes that import this file again.
if __name__ == "__main__":
    main()
