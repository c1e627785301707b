"""`ragcache calibrate`: finds the smallest recompute ratio whose answers are as good as exact ones.

calibrate.py runs the command; cases.py chooses questions, asking.py asks them, likeness.py compares the
answers and chooses a ratio, report.py shows both.
"""
