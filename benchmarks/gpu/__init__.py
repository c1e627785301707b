"""What RAGCache does on an NVIDIA GPU: the parts of `make bench-gpu`, each a process of its own."""
