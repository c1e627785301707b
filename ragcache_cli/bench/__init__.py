"""`ragcache bench`: the same questions to several systems in turn, and a report a sceptic can rerun.

What is compared: `systems` and `plan`. Who asks what, and when: `workload`, `question_sets`, `corpora`.
How it is measured: `drive` plays requests to every system; a system runs in a process of its own, which
is `worker`, and `worker_client` talks to it. What came out: `plays`, `record` and `results` hold it,
`figures` and `comparisons` are arithmetic on it, `report` and `plots` show it. `benchmark` says what one
benchmark consists of and `run` carries it out. Longer benchmarks, such as benchmarks/full_report.py in
the repository, are other values of `benchmark.Benchmark`.
"""
