"""`ragcache bench`: the same questions to several systems in turn, and a report a sceptic can rerun.

workload, quality, figures, goals and report are arithmetic and text. systems says what is compared;
worker is one of them in a process of its own, reached through process; drive asks all of them in turn.
"""
