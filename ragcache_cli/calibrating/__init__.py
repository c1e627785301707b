"""`ragcache calibrate`: finds the smallest recompute ratio whose answers are as good as exact ones.

calibrate.py runs the command; cases.py chooses questions, asking.py asks them, grading.py says which
answers are right, likeness.py compares them with exact ones and chooses a ratio, report.py shows both.
"""
