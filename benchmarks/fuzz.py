"""Send a real server what its schema allows and forbids, as one tenant, while another one asks.

    python benchmarks/fuzz.py --out FOLDER      # `make fuzz`: an hour, or 10,000 requests
    python benchmarks/fuzz.py --out FOLDER      # again: the next piece, until the requests are made

schemathesis makes the requests, from the OpenAPI schema of vLLM's server and that of the paths below
/ragcache: values at and beyond their bounds, of wrong types, unknown fields, methods and headers. Bodies
that it sent are sent again with bytes cut, changed and repeated. They have a tenant's key. Meanwhile a
second tenant asks a short question again and again.

The folder gets the figures and the server's log of each piece. The exit status is 1 if in any of them a
request got a status of 500 or above or no answer, if the second tenant was refused or waited a second
longer than it does when it is alone, or if the server did not answer or end afterwards.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import psutil
from pydantic import TypeAdapter
from serve_command import is_healthy, serving

from ragcache_engine.serving import messages
from ragcache_engine.serving.openai_bodies import (
    CHAT,
    COMPLETIONS,
    DOCUMENTS,
    MESSAGES,
    RESPONSES,
    SEGMENTS,
    TENANTS_FIELDS,
    TOKENIZE,
    TRANSFER,
)
from ragcache_engine.tiers.wire import FIELD
from ragcache_engine.values import SamplingOptions

FUZZER, OTHER, OPERATOR = "the key of the fuzzer", "the key of the other", "the operator's own key"
WORKERS = 8
"""How many requests of the fuzzer are under way at a time."""
ANSWER_S = 120.0
"""A request without an answer for so long counts as unanswered."""
MOST_DELAY_S = 1.0
"""How much longer the second tenant may wait than it does when it is alone."""
STOP_S = 30.0
"""How long the server may take to end after SIGTERM."""
PAUSE_S = 0.5
"""Between an answer to the second tenant and its next question."""
MANGLED = 0.2
"""The share of requests whose bodies are those of others, with broken bytes."""
ALONE = 5
"""How many questions the second tenant asks before the fuzzer begins."""
EACH = 20
"""How many random requests a round sends to one path."""
BOUNDS, MOST_BOUNDS_S = 1, 1800
"""The number of the round that sends every value at its bounds, about 6,000 requests, and how long it may
take."""
ANSWER_TOKENS = 4
"""Tokens of an answer: the fuzzer is after requests, and not after long answers."""

QUESTION = "Why is the sky blue?"
TIDES = "The tides rise and fall twice a day, as the moon pulls the oceans."
_MESSAGES = [{"role": "user", "content": QUESTION}]
MODEL = "demo"
_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_OURS = {
    "/generate": messages.GenerateBody,
    "/tokenize": messages.TokenizeBody,
    "/detokenize": messages.DetokenizeBody,
    "/render": messages.RenderBody,
    "/tool_calls": messages.ToolCallsBody,
    "/forget": messages.ForgetBody,
    "/tree": messages.TreeBody,
    "/corpora/sea": messages.CorpusLine,
    "/corpora/sea/remove": messages.RemoveBody,
    "/corpora/sea/warm": messages.WarmBody,
    "/corpora/sea/release": messages.ReleaseBody,
}
"""The bodies of the paths below /ragcache."""
_PUT = {"/corpora/sea"}
"""Of these paths, those with another method than POST."""
_READ = {
    "/server": ("get",),
    "/counters": ("get",),
    "/corpora": ("get",),
    "/corpora/sea": ("get", "delete"),
    "/corpora/sea/kept": ("get",),
    "/corpora/sea/documents/tides": ("get", "delete"),
}
"""The paths that are asked for without a body, and how."""
_SOUND: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": f"{TIDES} {QUESTION}"},
    CHAT: {"messages": _MESSAGES},
    RESPONSES: {"input": QUESTION},
    MESSAGES: {"model": MODEL, "messages": _MESSAGES, "max_tokens": ANSWER_TOKENS},
    TOKENIZE: {"prompt": QUESTION},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/ragcache/generate": {
        "prompt": QUESTION,
        "request": "r",
        "options": {"max_tokens": ANSWER_TOKENS},
    },
    "/ragcache/tokenize": {"text": QUESTION},
    "/ragcache/detokenize": {"token_ids": [1, 2, 3]},
    "/ragcache/render": {"messages": _MESSAGES},
    "/ragcache/tool_calls": {
        "tools": [_TOOL],
        "text": '<tool_call>{"name": "look", "arguments": {}}</tool_call>',
    },
    "/ragcache/forget": {"document_ids": ["d"]},
    "/ragcache/tree": {},
    "/ragcache/corpora/sea": {"id": "tides", "text": TIDES},
    "/ragcache/corpora/sea/remove": {"ids": ["tides"]},
    "/ragcache/corpora/sea/warm": {},
    "/ragcache/corpora/sea/release": {},
}
"""A body that is answered. One field of it at a time is fuzzed, or all: else hardly a body that differs
from it in several places would get past the first of them."""


def _object_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


def _list_of(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item}


def _tuple_of(*items: Any) -> dict[str, Any]:
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


_NUMBER, _TEXT = {"type": "integer"}, {"type": "string"}
_BROKEN = (b"\xff", b"\x00", b"[" * 3000, b"1e999", b"NaN", b'"\\ud800"', b'{"a":1,', b"-", b'"')
"""What is put into bodies: no UTF-8, too deep, no numbers, half a character, too much or too little."""

_SERVE = ("--host-cache", "64MiB", "--max-requests", "16", "--reuse", "anywhere")
_SERVE += ("--learn-documents",)
_VLLM = (
    *("--dtype", "float32", "--max-model-len", "256", "--kv-cache-memory-bytes", str(100 << 20)),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--served-model-name", MODEL),
    *("--override-generation-config", json.dumps({"max_new_tokens": ANSWER_TOKENS})),
)

_SPECIAL: dict[str, Any] = {
    "model": {"enum": [MODEL, None]},
    "options": {"$ref": "#/components/schemas/SamplingOptions"},
    TRANSFER: _object_of(
        {
            FIELD: _object_of(
                {
                    DOCUMENTS: _list_of(_tuple_of(_NUMBER, _NUMBER, _TEXT)),
                    SEGMENTS: _list_of(_tuple_of(_NUMBER, _TEXT)),
                }
            )
        }
    ),
}
"""Schemas of fields that the server's own schema says less of."""
_HEADERS = [
    {"name": name, "in": "header", "schema": {"type": "string"}}
    for name in ("X-Request-Id", "traceparent")
]


@dataclass(frozen=True, slots=True)
class Sent:
    """A request of the fuzzer. status: 0 for one without an answer. body, answer: as text.

    began, took_s: when it was sent, in seconds since 1970, and how long until its answer was whole.
    """

    method: str
    path: str
    status: int
    body: str
    answer: str
    began: float = 0.0
    took_s: float = 0.0

    @property
    def is_fault(self) -> bool:
        """Return whether the server failed; a stream tells of it in an event behind its status 200."""
        told = ('"kind":"GenerationFailed"', '"InternalServerError"')
        is_told = self.status == 200 and any(words in self.answer for words in told)
        return self.status == 0 or self.status >= 500 or is_told


@dataclass(slots=True)
class Piece:
    """What one run of this program saw.

    first, rounds: the number of its first round, and how many it made. answers: how many requests there
      were of each method, path and status. faults: those that the server failed at.
    alone_s: what the second tenant waited before. waits: when it asked, in seconds since 1970, and what
      it waited. delays: what the fuzzer had under way when it waited too long. refused: what else its
      questions got. ended: what was wrong with the server afterwards. stop_s: how long it took to end.
    """

    first: int
    rounds: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    faults: list[Sent] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    delays: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    stop_s: float = 0.0

    def add(self, sent: Sequence[Sent], first: int = 0) -> None:
        """Add the requests of a round. first: the first wait that the second tenant had beside it."""
        self.answers.update(f"{one.method} {one.path} {one.status}" for one in sent)
        self.faults += [one for one in sent if one.is_fault]
        for began, waited_s in self.waits[first:]:
            if waited_s > statistics.median(self.alone_s) + MOST_DELAY_S:
                beside = (one for one in sent if -one.took_s < one.began - began < waited_s)
                longest = sorted(beside, key=lambda one: one.took_s)[-3:]
                told = (
                    f"{one.took_s:.1f} s {one.method} {one.path} {one.body[:500]}"
                    for one in longest
                )
                what = "; ".join(told) or "nothing of the fuzzer's: the machine had other work"
                self.delays.append(f"{waited_s:.1f} s beside {what}")

    def failures(self) -> Iterator[str]:
        """Yield what must not happen."""
        for one in self.faults:
            yield f"{one.method} {one.path}: {one.status} {one.answer[-300:]} to {one.body[:2000]}"
        yield from (f"the second tenant got {why}" for why in self.refused)
        yield from (f"the second tenant waited {delay}" for delay in self.delays)
        yield from self.ended


_PIECE = TypeAdapter(Piece)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000, help="of all pieces together")
    parser.add_argument("--minutes", type=float, default=60, help="of this piece, about")
    parser.add_argument("--out", type=Path, required=True)
    parsed = parser.parse_args()
    parsed.out.mkdir(parents=True, exist_ok=True)
    pieces = read_pieces(parsed.out)
    left = parsed.requests - sum(piece.answers.total() for piece in pieces)
    if left > 0:
        piece = Piece(first=sum(piece.rounds for piece in pieces))
        name = f"piece-{len(pieces) + 1:02}"
        with running_server(parsed.out / f"{name}.log") as (url, process):
            fuzz(url, read_schema(url), piece, left, time.monotonic() + 60 * parsed.minutes)
            end_server(url, process, piece)
        write_piece(parsed.out / f"{name}.json", piece)
        pieces.append(piece)
    print("\n".join(report(pieces)))
    return 1 if any(list(piece.failures()) for piece in pieces) else 0


def write_piece(path: Path, piece: Piece) -> None:
    path.write_bytes(_PIECE.dump_json(piece, indent=1))


def read_pieces(folder: Path) -> list[Piece]:
    """Read the pieces that earlier runs left in the folder, in order."""
    return [_PIECE.validate_json(path.read_bytes()) for path in sorted(folder.glob("piece-*.json"))]


def report(pieces: Sequence[Piece]) -> Iterator[str]:
    """Yield what was seen."""
    answers = sum((piece.answers for piece in pieces), Counter[str]())
    yield from (f"{count:7,} {which}" for which, count in sorted(answers.items()))
    yield f"{answers.total():7,} requests"
    for number, piece in enumerate(pieces, 1):
        longest_s = max(waited_s for _, waited_s in piece.waits)
        yield (
            f"Piece {number}: {piece.answers.total():,} requests, {len(piece.faults)} faults. The second "
            f"tenant asked {len(piece.waits)} times and waited {longest_s:.2f} s at most; alone "
            f"{statistics.median(piece.alone_s):.2f} s. The server ended in {piece.stop_s:.1f} s."
        )
        yield from (f"  FAILED: {one}" for one in piece.failures())


@contextmanager
def running_server(log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run `ragcache serve` with the demo's model until the block ends. log: what it writes."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as keys:
        tenants = f'[tenants]\nfuzzer = ["{FUZZER}"]\nother = ["{OTHER}"]\n'
        keys.write(f'{tenants}[operators]\nanna = ["{OPERATOR}"]\n')
        keys.flush()
        with serving([*_SERVE, "--keys", keys.name], _VLLM, log) as running:
            yield running


def end_server(url: str, process: subprocess.Popen[bytes], piece: Piece) -> None:
    """See whether the server answers still, and ends as it is told to, in the middle of an answer."""
    if not is_healthy(url):
        piece.ended.append("the server does not answer any more")
    threading.Thread(target=ask_at_length, args=(url,), daemon=True).start()
    time.sleep(PAUSE_S)
    below = psutil.Process(process.pid).children(recursive=True)
    began = time.monotonic()
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        piece.ended.append(f"the server did not end within {STOP_S:.0f} s of SIGTERM")
    piece.stop_s = time.monotonic() - began
    if left := psutil.wait_procs(below, timeout=STOP_S)[1]:
        piece.ended.append(f"{len(left)} processes outlived the server")


def ask_at_length(url: str) -> None:
    """Ask for an answer that takes until the server ends."""
    said = {"prompt": QUESTION, "request": "r", "options": {"max_tokens": 240, "ignore_eos": True}}
    headers = {"Authorization": f"Bearer {OTHER}"}
    with suppress(httpx2.HTTPError):
        httpx2.post(f"{url}/ragcache/generate", json=said, headers=headers, timeout=ANSWER_S)


def read_schema(url: str) -> dict[str, Any]:
    """Read from a server what a tenant may send."""
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    told = httpx2.get(f"{url}/openapi.json", headers=headers, timeout=60).raise_for_status().json()
    return tenants_schema(told)


def tenants_schema(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI schema of what a tenant may send: to vLLM's paths and to those below /ragcache.

    told: the schema of vLLM's server. Paths that no tenant's key opens have no body in what is returned.
    """
    defined = dict(told["components"]["schemas"])
    paths = {
        path: {method: _operation() for method in methods}
        for path, methods in told["paths"].items()
    }
    talk: dict[str, Any] = {}
    for path in TENANTS_FIELDS.keys() & paths:
        content = told["paths"][path]["post"]["requestBody"]["content"]
        fields = {
            name: _SPECIAL.get(name, schema)
            for one in _objects(content["application/json"]["schema"], defined)
            for name, schema in one["properties"].items()
            if name in TENANTS_FIELDS[path]
        }
        paths[path]["post"] = _operation(_vary(_SOUND[path], fields))
        if path == CHAT:
            talk = {name: fields[name] for name in ("messages", "tools")}
    for path, kind in (("", SamplingOptions), *_OURS.items()):
        schema = TypeAdapter(kind).json_schema(ref_template="#/components/schemas/{model}")
        defined |= schema.pop("$defs", {})
        fields = {
            name: {**_SPECIAL, **talk}.get(name, one) for name, one in schema["properties"].items()
        }
        if path:
            method = "put" if path in _PUT else "post"
            sound = _SOUND[f"/ragcache{path}"]
            paths[f"/ragcache{path}"] = {method: _operation(_vary(sound, fields))}
        else:
            defined["SamplingOptions"] = _vary({"max_tokens": ANSWER_TOKENS}, fields)
    for path, methods in _READ.items():
        at = paths.setdefault(f"/ragcache{path}", {})
        at |= {method: _operation() for method in methods}
    paths["/ragcache/clear"] = {"post": _operation()}
    return {**told, "paths": paths, "components": {"schemas": defined}}


def _objects(schema: Mapping[str, Any], defined: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the objects that a body may be."""
    kinds = schema.get("anyOf", [schema])
    return [defined[one["$ref"].rpartition("/")[2]] if "$ref" in one else one for one in kinds]


def _vary(sound: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that is sound but for one field of it, or for some."""
    fixed = {name: {"const": value} for name, value in sound.items()}
    one = [
        {"properties": {**fixed, name: schema}, "required": sorted({*sound, name})}
        for name, schema in sorted(fields.items())
    ]
    some = {"properties": dict(fields), "required": sorted(sound), "maxProperties": len(sound) + 3}
    closed = {"type": "object", "additionalProperties": False}
    return {"anyOf": [{**closed, **schema} for schema in (*one, some)]}


def _operation(body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {"responses": {"default": {"description": ""}}, "parameters": _HEADERS}
    if body is not None:
        told["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return told


def fuzz(
    url: str, schema: Mapping[str, Any], piece: Piece, requests: int, until: float = math.inf
) -> None:
    """Send so many requests or a few more, in rounds, and add what is seen to the piece.

    schema: as `tenants_schema` returns it. until: when to end, in seconds of the monotonic clock.
    """
    with tempfile.TemporaryDirectory() as folder, second_tenant(url, piece):
        while piece.answers.total() < requests and time.monotonic() < until:
            number, first = piece.first + piece.rounds, len(piece.waits)
            sent = send_round(url, schema, number, Path(folder), until)
            answered = [one for one in sent if one.status == 200 and one.body]
            sent += send_broken(url, broken_bodies(answered, number))
            piece.add(sent, first)
            piece.rounds += 1
            print(f"{piece.answers.total():,} requests, {len(piece.faults)} faults", flush=True)


def send_round(
    url: str, schema: Mapping[str, Any], number: int, folder: Path, until: float
) -> list[Sent]:
    """Send the requests of a round, which schemathesis makes. Raises RuntimeError if it did not work.

    Round 1 sends each value at its bounds to all paths. In the others values are random.
    """
    of_schema, seen = folder / "schema.json", folder / "sent.har"
    of_schema.write_text(json.dumps(schema))
    seen.unlink(missing_ok=True)
    left_s = max(1, min(until - time.monotonic(), MOST_BOUNDS_S))
    opened = [
        word for path in _SOUND if path in schema["paths"] for word in ("--include-path", path)
    ]
    said = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", str(of_schema), "--url", url),
            *("--header", f"Authorization: Bearer {FUZZER}", "--output-sanitize", "false"),
            *("--checks", "not_a_server_error", "--continue-on-failure", "--no-shrink"),
            *("--workers", str(WORKERS), "--request-timeout", str(ANSWER_S), "--no-color"),
            *("--generation-database", "none", "--suppress-health-check", "all"),
            *("--report", "har", "--report-har-path", str(seen), "--seed", str(number)),
            *(
                ("--phases", "coverage", "--max-time", str(int(left_s)))
                if number == BOUNDS
                else ("--phases", "fuzzing", "--max-examples", str(EACH), *opened)
            ),
        ],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    if not seen.is_file():
        raise RuntimeError(
            f"schemathesis sent nothing: {said.stdout[-2000:]} {said.stderr[-2000:]}"
        )
    return [read_entry(entry) for entry in json.loads(seen.read_text())["log"]["entries"]]


def read_entry(entry: Mapping[str, Any]) -> Sent:
    """Read a request of a HAR file."""
    request, response = entry["request"], entry["response"]
    path = urlsplit(request["url"]).path
    body = request.get("postData", {}).get("text", "")
    began = datetime.fromisoformat(entry["startedDateTime"]).timestamp()
    answer = response["content"].get("text", "")
    return Sent(
        request["method"], path, response["status"], body, answer, began, entry["time"] / 1000
    )


def broken_bodies(sent: Sequence[Sent], seed: int) -> list[tuple[str, bytes]]:
    """Return the paths and bodies of some requests, with broken bytes."""
    drawn = random.Random(seed)
    some = drawn.sample(sent, round(len(sent) * MANGLED))
    return [(one.path, break_bytes(one.body.encode(), drawn)) for one in some]


def break_bytes(body: bytes, drawn: random.Random) -> bytes:
    """Return a body with something put in, left out or repeated."""
    start = drawn.randrange(len(body) + 1)
    end = drawn.randint(start, min(len(body), start + 20))
    part = drawn.choice((*_BROKEN, b"", body[start:end] * 2))
    return body[:start] + part + body[end:]


def send_broken(url: str, bodies: Sequence[tuple[str, bytes]]) -> list[Sent]:
    """Send bodies as JSON."""
    headers = {"Authorization": f"Bearer {FUZZER}", "Content-Type": "application/json"}
    with httpx2.Client(base_url=url, headers=headers, timeout=ANSWER_S) as client:

        def send(one: tuple[str, bytes]) -> Sent:
            path, body = one
            shown, began = body.decode(errors="backslashreplace"), time.time()
            try:
                answer = client.post(path, content=body)
            except httpx2.HTTPError as error:
                return Sent("POST", path, 0, shown, repr(error))
            took_s = time.time() - began
            return Sent("POST", path, answer.status_code, shown, answer.text, began, took_s)

        with ThreadPoolExecutor(WORKERS) as threads:
            return list(threads.map(send, bodies))


@contextmanager
def second_tenant(url: str, piece: Piece) -> Iterator[None]:
    """Let the second tenant ask, first alone and then until the block ends, and note what it waits."""
    headers = {"Authorization": f"Bearer {OTHER}"}
    is_over = threading.Event()
    with httpx2.Client(base_url=url, headers=headers, timeout=ANSWER_S) as client:

        def ask(number: int) -> float:
            said = {
                "prompt": f"{number}. {QUESTION}",
                "request": str(number),
                "options": {"max_tokens": ANSWER_TOKENS},
            }
            began = time.monotonic()
            try:
                answer = client.post("/ragcache/generate", json=said)
                if answer.status_code != 200 or '"finish"' not in answer.text:
                    piece.refused.append(f"{answer.status_code} {answer.text[-300:]}")
            except httpx2.HTTPError as error:
                piece.refused.append(repr(error))
            return time.monotonic() - began

        def ask_on() -> None:
            for number in count(len(piece.alone_s)):
                if is_over.wait(PAUSE_S):
                    return
                piece.waits.append((time.time(), ask(number)))

        for number in range(ALONE):
            piece.alone_s.append(ask(number))
        asking = threading.Thread(target=ask_on)
        asking.start()
        try:
            yield
        finally:
            is_over.set()
            asking.join()


if __name__ == "__main__":
    sys.exit(main())
