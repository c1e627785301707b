"""The parts of benchmarks/virtual_clock.py: every system of the bench on a clock without noise."""
