"""What `benchmarks/full_report.py` adds to `ragcache bench`: the paper's goals, studies and peers.

A study measures, returns what it found as JSON, and has a section of the report that shows it.
"""
