"""Connects the cache manager to vLLM's extension points. This package runs inside vLLM's processes.

| class | extension point of vLLM |
|---|---|
| TierScheduler | `scheduler_cls` |
| FreeBlocks | `BlockPool.free_block_queue`, replaced once after construction |
| WaitingQueue | `Scheduler.waiting`, replaced once after construction |
| TierConnector | `kv_connector_module_path`, a subclass of OffloadingConnector |
| TierSpec | `spec_module_path`, a subclass of TieringOffloadingSpec |
| TierOffloadingManager | made by TierSpec.get_manager, an OffloadingManager |
| HostCopyWorker | made by TierSpec.get_worker on the CPU platform, an OffloadingWorker |
| IdleWorker | made by TierSpec.get_worker without a host tier, an OffloadingWorker |
"""
