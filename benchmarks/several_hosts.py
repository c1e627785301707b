"""Let servers on hosts of their own share a Redis on another one, and let links, store and hosts fail.

    python benchmarks/several_hosts.py --out FOLDER            # needs root, redis-server and iproute2
    python benchmarks/several_hosts.py --out FOLDER --soak 60  # forget for so many minutes, nothing fails

The hosts are network namespaces of this machine, with addresses, /tmp and /dev/shm of their own. Two run
`ragcache serve` with a real model in float32, the second of them with a clock an hour ahead; one runs
Redis, and one waits to take a dead one's place. Clients ask both servers all the time; each answer is
compared with the one that the first server gave undisturbed. After each fault a document is computed on
one server, again and again another one, until the other server fetches it: that is the recovery. The
exit status is 1 if an answer was lost or wrong, or if a forgotten document was served.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import httpx2
from hosts.network import Host, NeedsRoot, hosts
from programs import command_line, keep
from tables import table

from ragcache_cli.models import demo_model
from ragcache_engine import Document, RAGCacheEngine, RAGCacheError, SamplingOptions

KEY = "the operator's key of these hosts"
STORE, NEW = 2, 3
"""The places of the hosts that run Redis, and that take a dead one's place."""
REPORTS, LINES, FAULT_S = 12, 40, 6.0
SOAK_PAUSE_S = 2.0
"""How long each client of a long soak rests, so that other programs have a part of the cores."""
READY_S, RECOVERED_S = 300.0, 180.0
AHEAD = Path(__file__).parent / "hosts" / "ahead"
OPTIONS = SamplingOptions(max_tokens=8)


def report(name: str) -> Document:
    return Document(
        name, " ".join(f"Item {line} of {name} weighs {line} kg." for line in range(LINES))
    )


class Server:
    """`ragcache serve` on a host. is_ahead: whether its clock is an hour ahead."""

    def __init__(
        self, host: Host, store: Host, model: str, log: IO[bytes], is_ahead: bool = False
    ) -> None:
        self.host = host
        paths = [str(AHEAD)] * is_ahead + [os.environ.get("PYTHONPATH", "")]
        self._process = host.start(
            [
                *(sys.executable, "-m", "ragcache_cli", "serve", model),
                *("--host-cache", "512MiB", "--disk-cache", "1GiB", "--disk-cache-dir", "/tmp/kv"),
                *("--shared-cache", f"redis://{store.address}:6379"),
                *("--", "--host", host.address, "--port", "8000", "--dtype", "float32"),
                *("--max-model-len", "2048", "--kv-cache-memory-bytes", "500M"),
            ],
            log=log,
            environment={
                "RAGCACHE_OPERATOR_KEY": KEY,
                "TMPDIR": "/tmp",
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            },
        )

    def connect(self) -> RAGCacheEngine:
        """Wait until the server answers, and connect to it."""
        url = f"http://{self.host.address}:8000"
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise SystemExit(f"the server on {self.host.address} ended: see its log")
            with suppress(httpx2.TransportError):
                if httpx2.get(f"{url}/health", timeout=5.0).status_code == 200:
                    return RAGCacheEngine.connect(url, api_key=KEY)
            time.sleep(1.0)
        raise SystemExit(f"{url} was not ready within {READY_S:.0f} s")


class Traffic:
    """Clients that ask all the time. wrong, lost: what came of that; excused: servers that may fail.

    pause_s: how long each client rests after an answer.
    """

    def __init__(
        self,
        engines: dict[str, RAGCacheEngine],
        expected: dict[str, str],
        clients: int = 2,
        pause_s: float = 0.0,
    ) -> None:
        self._pause_s = pause_s
        self.engines, self._expected = engines, expected
        self.asked = self.wrong = self.lost = 0
        self.excused: set[str] = set()
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(seed,)) for seed in range(clients)
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()

    def _run(self, seed: int) -> None:
        dice = random.Random(seed)
        while not self._ended.is_set():
            name, place = dice.choice([*self._expected]), dice.choice([*self.engines])
            try:
                text, _ = ask(self.engines[place], name)
            except RAGCacheError as error:
                with self._lock:
                    if place not in self.excused:
                        self.lost += 1
                        print(f"\nlost at {place}: {error}")
                time.sleep(0.5)
                continue
            with self._lock:
                self.asked += 1
                if text != self._expected[name]:
                    self.wrong += 1
                    print(f"\nwrong at {place}: {name}: {text!r}")
            self._ended.wait(self._pause_s)


def ask(engine: RAGCacheEngine, name: str) -> tuple[str, int]:
    """Return the answer, and how many tokens of its prompt came from disk or store."""
    document = report(name)
    prompt = f"Use the report.\n\n{document.text}\n\nQuestion: Which item weighs most?\nAnswer:"
    answer = engine.generate(prompt, [document], OPTIONS)
    return answer.text, answer.usage.cached.disk


def recover(first: RAGCacheEngine, second: RAGCacheEngine, label: str) -> float:
    """Return the seconds until the second host fetches what the first one has just computed."""
    began = time.monotonic()
    for number in range(10_000):
        name = f"{label} {number}"
        text, _ = ask(first, name)
        time.sleep(0.3)
        again, fetched = ask(second, name)
        if text != again:
            raise SystemExit(f"{name}: {text!r} and {again!r}")
        if fetched:
            return time.monotonic() - began
        if time.monotonic() - began > RECOVERED_S:
            break
    raise SystemExit(f"{label}: nothing was fetched within {RECOVERED_S:.0f} s")


def main() -> None:
    asked = _parse()
    try:
        with ExitStack() as stack:
            made = stack.enter_context(hosts(4))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            model = asked.model or str(demo_model())
            lines, is_right = _play(made, model, folder, stack, asked.soak)
    except NeedsRoot as error:
        raise SystemExit(str(error)) from None
    print(*lines, sep="\n")
    keep(asked.out, "report", lines, {})
    sys.exit(0 if is_right else 1)


def _play(
    made: list[Host], model: str, logs: Path, stack: ExitStack, soak_minutes: float
) -> tuple[list[str], bool]:
    store = made[STORE]

    def log(name: str) -> IO[bytes]:
        return stack.enter_context((logs / name).open("wb"))

    def start_redis() -> None:
        store.start(
            ["redis-server", "--bind", store.address, "--protected-mode", "no", "--save", ""],
            log=log("redis.log"),
        )
        time.sleep(1.0)

    start_redis()
    servers = {
        f"host {place + 1}": Server(made[place], store, model, log(f"{place}.log"), place == 1)
        for place in (0, 1)
    }
    engines = {place: stack.enter_context(server.connect()) for place, server in servers.items()}
    first, second = engines.values()
    names = [f"report {number}" for number in range(REPORTS)]
    expected = {name: ask(first, name)[0] for name in names}
    fetched = [ask(second, name) for name in names]
    wrong = sum(text != expected[name] for name, (text, _) in zip(names, fetched, strict=True))
    rows = [
        [
            "none",
            f"{sum(tokens > 0 for _, tokens in fetched)} of {REPORTS} documents fetched",
            "",
        ]
    ]
    traffic = Traffic(dict(engines), expected, pause_s=SOAK_PAUSE_S if soak_minutes else 0.0)
    if soak_minutes:
        with traffic.running():
            lines, is_right = soak([*engines.values()], soak_minutes)
        lines.append(f"{traffic.asked:,} answers: {traffic.wrong} wrong, {traffic.lost} lost.")
        return lines, is_right and not (traffic.wrong or traffic.lost)

    def fault(name: str, begin: Callable[[], object], end: Callable[[], object]) -> None:
        print(f"{name}", flush=True)
        begin()
        time.sleep(FAULT_S)
        end()
        rows.append([name, "answers go on", f"{recover(first, second, name):.1f} s"])

    with traffic.running():
        fault("link of the store cut", store.cut, store.mend)
        fault("store killed, back empty", store.kill, start_redis)
        traffic.excused.add("host 2")  # whoever asks it meanwhile waits, or is told
        fault("link of a server cut", made[1].cut, made[1].mend)

        print("forgetting while a server is cut off", flush=True)
        secret = "what is forgotten"
        ask(first, secret)
        recover(first, second, "before forgetting")
        ask(second, secret)
        made[1].cut()
        first.forget([secret])
        made[1].mend()
        began, served = time.monotonic(), True
        while served and time.monotonic() - began < RECOVERED_S:
            served = second_has(second, secret)
            time.sleep(0.5)
        rows.append(
            [
                "server cut while a document is forgotten",
                "forgotten there, too",
                f"{time.monotonic() - began:.1f} s",
            ]
        )

        print("a host dies and another takes its place", flush=True)
        del traffic.engines["host 2"]
        made[1].kill()
        began = time.monotonic()
        engine = stack.enter_context(Server(made[NEW], store, model, log("new.log")).connect())
        rows.append(["host killed", "another one started", f"{time.monotonic() - began:.1f} s"])
        traffic.engines["host 4"] = engine
        taken = [ask(engine, name) for name in names]
        wrong += sum(text != expected[name] for name, (text, _) in zip(names, taken, strict=True))
        rows.append(
            ["", f"{sum(tokens > 0 for _, tokens in taken)} of {REPORTS} documents fetched", ""]
        )
        time.sleep(FAULT_S)
    lines = [
        *table(("fault", "what was seen", "until it is over"), rows),
        f"{traffic.asked:,} answers beside it: {traffic.wrong + wrong} wrong, {traffic.lost} lost.",
    ]
    return lines, not (traffic.wrong or wrong or traffic.lost or served)


def soak(engines: Sequence[RAGCacheEngine], minutes: float) -> tuple[list[str], bool]:
    """Let both hosts have documents, forget each at one of them, and look for it at one of them.

    Returns the lines of the report, and whether nothing forgotten was served.
    """
    dice, served, fetched, number = random.Random(7), 0, 0, 0
    slowest_s, end = 0.0, time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        number += 1
        name = f"forgotten {number}"
        here, there = dice.sample([*engines], 2)
        ask(here, name)
        time.sleep(SOAK_PAUSE_S)
        fetched += ask(there, name)[1] > 0
        began = time.monotonic()
        dice.choice((here, there)).forget([name])
        asked = dice.choice((here, there))  # one of them: whoever is asked computes it anew
        while second_has(asked, name):
            if time.monotonic() - began > RECOVERED_S:
                served += 1
                break
            time.sleep(0.5)
        slowest_s = max(slowest_s, time.monotonic() - began)
        print(f"\r{number} forgotten, {served} served", end="", flush=True)
    line = (
        f"{number:,} documents forgotten in {minutes:g} minutes, {fetched:,} of them fetched before: "
        f"{served} served afterwards; gone after {slowest_s:.1f} s at most. The second host's clock "
        "was an hour ahead."
    )
    return [line], not served


def second_has(engine: RAGCacheEngine, name: str) -> bool:
    """Return whether a host still has a document: a chat that asks for it finds most of it cached."""
    document = report(name)
    prompt = f"Use the report.\n\n{document.text}\n\nQuestion: Which?\nAnswer:"
    return engine.generate(prompt, [document], OPTIONS).usage.cached.total > 100


def _parse() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--model")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES")
    return parser.parse_args()


if __name__ == "__main__":
    main()
