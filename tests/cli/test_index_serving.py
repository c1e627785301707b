"""`ragcache index serve`: which folders it serves, and how it starts and ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import httpx2
import pytest
from rich.console import Console

from ragcache_cli.errors import CommandError
from ragcache_cli.index_serving import load_served
from ragcache_cli.main import main
from ragcache_cli.terminal import Phases
from ragcache_engine.index_server import IndexServer

faiss = pytest.importorskip("faiss")

KEY = "the key of the shop"


def load(folder: Path):
    return load_served(folder, Phases(Console(file=StringIO())))


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "tides.md").write_text("# Tides\n\nThe moon pulls the oceans, and tides follow it.\n")
    (folder / "bread.md").write_text("# Bread\n\nYeast breathes out gas, so that bread rises.\n")
    return folder


def test_a_folder_of_files_is_served_with_its_embedding_model(notes: Path):
    served = load(notes)
    assert served.describe().embeds
    assert {one.metadata["source"] for one in served.documents.values()} == {"tides.md", "bread.md"}


def test_a_folder_with_a_pickle_is_refused_and_told_what_to_do(tmp_path: Path):
    (tmp_path / "index.pkl").write_bytes(b"")
    with pytest.raises(CommandError, match="from_langchain_community"):
        load(tmp_path)


def test_a_folder_of_llamaindex_without_faiss_is_refused(tmp_path: Path):
    pytest.importorskip("llama_index.core")
    from llama_index.core import MockEmbedding, VectorStoreIndex
    from llama_index.core.schema import TextNode

    index = VectorStoreIndex([TextNode(text="Ice floats.")], embed_model=MockEmbedding(8))
    index.storage_context.persist(tmp_path)
    with pytest.raises(CommandError, match="FaissVectorStore"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["missing", "file"])
def test_what_is_no_folder_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").write_text("")
    assert main(["index", "serve", str(tmp_path / name)]) == 1
    assert "is no folder" in capsys.readouterr().err


def test_keys_that_cannot_be_read_are_refused_before_anything_is_loaded(
    notes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["index", "serve", str(notes), "--keys", str(tmp_path / "none.toml")]) == 1
    assert "none.toml cannot be read" in capsys.readouterr().err


@pytest.fixture
def command(notes: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[tenants]\nshop = ["{KEY}"]\n')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["index", "serve", str(notes), "--port", str(port), "--keys", str(keys)]
    process = subprocess.Popen(
        [sys.executable, "-m", "ragcache_cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_the_command_serves_until_it_is_told_to_end(command: tuple[subprocess.Popen[str], str]):
    process, url = command
    for _ in range(600):
        try:
            httpx2.get(f"{url}/health")
            break
        except httpx2.TransportError:
            assert process.poll() is None, process.stdout and process.stdout.read()
            time.sleep(0.2)
    *_, last = IndexServer(url, KEY).stages("Why do tides follow the moon?", 1)
    assert [one.metadata["source"] for one in last.documents] == ["tides.md"]
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert f"Serving 2 documents (2 vectors of 384 dimensions) at {url}" in output
    assert "Traceback" not in output
