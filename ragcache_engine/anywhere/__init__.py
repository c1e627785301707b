"""Reuse at any position, the asking side: in the engine's process, or in a server's.

The scheduler's side is tiers/borrowing, the worker's backends/vllm/borrowing.

| file | holds |
|---|---|
| corpus.py | where neighbours are looked up |
| neighbours.py | which documents stand before which, so that donors have a context |
| found_documents.py | what searches found and no prompt has had yet |
| beginnings.py | how prompts begin, and prompts that prepare documents behind that |
| donor_preparation.py | computes documents that prompts wanted, while no request runs |
| rechecking.py | answers some borrowed requests again, exactly, while no request runs |
| drift.py, rouge.py | how like the two answers are, and when borrowing is to stop |
| calibration.py | the ratio to compute anew, as measured for a model |
| idle_work.py, idle_backend.py | what is done while no request runs; a backend with both kinds of it |
"""
