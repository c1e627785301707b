"""The parts that `benchmarks/full_report.py` adds to `ragcache bench`: goals, studies and peers.

A study measures and returns its results as JSON; a section of the report shows them.
"""
