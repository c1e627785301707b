"""A fleet of servers behind one door, on Ray Serve.

| file | holds |
|---|---|
| ingress.py | the door: keys, limits, and answers that outlive a replica |
| resuming.py | what of an answer has been sent, and what of its second attempt is new |
| request_paths.py | what routing knows of a request |
| wire.py | what the ingress sends to a replica, and what comes back |
| server_process.py | one server of `ragcache serve`, as a child of a replica |
| asked_documents.py | what a replica was asked about, and which of it has left its fast memory |
| engine_replica.py | a replica: keeps its server alive, and passes requests on |
| request_router.py | our routing in Ray Serve's own, whose interface is young |
| fleet_metrics.py | what the door counts |
| application.py | the application of Ray Serve, made of all these |
| running.py | starts and ends it |
| fleet_settings.py | what a fleet is made of |
| deploy_file.py | the same as a file for `serve deploy` |

Only application.py, engine_replica.py, request_router.py and running.py import Ray.
"""
