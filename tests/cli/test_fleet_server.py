"""`ragcache serve --replicas`: its arguments become settings of a fleet. None is started here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat
from cryptography.x509.oid import NameOID

from ragcache_cli.main import main
from ragcache_engine.fleet_serving.fleet_settings import FleetSettings

pytest.importorskip("ray.serve")
yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.vllm

from ragcache_cli.fleet_server import share_memory  # noqa: E402


def printed(folder: Path, *arguments: str) -> dict[str, object]:
    assert main(["serve", *arguments, "--print-config", str(folder)]) == 0
    (application,) = yaml.safe_load((folder / "serve.yaml").read_text())["applications"]
    args: dict[str, object] = application["args"]
    return args


def test_each_replica_is_the_server_that_a_single_one_would_be(demo_model: str, tmp_path: Path):
    tiers = ("--host-cache", "100MiB", "--disk-cache", "1GiB", "--disk-cache-dir", str(tmp_path))
    given = ("--", "--dtype", "float32")
    args = printed(tmp_path / "made", demo_model, "--replicas", "2", *tiers)
    words = args["server_arguments"]
    assert isinstance(words, list)
    assert words[:4] == ["-m", "ragcache_cli", "serve", demo_model]
    for word in tiers:
        assert word in words
    assert args["replicas"] == 2
    assert (
        main(["serve", demo_model, "--replicas", "2", "--print-config", str(tmp_path), *given]) == 0
    )
    assert "float32" in (tmp_path / "serve.yaml").read_text()


def test_replicas_on_one_cpu_machine_share_its_memory_in_equal_parts(
    demo_model: str, tmp_path: Path
):
    def shared(*arguments: str) -> tuple[str, ...]:
        args = printed(tmp_path, demo_model, *arguments)
        # What is written down is for other machines, which have other sizes.
        assert "--kv-cache-memory-bytes" not in str(args["server_arguments"])
        return share_memory(FleetSettings.from_json(args)).server_arguments

    words = [shared("--replicas", number) for number in "12"]
    one, two = (int(of[of.index("--kv-cache-memory-bytes") + 1]) for of in words)
    assert two <= one
    assert 2 * two <= psutil.virtual_memory().total // 4
    assert "--kv-cache-memory-bytes" not in shared("--replicas", "2", "--address", "auto")
    chosen = FleetSettings(("--", "--gpu-memory-utilization", "0.2"), splits_cores=True)
    assert share_memory(chosen) == chosen


def test_door_and_replicas_read_the_same_documents(
    demo_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path / "home"))
    lines = tmp_path / "sea.jsonl"
    lines.write_text('{"id": "salt", "text": "Rivers carry salt into the sea, says the page."}\n')
    asked = ("--corpus", str(lines), "--max-corpora", "2MiB")
    settings = FleetSettings.from_json(printed(tmp_path, demo_model, "--replicas", "2", *asked))
    folder = settings.corpora_folder
    assert folder is not None
    assert (Path(folder) / "sea.jsonl").is_file()
    assert settings.environment["RAGCACHE_CORPORA"] == folder
    assert settings.environment["RAGCACHE_MAX_CORPORA"] == str(settings.max_corpora_bytes)
    assert settings.max_corpora_bytes == 2 << 20


def test_keys_are_named_by_their_file_and_never_written_down(
    demo_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAGCACHE_OPERATOR_KEY", "the operator's own key")
    keys = tmp_path / "keys.toml"
    keys.write_text('[tenants]\nshop = ["the key of the shop"]\n')
    args = printed(
        tmp_path, demo_model, "--replicas", "3", "--keys", str(keys), "--max-requests", "9"
    )
    assert (args["keys_file"], args["max_requests"]) == (str(keys), 9)
    written = (tmp_path / "serve.yaml").read_text()
    assert "own key" not in written
    assert "the key of" not in written


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "door")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    files = folder / "door.crt", folder / "door.key"
    files[0].write_bytes(made.public_bytes(Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


def test_the_door_has_a_certificate(demo_model: str, tmp_path: Path):
    certificate, key = make_certificate(tmp_path)
    told = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    printed(tmp_path, demo_model, "--replicas", "2", *told)
    options = yaml.safe_load((tmp_path / "serve.yaml").read_text())["http_options"]
    assert (options["ssl_certfile"], options["ssl_keyfile"]) == (str(certificate), str(key))


@pytest.mark.parametrize("swapped", [True, False])
def test_what_is_no_certificate_and_its_key_is_refused(
    demo_model: str, tmp_path: Path, swapped: bool, capsys: pytest.CaptureFixture[str]
):
    certificate, key = make_certificate(tmp_path)
    told = ["--ssl-certfile", str(key), "--ssl-keyfile", str(certificate)][: 4 if swapped else 2]
    assert main(["serve", demo_model, "--replicas", "2", *told]) == 1
    why = "are no certificate and its key" if swapped else "belong together"
    assert why in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--replicas", "2", "--", "--port", "8001"), "before the double dash"),
        (("--print-config", "somewhere"), "--replicas"),
        (("--replicas", "3", "--max-replicas", "2"), "max_replicas"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    demo_model: str, arguments: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["serve", demo_model, *arguments]) != 0
    assert why in capsys.readouterr().err
