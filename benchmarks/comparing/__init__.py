"""The parts of benchmarks/compare.py: ask several systems the same questions in turn, and write a report.

`systems` and `plan` say what to compare, `questions` and `workload` what to ask, and when. `drive` plays
requests to every system; a system runs in a process of its own, which is `worker`, and `worker_client`
talks to it. `record` holds the measurements, `figures` computes with them, `report` and `plots` show
them.
"""
