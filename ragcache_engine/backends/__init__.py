"""The backends that run a model: vLLM, or for tests an in-process engine without a model."""
