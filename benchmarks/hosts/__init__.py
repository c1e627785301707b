"""Hosts on one machine for benchmarks/several_hosts.py."""
