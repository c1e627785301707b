"""What answers prompts: real vLLM (`vllm`), or an engine without a model for tests (`memory`)."""
