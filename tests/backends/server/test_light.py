"""A client runs where neither torch nor vLLM nor a server's parts are installed."""

from __future__ import annotations

import subprocess
import sys

from http_servers import OPERATOR, serve

from ragcache_engine.backends.memory import MemoryBackend

SCRIPT = """
import sys
for name in ("torch", "vllm", "transformers", "numpy", "faiss", "starlette", "fastapi", "uvicorn"):
    sys.modules[name] = None  # importing it fails
from ragcache_engine import Document, RAGCacheEngine

tides = Document("tides", "The tides follow the moon, twice a day. " * 20)
with RAGCacheEngine.connect(sys.argv[1], api_key=sys.argv[2]) as engine:
    with engine.retrieval("Why?") as retrieval:
        retrieval.found([tides])
    prompt = engine.chat.prompt([{"role": "user", "content": tides.text + "\\n\\nWhy?"}])
    answer = engine.generate(prompt)
    engine.forget(["tides"])
    print(answer.text, answer.usage.document_ids)
"""


def test_a_client_needs_neither_torch_nor_vllm_nor_a_server():
    with serve(MemoryBackend()) as server:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, server.url, OPERATOR],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "You asked: Why? ('tides',)"


def test_without_httpx2_the_error_says_what_to_install():
    script = (
        "import sys; sys.modules['httpx2'] = None\n"
        "from ragcache_engine import RAGCacheEngine\n"
        "RAGCacheEngine.connect('http://localhost:1')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert "BackendUnavailable" in done.stderr
    assert "ragcache-integrations[client]" in done.stderr
