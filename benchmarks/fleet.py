"""Ask a fleet of two real vLLM replicas: does routing by documents find more, and is an answer ever lost?

    python benchmarks/fleet.py --part routing --out FOLDER     # one fleet, each routing in turn
    python benchmarks/fleet.py --part faults --out FOLDER      # 64 clients while replicas are killed
    python benchmarks/fleet.py --part disk --out FOLDER        # what one replica computed another reads

routing: questions of squad on a few of its articles, whose passages are too many for one replica. Once
in their own order, once drawn with Zipf weights. Caches are cleared before each stream. Hits are the
cached prompt tokens; TTFT is from the request to its first token, with --clients asking all the time.
With --requests 260 --device-mib 80 --clients 2 one replica holds little of what is asked, by Zipf too;

faults: 2,000 requests of 64 clients, in float32 and greedy. Meanwhile vLLM's process of one replica and
later the whole other replica are killed (SIGKILL). Each answer is compared with the one that the fleet
gave undisturbed. The exit status is 1 if one was lost or differs.

RAGCACHE_DATA names the folder of the question sets.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any

import httpx2
import psutil
from programs import command_line, describe_machine
from question_files import read_asked

from ragcache_cli.machine import this_machine
from ragcache_cli.models import demo_model
from ragcache_engine.fleet_serving.fleet_settings import FleetSettings
from ragcache_engine.fleet_serving.ingress import ROUTING_HEADER
from ragcache_engine.fleet_serving.running import NAME, running_fleet
from ragcache_engine.simulation.traces import zipf_weights

MIB = 1 << 20
OPERATOR = "the operator's own key"
ROUTINGS = ("documents", "random", "prefix")
STREAMS = ("natural", "zipf")
SYSTEM = "Answer the question from the passage."
SEED = 1
READY_S = 600.0
"""How long a killed replica may take to come back, on a machine that has other work, too."""
ANSWER_TOKENS = 24
"""Tokens of an answer while replicas are killed: long enough that most are hit in the middle."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question with its passage. document: the passage's id."""

    question: str
    document: str
    text: str

    def body(self, max_tokens: int) -> dict[str, Any]:
        start = len(SYSTEM) + 2
        prompt = f"{SYSTEM}\n\n{self.text}\n\nQuestion: {self.question}\nAnswer:"
        return {
            "prompt": prompt,
            "documents": [[start, start + len(self.text), self.document]],
            "options": {"max_tokens": max_tokens, "temperature": 0.0},
            "request": os.urandom(8).hex(),
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. cached, prompt: tokens. by_tier: cached tokens of device, host and disk."""

    text: str
    tokens: tuple[int, ...]
    prompt: int
    by_tier: tuple[int, int, int]
    ttft_s: float

    @property
    def cached(self) -> int:
        return sum(self.by_tier)


class Door:
    """The fleet's door, for many threads."""

    def __init__(self, url: str) -> None:
        self._client = httpx2.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {OPERATOR}"},
            timeout=httpx2.Timeout(300.0, pool=None),
            limits=httpx2.Limits(max_connections=None),
        )

    def ask(self, ask: Ask, max_tokens: int, routing: str | None = None) -> Answer:
        """Ask and read the whole stream. Raises RuntimeError for an answer that is none."""
        headers = {ROUTING_HEADER: routing} if routing else {}
        began, first_s = time.perf_counter(), 0.0
        text, tokens, prompt, by_tier, finish = "", list[int](), 0, (0, 0, 0), None
        body = ask.body(max_tokens)
        with self._client.stream(
            "POST", "/ragcache/generate", json=body, headers=headers
        ) as answer:
            if answer.status_code != 200:
                raise RuntimeError(f"HTTP {answer.status_code}: {answer.read()[:300]!r}")
            for event in httpx2.EventSource(answer):
                said = json.loads(event.data)
                if "error" in said:
                    raise RuntimeError(str(said["error"]))
                if said.get("tokens") and not first_s:
                    first_s = time.perf_counter() - began
                prompt = said.get("prompt_tokens", prompt)
                by_tier = tuple(said.get("cached") or by_tier)
                text, finish = text + said.get("text", ""), said.get("finish", finish)
                tokens += said.get("tokens", ())
        if finish is None:
            raise RuntimeError("the answer has no end")
        return Answer(text, tuple(tokens), prompt, by_tier, first_s)

    def clear(self) -> None:
        """Empty the caches of all replicas."""
        deadline = time.monotonic() + 30
        while not self._client.post("/ragcache/clear", json={}).json().get("cleared"):
            if time.monotonic() > deadline:
                raise RuntimeError("the caches could not be cleared")
            time.sleep(0.2)


@contextmanager
def fleet(device_mib: int, disk: Path | None = None, replicas: int = 2) -> Iterator[Door]:
    """Run replicas of the demo's model in float32."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    server = ["-m", "ragcache_cli", "serve", str(demo_model())]
    if disk is not None:
        server += ["--host-cache", "64MiB", "--disk-cache", "2GiB", "--disk-cache-dir", str(disk)]
    limits = ["--max-model-len", "1024", "--kv-cache-memory-bytes", str(device_mib * MIB)]
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = FleetSettings(
        (*server, "--", "--dtype", "float32", *limits), replicas=replicas, splits_cores=True
    )
    with running_fleet(settings, host="127.0.0.1", port=port, operator_key=OPERATOR):
        yield Door(f"http://127.0.0.1:{port}")


def natural_asks(articles: int) -> list[Ask]:
    """Return the questions whose nearest passage is in one of the articles asked most, as they stand."""
    found = [(one.question["query"], one.documents[0]) for one in read_asked("squad", 1)]
    titles = Counter(passage["title"] for _, passage in found)
    kept = {title for title, _ in titles.most_common(articles)}
    return [
        Ask(question, passage["doc_id"], passage["text"])
        for question, passage in found
        if passage["title"] in kept
    ]


def zipf_asks(asks: Sequence[Ask], count: int) -> list[Ask]:
    dice = random.Random(SEED)
    ranking = list(asks)
    dice.shuffle(ranking)
    return dice.choices(ranking, weights=zipf_weights(len(ranking)), k=count)


# -- routing ---------------------------------------------------------------------------------------


def compare_routings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Ask both streams with each routing on one fleet."""
    natural = natural_asks(arguments.articles)[: arguments.requests]
    made = {"natural": natural, "zipf": zipf_asks(natural, len(natural))}
    streams = {name: made[name] for name in arguments.streams}
    rows: list[dict[str, Any]] = []
    with fleet(arguments.device_mib) as door:
        for ask in natural[:4]:
            door.ask(ask, 2)
        for name, asks in streams.items():
            for routing in arguments.routings:
                door.clear()
                rows.append(
                    {"stream": name, "routing": routing, **ask_all(door, asks, routing, arguments)}
                )
                print(json.dumps(rows[-1]), flush=True)
    passages = {ask.document for asks in streams.values() for ask in asks}
    return {"passages": len(passages), "device_mib": arguments.device_mib, "rows": rows}


def ask_all(
    door: Door, asks: Sequence[Ask], routing: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    began = time.perf_counter()
    with ThreadPoolExecutor(arguments.clients) as pool:
        answers = list(pool.map(lambda ask: door.ask(ask, 2, routing), asks))
    ttfts = sorted(answer.ttft_s for answer in answers)
    return {
        "requests": len(answers),
        "hits": sum(each.cached for each in answers) / sum(each.prompt for each in answers),
        "ttft_s": statistics.mean(ttfts),
        "median_ttft_s": statistics.median(ttfts),
        "p95_ttft_s": ttfts[int(0.95 * len(ttfts))],
        "took_s": time.perf_counter() - began,
    }


# -- faults ----------------------------------------------------------------------------------------


def servers() -> list[psutil.Process]:
    """Return the servers of this fleet's replicas, the oldest first."""
    below = psutil.Process().children(recursive=True)
    found = []
    for process in below:
        try:
            is_server = "vllm.entrypoints.openai.api_server" in process.cmdline()
            if is_server and os.getpgid(process.pid) == process.pid:
                found.append((process.create_time(), process.pid, process))
        except (psutil.Error, OSError):  # it has just died
            continue
    return [process for _, _, process in sorted(found)]


def running_replicas() -> int:
    from ray import serve

    engines = serve.status().applications[NAME].deployments["Engines"]
    return sum(count for state, count in engines.replica_states.items() if state == "RUNNING")


def kill(victim: str) -> float | None:
    """Kill the oldest replica's model or actor; return the seconds until two replicas run again.

    None if that took longer than READY_S.
    """
    server = servers()[0]
    target = server.parent() if victim == "actor" else server
    if victim == "model":
        target = next(
            each for each in server.children() if "EngineCore" in " ".join(each.cmdline())
        )
    assert target is not None
    before = {each.pid for each in servers()}
    began = time.monotonic()
    os.kill(target.pid, signal.SIGKILL)
    while time.monotonic() - began < READY_S:
        time.sleep(0.5)
        now = {each.pid for each in servers()}
        if server.pid not in now and now - before and running_replicas() == 2:
            return time.monotonic() - began
    return None


def make_faults(arguments: argparse.Namespace) -> dict[str, Any]:
    """Ask while replicas are killed, and compare every answer."""
    distinct = natural_asks(arguments.articles)[: arguments.distinct]
    asks = [distinct[number % len(distinct)] for number in range(arguments.requests)]
    with fleet(arguments.device_mib) as door:
        with ThreadPoolExecutor(arguments.clients) as pool:
            expected = dict(
                zip(
                    distinct,
                    pool.map(lambda ask: door.ask(ask, ANSWER_TOKENS).tokens, distinct),
                    strict=True,
                )
            )
        print(f"{len(expected)} undisturbed answers", flush=True)
        done, lock, recovered = Counter[str](), threading.Lock(), dict[str, float | None]()
        reasons: list[str] = []

        def one(ask: Ask) -> None:
            try:
                answer = door.ask(ask, ANSWER_TOKENS)
                outcome = "right" if answer.tokens == expected[ask] else "wrong"
            except (RuntimeError, httpx2.HTTPError) as error:
                outcome = "lost"
                reasons.append(repr(error)[:300])
            with lock:
                done[outcome] += 1
                done["all"] += 1
                if done["all"] % 50 == 0:  # a run that is stopped has said how far it came
                    print(json.dumps({**done, "reasons": reasons[:5]}), flush=True)

        def killer() -> None:
            for victim, share in (("model", 0.1), ("actor", 0.6)):
                while done["all"] < share * len(asks):
                    time.sleep(0.05)
                recovered[victim] = kill(victim)
                print(f"{victim}: two replicas again after {recovered[victim]} s", flush=True)

        began = time.perf_counter()
        killing = threading.Thread(target=killer)
        killing.start()
        with ThreadPoolExecutor(arguments.clients) as pool:
            list(pool.map(one, asks))
        took_s = time.perf_counter() - began
        killing.join()
    return {
        "requests": len(asks),
        "clients": arguments.clients,
        "right": done["right"],
        "wrong": done["wrong"],
        "lost": done["lost"],
        "reasons": reasons[:5],
        "seconds_to_recover": recovered,
        "took_s": took_s,
    }


# -- the shared disk -------------------------------------------------------------------------------


def share_disk(arguments: argparse.Namespace) -> dict[str, Any]:
    """Let one replica compute, and the other read. Both must answer alike."""
    asks = natural_asks(arguments.articles)
    asks = list({ask.document: ask for ask in asks}.values())[:24]
    with tempfile.TemporaryDirectory() as folder, fleet(64, Path(folder)) as door:
        first = [door.ask(ask, 8, "documents") for ask in asks]
        time.sleep(5)  # blocks are written in the background
        # Each prompt goes by chance: about half go to the replica that did not compute them.
        again = [door.ask(ask, 8, "random") for ask in asks for _ in range(2)]
    same = all(first[at // 2].tokens == each.tokens for at, each in enumerate(again))
    tiers = [sum(each.by_tier[at] for each in again) for at in range(3)]
    return {
        "prompts": len(again),
        "same_tokens": same,
        "prompt_tokens": sum(each.prompt for each in again),
        "device_tokens": tiers[0],
        "host_tokens": tiers[1],
        "disk_tokens": tiers[2],
    }


PARTS = {"routing": compare_routings, "faults": make_faults, "disk": share_disk}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__doc__)
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--out", type=Path, default=Path("fleet-output"))
    parser.add_argument("--articles", type=int, default=2)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--distinct", type=int, default=40)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--device-mib", type=int, default=256)
    parser.add_argument("--streams", choices=STREAMS, nargs="+", default=list(STREAMS))
    parser.add_argument("--routings", choices=ROUTINGS, nargs="+", default=list(ROUTINGS))
    parsed = parser.parse_args(arguments)
    parsed.out.mkdir(parents=True, exist_ok=True)
    status = 0
    for part in parsed.part:
        chosen = argparse.Namespace(**vars(parsed))
        chosen.requests = parsed.requests or {"faults": 2000}.get(part, 10_000)
        chosen.clients = parsed.clients or {"faults": 64}.get(part, 4)
        found = PARTS[part](chosen)
        found["machine"] = describe_machine(this_machine())
        (parsed.out / f"{part}.json").write_text(
            json.dumps(found, indent=1) + "\n", encoding="utf-8"
        )
        print(json.dumps(found, indent=1), flush=True)
        is_wrong = found.get("lost") or found.get("wrong") or found.get("same_tokens") is False
        status = 1 if is_wrong else status
    return status


if __name__ == "__main__":
    sys.exit(main())
