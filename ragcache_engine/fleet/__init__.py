"""Several engines as one: which of them gets a request. Simulation and real fleet share this code.

| file | holds |
|---|---|
| path.py | what routing knows of a prompt: a key for each beginning of it |
| rendezvous.py | which replica is a key's home, without a table |
| popularity.py | how large a share of the requests a key has |
| holdings.py | what each replica holds, as far as it is known |
| balance.py | how much a replica may have to do for the sake of a hit |
| documents.py | routing by documents |
| baselines.py | what it is compared with: random, two choices, the longest prefix |
| routing.py | the verbs all routings have, and their names |
"""

from ragcache_engine.fleet.path import RoutingPath, path_of_parts, path_of_text
from ragcache_engine.fleet.routing import ROUTINGS, Routing, make_routing

__all__ = [
    "ROUTINGS",
    "Routing",
    "RoutingPath",
    "make_routing",
    "path_of_parts",
    "path_of_text",
]
