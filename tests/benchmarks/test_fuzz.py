"""benchmarks/fuzz.py: a hundred requests to a server without a model, and what counts as failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fuzz
import pytest
from http_servers import serve

from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.serving.settings import Limits

NOTHING_OF_VLLM = {
    "openapi": "3.1.0",
    "info": {"title": "", "version": ""},
    "paths": {},
    "components": {"schemas": {}},
}
BEHIND_THE_BOUNDS = 100
"""The number of a round that is random."""


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(f'[tenants]\nfuzzer = ["{fuzz.FUZZER}"]\nother = ["{fuzz.OTHER}"]\n')
    return path


@pytest.mark.slow
def test_whatever_a_tenant_sends_the_server_answers_it_and_the_second_tenant(keys: Path):
    piece = fuzz.Piece(first=BEHIND_THE_BOUNDS)
    with serve(MemoryBackend(), keys_file=keys, limits=Limits(requests=16)) as server:
        fuzz.fuzz(server.url, fuzz.tenants_schema(NOTHING_OF_VLLM), piece, requests=100)
    assert piece.answers.total() >= 100
    assert not piece.faults
    assert not piece.refused
    for path in ("generate", "tokenize"):
        assert piece.answers[f"POST /ragcache/{path} 200"]
        assert piece.answers[f"POST /ragcache/{path} 400"]


class Failing(MemoryBackend):
    def detokenize(self, *_: Any) -> str:
        raise RuntimeError("broken")


@pytest.mark.slow
def test_a_request_that_the_server_fails_at_is_told_with_its_body(keys: Path, tmp_path: Path):
    piece = fuzz.Piece(first=BEHIND_THE_BOUNDS)
    schema = fuzz.tenants_schema(NOTHING_OF_VLLM)
    schema["paths"] = {path: schema["paths"][path] for path in ["/ragcache/detokenize"]}
    with serve(Failing(), keys_file=keys) as server:
        fuzz.fuzz(server.url, schema, piece, requests=1)
    assert any(
        line.startswith("POST /ragcache/detokenize: 500") and "token_ids" in line
        for line in piece.failures()
    )


def sent(status: int, answer: str = "") -> fuzz.Sent:
    return fuzz.Sent("POST", "/ragcache/generate", status, "{}", answer)


def test_an_answer_that_fails_behind_its_status_and_none_at_all_are_faults():
    assert sent(200, 'data: {"error":{"kind":"GenerationFailed","message":""}}').is_fault
    assert sent(0).is_fault
    assert sent(503).is_fault
    assert not sent(429).is_fault
    assert not sent(200, "data: {}").is_fault


def test_a_long_wait_of_the_second_tenant_is_told_with_what_was_under_way():
    piece = fuzz.Piece(0, alone_s=[0.1, 0.2, 0.3], waits=[(100.0, 1.1), (200.0, 1.3)])
    before, beside = (
        fuzz.Sent("POST", "/v1/completions", 200, body, "", began, took_s=2.0)
        for body, began in (("over", 197.0), ("slow", 199.0))
    )
    piece.add([before, beside])
    piece.ended.append("the server did not end")
    assert list(piece.failures()) == [
        "the second tenant waited 1.3 s beside 2.0 s POST /v1/completions slow",
        "the server did not end",
    ]


def test_a_piece_that_was_written_is_read_again_and_reported(tmp_path: Path):
    piece = fuzz.Piece(0, rounds=2, alone_s=[0.1], waits=[(1.0, 0.2)])
    piece.add([sent(400), sent(400), sent(500, "broken")])
    fuzz.write_piece(tmp_path / "piece-01.json", piece)
    assert fuzz.read_pieces(tmp_path) == [piece]
    lines = list(fuzz.report([piece]))
    assert "      2 POST /ragcache/generate 400" in lines
    assert "  FAILED: POST /ragcache/generate: 500 broken to {}" in lines
