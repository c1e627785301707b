import subprocess
import sys

import pytest

HEAVY = ("vllm", "torch", "faiss", "langchain_community", "transformers")


@pytest.mark.parametrize(
    ("package", "strangers"),
    [
        ("ragcache_integrations", (*HEAVY, "langchain_core", "llama_index")),
        ("ragcache_integrations.langchain", (*HEAVY, "llama_index")),
        ("ragcache_integrations.llamaindex", (*HEAVY, "langchain_core")),
    ],
)
def test_importing_an_integration_loads_its_own_framework_and_no_other(package, strangers):
    script = f"import sys, {package}; print([n for n in {strangers!r} if n in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "[]"
