"""vLLM's workers, which hand the model to the connector once its cache exists."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.platforms import current_platform
from vllm.v1.worker.gpu_worker import Worker

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as _Worker
else:
    _Worker = Worker  # type: ignore[assignment,misc]


class BorrowingWorker(_Worker):
    """The platform's own worker, which also attaches the model to the connector."""

    def initialize_from_config(self, *args: Any, **kwargs: Any) -> Any:
        result = super().initialize_from_config(*args, **kwargs)
        connector: Any = get_kv_transfer_group()
        attach = getattr(connector, "attach_model", None)  # NoTiers has no use for it
        if attach is not None:
            attach(self.model_runner.get_model())
        return result
