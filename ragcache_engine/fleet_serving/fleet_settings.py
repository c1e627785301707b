"""What a fleet is made of: plain values, that travel in Serve's config file as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ragcache_engine.errors import ConfigError
from ragcache_engine.fleet.routing import ROUTINGS

ONGOING = 128
"""How many requests a replica takes at a time; vLLM queues those that it cannot compute yet."""


@dataclass(frozen=True)
class FleetSettings:
    """The settings of a fleet.

    server_arguments: of `python`, for one server; vLLM's own arguments may follow.
    environment: variables that a server needs: where its keys are, and its limits.
    replicas: how many servers; max_replicas: how many there may be, by the load. routing: of ROUTINGS.
    doors: how many processes on the head check and pass on requests.
    replica_characters: how many characters of text a replica holds in device and host memory; None if not
      known.
    replica_gpus, replica_cpus: what Ray sets aside for each. splits_cores: whether replicas on one
      machine get cores of their own.
    max_requests: how many requests the fleet takes at a time; None: ONGOING for each replica.
    corpora_folder: as CORPORA_FOLDER: the documents by which the door routes too; max_corpora_bytes: the
      memory that they may take in each process.
    start_s: how long a server may take to start.
    """

    server_arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    replicas: int = 1
    max_replicas: int | None = None
    doors: int = 1
    routing: str = ROUTINGS[0]
    replica_characters: int | None = None
    replica_gpus: float = 0
    replica_cpus: float = 0
    splits_cores: bool = False
    ongoing: int = ONGOING
    max_requests: int | None = None
    max_body_bytes: int | None = None
    keys_file: str | None = None
    corpora_folder: str | None = None
    max_corpora_bytes: int | None = None
    start_s: float = 900.0

    def __post_init__(self) -> None:
        if self.replicas < 1 or (self.max_replicas or self.replicas) < self.replicas:
            raise ConfigError(
                f"a fleet has at least one replica, and at most max_replicas, got {self.replicas} and "
                f"{self.max_replicas}"
            )
        if self.doors < 1:
            raise ConfigError(f"a fleet has at least one door, got doors={self.doors}")
        if self.routing not in ROUTINGS:
            raise ConfigError(f"routing is one of {', '.join(ROUTINGS)}, not {self.routing!r}")

    @property
    def most_requests(self) -> int:
        """How many requests the fleet takes at a time."""
        return self.max_requests or self.ongoing * self.most_replicas

    @property
    def most_requests_of_a_door(self) -> int:
        """How many requests each door takes at a time: none knows how many the others have."""
        return -(-self.most_requests // self.doors)

    @property
    def most_replicas(self) -> int:
        """How many replicas there may be at a time."""
        return self.max_replicas or self.replicas

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without those that are the default."""
        default = FleetSettings(self.server_arguments)
        said = {
            name: value for name, value in asdict(self).items() if value != getattr(default, name)
        }
        return {**said, "server_arguments": list(self.server_arguments)}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> FleetSettings:
        """Read what `to_json` returned. Raises ConfigError."""
        try:
            return cls(**{**said, "server_arguments": tuple(said["server_arguments"])})
        except (TypeError, KeyError) as error:
            raise ConfigError(f"the args of this application are no fleet's: {error}") from error
