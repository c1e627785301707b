"""Ask the same questions by clients that know nothing of RAGCache: of vLLM, and of servers that know the
documents.

    python benchmarks/any_client.py --out FOLDER                  # seven clients, 12 questions each
    python benchmarks/any_client.py --out FOLDER --warm --questions 100

Each client asks `vllm serve`, `ragcache serve` and `ragcache serve --reuse anywhere` in turn, question by
question. The documents are registered. Every client puts those of a question in another order, so that
none finds what another one left, but for a first document. With --warm, the documents of all questions
alone are registered, so that no server prepares others while the next one is asked, and computed after a
first question, as `ragcache corpus warm` does it; otherwise nothing is. What is finished stands in the
folder, and with --disk-mib the tensors do too: started again, it goes on with the next client. Needs
Node.js; the clients come from PyPI and the npm registry into a folder of their own, once.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
from embedded_sets import embed_once
from programs import command_line, keep
from prompt_sets import SEPARATOR, Question, read_set
from serve_command import serving, vllm_serving
from tables import spread, table

from ragcache_cli.models import demo_model
from ragcache_engine import Document
from ragcache_engine.cache_home import cache_home
from ragcache_engine.corpora import Registered, ServerCorpora

HERE = Path(__file__).parent / "clients"
MODEL, KEY = "smol", "none is asked for"
PYTHON = {
    "openai": "openai",
    "langchain": "langchain-openai",
    "llamaindex": "llama-index-llms-openai-like",
    "litellm": "litellm",
}
NODE = {
    "openai": ["openai"],
    "langchain": ["@langchain/openai", "@langchain/core"],
    "vercel": ["ai", "@ai-sdk/openai-compatible"],
}
"""The clients of each language, and the packages that they are."""
ORDER = [*(f"{name} (Python)" for name in PYTHON), *(f"{name} (Node)" for name in NODE)]

SYSTEM = "You answer questions from the documents you are given."
"""What the clients say first, as in clients/: documents are computed behind it."""

COMPUTED = 'ragcache_prompt_tokens_total{source="computed"}'
RECOGNISED = "ragcache_recognised_documents_total"
WAITING = "ragcache_unprepared_prompts"
MOST_REST_S = 20.0
REPORT = "report"
SMALL = ("--dtype", "float32", "--max-model-len", "2048", "--served-model-name", MODEL)


@dataclass(frozen=True, slots=True)
class Row:
    """What a client got from a server.

    computed: tokens of all its prompts. found: registered documents in them.
    """

    client: str
    server: str
    ttft_s: list[float]
    texts: list[str]
    computed: float
    found: float


class Server:
    """A server, and what its metrics tell."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url

    def figures(self) -> dict[str, float]:
        """Return the sums of its metrics over all labels but `source`."""
        sums: dict[str, float] = {}
        for line in httpx2.get(f"{self.url}/metrics", timeout=60).text.splitlines():
            if found := re.match(r"([\w:]+)(\{.*\})? ([\d.e+-]+)$", line):
                source = re.search(r'source="[^"]*"', found[2] or "")
                name = found[1] + (f"{{{source[0]}}}" if source else "")
                sums[name] = sums.get(name, 0) + float(found[3])
        return sums

    def computed(self, before: dict[str, float], after: dict[str, float]) -> float:
        """Return how many prompt tokens were computed for answers between two looks."""

        def more(name: str) -> float:
            return after.get(name, 0) - before.get(name, 0)

        if COMPUTED in after:
            return more(COMPUTED)
        return more("vllm:prompt_tokens_total") - more("vllm:prefix_cache_hits_total")

    def rest(self) -> None:
        """Wait until it has nothing to prepare."""
        deadline = time.monotonic() + MOST_REST_S
        while time.monotonic() < deadline and self.figures().get(WAITING):
            time.sleep(0.2)


def main() -> None:
    asked = _parse()
    folder = prepare_clients()
    corpus, questions = read_set(asked.set, asked.questions, asked.top_k)
    if asked.warm:
        wanted = {one.id for question in questions for one in question.documents}
        corpus = [one for one in corpus if one.id in wanted]
    model = str(demo_model())
    memory = ("--kv-cache-memory-bytes", str(asked.device_mib << 20))
    ours = ("--host-cache", f"{asked.host_mib}MiB")
    anywhere = ("--reuse", "anywhere")
    if asked.disk_mib:
        ours += ("--disk-cache", f"{asked.disk_mib}MiB")
    rows = read_rows(asked.out)
    clients = asked.clients or ORDER
    with ExitStack() as stack:
        logs = Path(stack.enter_context(TemporaryDirectory()))
        disks = asked.out or logs

        def start(name: str, *arguments: str) -> Server:
            log = logs / f"{len(arguments)}.log"
            folder = ("--disk-cache-dir", str(disks / f"kv-{len(arguments)}")) * bool(
                asked.disk_mib
            )
            made = serving([model, *ours, *folder, *arguments], [*SMALL, *memory], log)
            return Server(name, stack.enter_context(made)[0])

        plain = vllm_serving([model, *SMALL, *memory, "--enforce-eager"], logs / "vllm.log")
        servers = [
            Server("vLLM", stack.enter_context(plain)[0]),
            start("RAGCache, exact"),
            start("RAGCache, anywhere", *anywhere),
        ]
        for server in servers[1:]:
            register(server, asked.set, corpus)
            if asked.warm:
                warm(server, asked.set, questions[0])
        for name, command in commands(folder).items():
            if name not in clients or name in {row.client for row in rows}:
                continue
            for row in play(name, command, servers, questions):
                rows.append(row)
                print(
                    f"{row.client} at {row.server}: {spread(row.ttft_s, '.0f', 1000)} ms",
                    flush=True,
                )
            keep(asked.out, REPORT, report(rows, asked.top_k), [asdict(row) for row in rows])
    print(*report(rows, asked.top_k), sep="\n")


def read_rows(folder: Path | None) -> list[Row]:
    """Return what was finished by earlier runs into this folder."""
    path = folder / f"{REPORT}.json" if folder else None
    if path is None or not path.exists():
        return []
    return [Row(**said) for said in json.loads(path.read_text())]


def register(server: Server, name: str, corpus: Sequence[Document]) -> None:
    """Register a corpus with its vectors, as `ragcache corpus push` does."""
    vectors = embed_once([one.text for one in corpus])
    documents = [
        Registered(one.id, one.text, vector=vector.tolist())
        for one, vector in zip(corpus, vectors, strict=True)
    ]
    ServerCorpora(server.url).push(name, documents)


def warm(server: Server, name: str, question: Question) -> None:
    """Ask a question, and compute all documents behind the beginning of its prompt."""
    prompt = write_prompt(ORDER[0], question)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 1}
    httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=300).raise_for_status()
    begun = time.monotonic()
    done = ServerCorpora(server.url).warm(name)
    took = time.monotonic() - begun
    print(f"{server.name}: {done.prepared:,} documents warmed in {took:.0f} s", flush=True)


def play(
    client: str, command: Sequence[str], servers: Sequence[Server], questions: Sequence[Question]
) -> Iterator[Row]:
    """Let one client ask each question of each server, each time in another order."""
    answers: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}
    before = {server.name: server.figures() for server in servers}
    with ExitStack() as stack:
        asks = {server.name: stack.enter_context(asking(command, server)) for server in servers}
        for number, question in enumerate(questions):
            turn = number % len(servers)
            for server in [*servers[turn:], *servers[:turn]]:
                answers[server.name].append(asks[server.name](write_prompt(client, question)))
                server.rest()
    for server in servers:
        after = server.figures()
        of = answers[server.name]
        yield Row(
            client,
            server.name,
            [one["ttft_s"] for one in of],
            [one["text"] for one in of],
            server.computed(before[server.name], after),
            after.get(RECOGNISED, 0) - before[server.name].get(RECOGNISED, 0),
        )


def write_prompt(client: str, question: Question) -> str:
    number, documents = ORDER.index(client), question.documents
    step = 1 + number // len(documents)  # no two clients' prompts have the same first two documents
    order = [documents[(number + step * at) % len(documents)] for at in range(len(documents))]
    texts = SEPARATOR.join(f"[{rank}] {one.text}" for rank, one in enumerate(order, 1))
    return f"{texts}\n\nQuestion: {question.text}\nAnswer briefly."


@contextmanager
def asking(command: Sequence[str], server: Server) -> Iterator[Any]:
    """Run a client until the block ends; yields what asks it."""
    process = subprocess.Popen(
        [*command, f"{server.url}/v1", KEY, MODEL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    sent, got = process.stdin, process.stdout

    def ask(prompt: str) -> dict[str, Any]:
        sent.write(json.dumps(prompt) + "\n")
        sent.flush()
        return _read(got.readline())

    try:
        if got.readline().strip() != "ready":
            raise RuntimeError(f"the client did not start: {command}")
        yield ask
    finally:
        process.kill()
        process.wait()


def _read(line: str) -> dict[str, Any]:
    said = json.loads(line)
    if not isinstance(said, dict) or said["ttft_s"] is None:
        raise RuntimeError(f"a client got no answer: {line!r}")
    return said


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the command of each client."""
    python, node = str(folder / "venv" / "bin" / "python"), shutil.which("node") or "node"
    each = [[python, str(HERE / "ask.py"), name] for name in PYTHON]
    each += [[node, str(folder / "ask.mjs"), name] for name in NODE]
    return dict(zip(ORDER, each, strict=True))


def prepare_clients() -> Path:
    """Install the clients, if that was not done before; return their folder."""
    folder = cache_home() / "bench" / "clients"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "venv").exists():
        print("Installing the clients", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *PYTHON.values()], check=True)
    if not (folder / "node_modules").exists():
        packages = [one for each in NODE.values() for one in each]
        subprocess.run(["npm", "install", "--silent", *packages], cwd=folder, check=True)
    shutil.copy(HERE / "ask.mjs", folder)  # Node looks for packages beside the program
    return folder


def report(rows: Sequence[Row], top_k: int) -> Iterator[str]:
    """Write a line for each client and server."""
    heads = ("client", "server", "TTFT ms", "vLLM's over it", "tokens computed", "documents found")
    of_vllm = {row.client: row for row in rows if row.server == "vLLM"}

    def lines() -> Iterator[list[str]]:
        for row in rows:
            stock = of_vllm[row.client]
            pairs = [one / other for one, other in zip(stock.ttft_s, row.ttft_s, strict=True)]
            yield [
                row.client,
                row.server,
                spread(row.ttft_s, ".0f", 1000),
                "" if row is stock else spread(pairs),
                f"{row.computed:,.0f}",
                "" if row is stock else f"{row.found:,.0f} of {top_k * len(row.texts):,}",
            ]

    yield from table(heads, lines())
    for row in rows:
        if row.server == "RAGCache, exact":
            stock = of_vllm[row.client]
            equal = sum(map(str.__eq__, row.texts, stock.texts))
            yield f"{row.client}: {equal} of {len(row.texts)} exact answers are vLLM's to the letter."


def _parse() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--set", default="squad", help="the question set")
    parser.add_argument("--questions", type=int, default=12, help="of each client")
    parser.add_argument(
        "--clients", nargs="+", metavar="NAME", help="only these, such as 'openai (Node)'"
    )
    parser.add_argument("--top-k", type=int, default=5, help="documents of a question")
    parser.add_argument("--device-mib", type=int, default=400, help="device cache of each server")
    parser.add_argument("--host-mib", type=int, default=800, help="host cache of RAGCache's")
    parser.add_argument("--disk-mib", type=int, default=0, help="disk cache of RAGCache's (none)")
    parser.add_argument("--warm", action="store_true", help="compute the documents beforehand")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
