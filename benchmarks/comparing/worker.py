"""Runs a system in a process of its own: reads orders as JSON lines, and answers with JSON lines.

    {"do": "play", "given": [...]}

The first order is "start" with the system and its sizes; each other one is a method of RunningSystem with
its arguments, up to "close". An answer is {"ok": ...} or {"error": ...}. Standard output carries nothing
else: the output of libraries goes to standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from inspect import isawaitable
from typing import Any

from comparing.systems import STOCK, Sizes, System
from ragcache_cli.logging_setup import silence_libraries


async def carry_out_orders(read: Callable[[], str], write: Callable[[str], None]) -> None:
    """Carry out orders until there are no more. After an order that fails, the next one is read."""
    running: Any = None
    try:
        while line := await asyncio.to_thread(read):
            order = json.loads(line)
            try:
                given = order["given"]
                if order["do"] == "start":
                    running, given = make_system(*given), []
                done = getattr(running, order["do"])(*given)
                answer = {"ok": await done if isawaitable(done) else done}
            except Exception as error:  # the bench decides what to do
                answer = {"error": f"{type(error).__name__}: {error}"}
            write(json.dumps(answer))
            if order["do"] == "close":
                running = None
                return
    finally:
        if running:
            await running.close()


def make_system(system: dict[str, Any], sizes: dict[str, Any]) -> Any:
    from comparing.running_system import RunningSystem

    if system["kind"] == STOCK:
        # As RAGCache does for a worker: vLLM reserves a core for a connector's network, so that systems
        # with and without host offload would differ in cores.
        os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "1")
    return RunningSystem(System(**system), Sizes(**sizes))


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
