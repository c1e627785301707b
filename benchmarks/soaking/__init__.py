"""The parts of benchmarks/soak.py: what is asked, by whom, what goes wrong and what is watched."""
