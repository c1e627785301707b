"""The backend that runs a model in vLLM, through its public engine.

In ragcache_engine, only this package imports vllm and torch.
"""
