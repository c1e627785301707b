"""The model for real: vLLM, driven through its public engine. Nothing outside imports vllm or torch."""
