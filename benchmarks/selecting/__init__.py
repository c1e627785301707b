"""Parts of benchmarks/selection.py: a model whose tensors can be exchanged, donors, and rules."""
