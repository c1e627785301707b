"""Where each block of key-value memory lies, in plain Python: the cache manager and its parts.

| file | holds |
|---|---|
| manager.py | CacheManager, which vLLM's scheduler calls; who owns which fact |
| block_index.py | the nodes of the knowledge tree by block and by document, one record a node |
| node_record.py | where the blocks of one node lie |
| requests.py | which requests wait and run, and what they pin |
| load_planning.py | how much to load and how much to compute |
| device_tier.py, free_device_blocks.py | which block of device memory is overwritten next |
| host_copying.py, host_slots.py | copies between device and host; the host's slots |
| disk_copying.py, disk_files.py, disk/ | copies between host and disk; the files |
| forgetting.py | documents that must go |
| prompts.py | a prompt as the manager sees it: keys, cuts, file names |
| speed.py, counters.py, metric_names.py | what was measured and counted, and its names for Prometheus |
| provenance.py, source_tracing.py | where a prompt's tokens came from, and why others were computed |
| served_requests.py | what observers are told of requests |
| tree_watch.py, tree_snapshot.py, bloom_filter.py | and of the tree |
| borrowing/ | reuse at any position: what a prompt borrows |
| wire.py | what travels between the engine's process and vLLM's |
"""
