"""Reuse at any position: a prompt borrows the tensors of a document from another context.

Everything here is approximate, and asked for with `EngineConfig(reuse="anywhere")`. What the tree holds
stays exact: a donor is an ordinary prompt, and a borrowing prompt leaves nothing in the tree behind its
first document.
Source: Cache-Craft (arXiv:2502.15734); FusionRAG (arXiv:2601.12904) for donors behind neighbours.
"""
