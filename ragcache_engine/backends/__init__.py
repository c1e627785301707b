"""What runs the model: vLLM for real, or an in-process fake for tests."""
