"""A system in a process of its own: orders come in as JSON lines, and so do the answers go out.

    {"do": "start", "system": "ragcache", "sizes": {...}}
    {"do": "prepare", "folder": "...", "top_k": 2}
    {"do": "play", "requests": [[question, at_s, max_tokens], ...], "at_once": null, "ignore_eos": true}
    {"do": "clear"}   {"do": "told"}   {"do": "close"}

Each is answered by one line, {"ok": ...} or {"error": ..., "kind": ...}. Standard output carries nothing
else: what libraries print goes to standard error.
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

from ragcache_cli.bench.systems import SYSTEMS, Sizes
from ragcache_cli.bench.workload import Request
from ragcache_cli.logging_setup import silence_libraries


async def work(read: Callable[[], str], write: Callable[[str], None]) -> None:
    """Carry out orders until there are no more. An order that fails ends nothing."""
    from ragcache_cli.bench.served import Served

    served: Served | None = None
    try:
        while line := await asyncio.to_thread(read):
            order = json.loads(line)
            try:
                if order["do"] == "start":
                    served = Served(SYSTEMS[order["system"]], Sizes(**order["sizes"]))
                    await served.start()
                    done: Any = None
                elif served is None:
                    raise RuntimeError("nothing was started")
                else:
                    done = await _carried_out(served, order)
            except Exception as error:  # told to the other side, which decides
                done = {"error": str(error), "kind": type(error).__name__}
                write(json.dumps(done))
            else:
                write(json.dumps({"ok": done}))
            if order["do"] == "close":
                served = None
                return
    finally:
        if served:
            await served.close()


async def _carried_out(served: Any, order: dict[str, Any]) -> Any:
    if order["do"] == "prepare":
        return served.prepare(Path(order["folder"]), order["top_k"])
    if order["do"] == "play":
        requests = [Request(*one) for one in order["requests"]]
        return await served.play(requests, order["at_once"], ignore_eos=order["ignore_eos"])
    if order["do"] == "clear":
        return await served.clear()
    if order["do"] == "told":
        return served.told()
    if order["do"] == "close":
        return await served.close()
    raise ValueError(f"there is no order {order['do']!r}")


def main() -> None:
    silence_libraries()
    # Told to end, it closes its engine: otherwise vLLM's processes would stay behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # vLLM leaves a core to a connector's network unless told; then systems would differ in cores.
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "1")
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def write(line: str) -> None:
        answers.write(line + "\n")
        answers.flush()

    with suppress(KeyboardInterrupt):
        asyncio.run(work(sys.stdin.readline, write))


# vLLM starts processes that import this file again.
if __name__ == "__main__":
    main()
