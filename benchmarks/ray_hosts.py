"""Run a fleet on a Ray cluster of hosts of their own, with a store on another one, and let things fail.

    python benchmarks/ray_hosts.py --out FOLDER            # needs root, redis-server, iproute2 and Ray
    python benchmarks/ray_hosts.py --clients 64 --answers 2000

The hosts are network namespaces of this machine (see several_hosts.py): a head with the door, which has a
certificate, two workers with a replica each, and one with Redis. Ray asks for its token everywhere.
Clients ask the door over TLS all the time, and each answer is compared with the one that the fleet gave
undisturbed. A fault is over when as many replicas answer as there are workers. The exit status is 1 if
an answer was lost or wrong, a stranger without the token was let in, or a forgotten document came back.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import httpx2
from hosts.network import Host, NeedsRoot, hosts
from programs import command_line, keep
from several_hosts import FAULT_S, KEY, REPORTS, Traffic, ask
from tables import table

from ragcache_cli.models import demo_model
from ragcache_engine import RAGCacheEngine, RAGCacheError

GCS = 6379
READY_S, RECOVERED_S = 600.0, 300.0
OBJECTS = "134217728"
STRANGER = "import ray, sys; ray.init(address=sys.argv[1]); print(len(ray.nodes()))"
"""A program of somebody who reaches Ray's sockets."""


class Cluster:
    """Ray on a head, on workers, and the fleet that runs there."""

    def __init__(
        self, made: Sequence[Host], model: str, logs: Path, folder: Path, stack: ExitStack
    ) -> None:
        self.head, *self.workers, self.store = made
        self._logs, self._stack = logs, stack
        self._rays: dict[str, subprocess.Popen[bytes]] = {}
        self.address = f"{self.head.address}:{GCS}"
        self.url = f"https://{self.head.address}:8000"
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DISABLE_IMPORT_WARNING": "1",
            "RAGCACHE_OPERATOR_KEY": KEY,
            "TMPDIR": "/tmp",
        }
        self.start_redis()
        alone = ("--head", "--port", str(GCS), "--num-cpus", "0", "--include-dashboard", "false")
        self._start_ray(self.head, *alone)
        for worker in self.workers:
            self.join(worker)
        certificate = make_certificate(folder, self.head.address)
        os.environ["SSL_CERT_FILE"] = str(certificate[0])  # what the clients below trust
        self._fleet = self.head.start(
            [
                *(sys.executable, "-m", "ragcache_cli", "serve", model, "--replicas", "2"),
                *("--address", self.address, "--host", self.head.address, "--port", "8000"),
                *("--ssl-certfile", str(certificate[0]), "--ssl-keyfile", str(certificate[1])),
                *("--host-cache", "512MiB", "--disk-cache", "1GiB", "--disk-cache-dir", "/tmp/kv"),
                *("--shared-cache", f"redis://{self.store.address}:6379"),
                *("--", "--dtype", "float32", "--max-model-len", "2048"),
                *("--kv-cache-memory-bytes", "500M"),
            ],
            log=self._log("fleet"),
            environment=self.environment,
        )

    def _log(self, name: str) -> IO[bytes]:
        return self._stack.enter_context((self._logs / f"{name}.log").open("ab"))

    def _start_ray(self, host: Host, *words: str) -> subprocess.Popen[bytes]:
        common = ("--node-ip-address", host.address, "--object-store-memory", OBJECTS)
        environment = self.environment | {"RAGCACHE_OPERATOR_KEY": ""}
        return host.start(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *words, *common, "--block"],
            log=self._log(host.name),
            environment=environment,
        )

    def join(self, worker: Host) -> None:
        """Let a host join the cluster, with room for one replica."""
        time.sleep(5.0)
        words = ("--address", self.address, "--num-cpus", "1")
        self._rays[worker.name] = self._start_ray(worker, *words)

    def start_redis(self) -> None:
        self.store.start(
            ["redis-server", "--bind", self.store.address, "--protected-mode", "no", "--save", ""],
            log=self._log("redis"),
        )
        time.sleep(1.0)

    def connect(self) -> RAGCacheEngine:
        """Wait until the door answers, and connect to it."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self._fleet.poll() is not None:
                raise SystemExit(f"the fleet ended: see {self._logs}/fleet.log")
            if self.health() == 200 and len(self.replicas()) == len(self.workers):
                return RAGCacheEngine.connect(self.url, api_key=KEY)
            time.sleep(1.0)
        raise SystemExit(f"{self.url} was not ready within {READY_S:.0f} s")

    def health(self) -> int:
        try:
            return httpx2.get(f"{self.url}/health", timeout=5.0).status_code
        except httpx2.TransportError:
            return 0

    def replicas(self) -> set[str]:
        """Return the names of the replicas that answer."""
        headers = {"Authorization": f"Bearer {KEY}"}
        try:
            told = httpx2.get(f"{self.url}/metrics", headers=headers, timeout=30.0)
        except httpx2.TransportError:
            return set()
        return set(re.findall(r'replica="([^"]+)"', told.text))

    def wait_for_all(self) -> float:
        """Return the seconds until every worker has a replica that answers.

        Ray ends on a host that was taken for dead; as a service manager would, this starts it again.
        """
        began = time.monotonic()
        while len(self.replicas()) != len(self.workers):
            for worker in self.workers:
                if self._rays[worker.name].poll() is not None:
                    self.join(worker)
            if time.monotonic() - began > RECOVERED_S:
                raise SystemExit(f"not all replicas answered within {RECOVERED_S:.0f} s")
            time.sleep(1.0)
        return time.monotonic() - began

    def lets_in(self, token: str) -> bool:
        """Return whether a program on a worker with this token, or with an empty one, may use Ray."""
        told = {"RAY_AUTH_TOKEN": token, "RAY_AUTH_MODE": "token" if token else "disabled"}
        program = self.workers[0].start(
            [sys.executable, "-c", STRANGER, self.address],
            log=self._log("strangers"),
            environment={**told, "HOME": "/nonexistent"},
        )
        return program.wait(120) == 0

    def has(self, name: str) -> bool:
        """Return whether a replica holds a document: each is asked, as the road is drawn at random."""
        headers = {"Authorization": f"Bearer {KEY}", "x-ragcache-routing": "random"}
        return any(
            f'"{name}"'
            in httpx2.post(
                f"{self.url}/ragcache/tree",
                json={"documents": 1000},
                headers=headers,
                timeout=30.0,
            ).text
            for _ in range(12)
        )


def make_certificate(folder: Path, address: str) -> tuple[Path, Path]:
    """Make a certificate for an address, and its key."""
    certificate, key = folder / "door.crt", folder / "door.key"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=door", "-addext", f"subjectAltName=IP:{address}"]
    words += ["-out", str(certificate), "-keyout", str(key)]
    subprocess.run(words, check=True, capture_output=True)
    return certificate, key


def main() -> None:
    asked = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # not without removing the hosts
    try:
        with ExitStack() as stack:
            made = stack.enter_context(hosts(4))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.home())))
            asked.logs.mkdir(parents=True, exist_ok=True)
            model = asked.model or str(demo_model())
            cluster = Cluster(made, model, asked.logs.resolve(), folder, stack)
            lines, is_right = play(cluster, stack, asked.clients, asked.answers)
    except NeedsRoot as error:
        raise SystemExit(str(error)) from None
    print(*lines, sep="\n")
    keep(asked.out, "report", lines, {})
    sys.exit(0 if is_right else 1)


def play(cluster: Cluster, stack: ExitStack, clients: int, answers: int) -> tuple[list[str], bool]:
    engine = stack.enter_context(cluster.connect())
    if not cluster.lets_in(cluster.environment["RAY_AUTH_TOKEN"]):
        raise SystemExit("Ray does not let its own in: see strangers.log")
    strangers = [cluster.lets_in(""), cluster.lets_in(secrets.token_hex(32))]
    names = [f"report {number}" for number in range(REPORTS)]
    expected = {name: ask(engine, name)[0] for name in names}
    rows = [
        ["strangers with no token, with another", " and ".join(map(str, strangers)), ""],
    ]
    first, second = cluster.workers
    traffic = Traffic({"door": engine}, expected, clients)

    def fault(name: str, begin: Callable[[], object], end: Callable[[], object]) -> None:
        print(name, flush=True)
        asked = traffic.asked
        begin()
        time.sleep(FAULT_S)
        meanwhile = traffic.asked - asked
        end()
        rows.append([name, f"{meanwhile} answers meanwhile", f"{cluster.wait_for_all():.0f} s"])

    with traffic.running():
        fault("nothing", lambda: None, lambda: None)
        fault("link of the store cut", cluster.store.cut, cluster.store.mend)
        fault("store killed, back empty", cluster.store.kill, cluster.start_redis)
        for slow in (cluster.store, second):
            with slow.poor_link(0.1, 0.05):
                name = "store" if slow is cluster.store else "worker"
                fault(f"{name} 200 ms away, 5% of frames lost", lambda: None, lambda: None)
        fault("link of a worker cut", first.cut, first.mend)

        print("forgetting while a worker is cut off", flush=True)
        ask(engine, "secret")
        first.cut()
        began, is_told = time.monotonic(), False
        try:
            engine.forget(["secret"])
        except RAGCacheError as error:
            is_told = True
            print(f"told: {error}")
        called_s = time.monotonic() - began
        first.mend()
        cluster.wait_for_all()
        if is_told:
            engine.forget(["secret"])
        served = cluster.has("secret")
        how = "told that it did not reach all; asked again" if is_told else "done"
        took = f"the call took {called_s:.0f} s; {how}"
        rows.append(["worker cut while forgetting", took, f"{time.monotonic() - began:.0f} s"])

        fault("worker host dies, and comes back", second.kill, lambda: None)
        fault(
            "both workers die, and come back",
            lambda: (first.kill(), second.kill()),
            lambda: rows.append(["  health meanwhile", str(cluster.health()), ""]),
        )
        time.sleep(FAULT_S)
        while traffic.asked < answers:
            time.sleep(1.0)
    lines = [
        *table(("fault", "what was seen", "until all replicas answer"), rows),
        f"{traffic.asked:,} answers to {clients} clients: {traffic.wrong} wrong, {traffic.lost} lost.",
    ]
    return lines, not (traffic.wrong or traffic.lost or any(strangers) or served)


def _parse() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--model")
    parser.add_argument("--clients", type=int, default=2, help="that ask at a time")
    parser.add_argument("--answers", type=int, default=0, help="the fewest, some after all faults")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--logs", type=Path, default=Path("/var/tmp/ray-hosts"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
