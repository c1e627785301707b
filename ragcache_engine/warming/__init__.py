"""Prefills documents before anyone asks for them: what (plan.py), and how (prefill.py)."""
