"""The parts of benchmarks/compare.py: ask several systems the same questions in turn, and write a report.

`systems` and `plan` say what to compare; `workload`, `question_sets` and `corpora` say which questions
to ask, and when. `drive` plays requests to every system; a system runs in a process of its own, which
is `worker`, and `worker_client` talks to it. `plays`, `record` and `results` hold the measurements,
`figures` and `comparisons` compute with them, `report` and `plots` show them. `benchmark` says which
questions and studies there are, and `run` carries a plan out.
"""
