"""The `ragcache` command. Of the engine it uses the public names, and a few parts beside them.

`main` chooses a command, `commands` has one light file for each, with its arguments, and other modules do
the work:

| command | module |
|---|---|
| ask | answering.py |
| calibrate | calibrating/calibrate.py |
| corpus | corpus_pushing.py |
| dashboard | ragcache_engine/dashboard |
| demo | chain_comparison.py |
| doctor | diagnosis.py |
| index | index_serving.py |
| monitoring | monitoring/, files that the command copies |
| profile | prefill_profile.py |
| serve | server.py; with --replicas fleet_server.py |
| simulate | simulate.py; with --replicas simulate_fleet.py |
| top | top.py |
| warm | disk_warming.py |
"""
