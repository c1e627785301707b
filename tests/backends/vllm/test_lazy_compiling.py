"""Nothing is compiled for a request: every other one would wait for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from torch._dynamo.utils import counters  # noqa: E402
from vllm.config import CompilationMode  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402
from vllm.v1.sample.ops.logprobs import batched_count_greater_than  # noqa: E402
from vllm.v1.sample.ops.topk_topp_sampler import compiled_random_sample  # noqa: E402

from ragcache_engine.backends.vllm.lazy_compiling import keep_eager  # noqa: E402

pytestmark = pytest.mark.vllm


def compiled_graphs() -> int:
    return counters["stats"]["unique_graphs"]


@pytest.mark.skipif(not current_platform.is_cpu(), reason="keep_eager leaves GPUs as they are")
def test_what_vllm_compiles_at_its_first_use_is_run_as_it_is():
    config = SimpleNamespace(compilation_config=SimpleNamespace(mode=CompilationMode.NONE))
    with torch.compiler.set_stance("default"):  # puts this process's own back
        keep_eager(config)
        before = compiled_graphs()
        found = batched_count_greater_than(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[2.0]]))
        assert found.tolist() == [2]
        assert compiled_random_sample(torch.tensor([[0.0, 1e9, 0.0]])).tolist() == [1]
        assert compiled_graphs() == before


def test_a_model_that_is_compiled_keeps_its_compiled_parts(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    monkeypatch.setattr(torch.compiler, "set_stance", asked.append)
    mode = CompilationMode.VLLM_COMPILE
    keep_eager(SimpleNamespace(compilation_config=SimpleNamespace(mode=mode)))
    assert asked == []
