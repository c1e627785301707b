"""`ragcache bench`: ask several systems the same questions in turn, and write a report.

`systems` and `plan` say what to compare; `workload`, `question_sets` and `corpora` say which questions
to ask, and when. `drive` plays requests to every system; a system runs in a process of its own, which
is `worker`, and `worker_client` talks to it. `plays`, `record` and `results` hold the measurements,
`figures` and `comparisons` compute with them, `report` and `plots` show them. `benchmark` says what one
benchmark consists of, and `run` carries it out. Longer benchmarks, such as benchmarks/full_report.py in
the repository, are other values of `benchmark.Benchmark`.
"""
