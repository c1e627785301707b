"""The fleet as a file: for `serve deploy` on a Ray cluster, and for Kubernetes with KubeRay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from ragcache_engine.fleet_serving.fleet_settings import FleetSettings

IMPORT_PATH = "ragcache_engine.fleet_serving.application:build"
SECRET = "ragcache-keys"
"""The Secret that a Kubernetes cluster keeps the keys in: `operator` and `keys.toml`."""
KEYS_FOLDER = "/etc/ragcache"
KEYS_FILE = f"{KEYS_FOLDER}/keys.toml"

HEAD_PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
"""What Ray's head listens on. KubeRay makes its services from the ports that a container names."""


def serve_config(settings: FleetSettings, *, host: str, port: int) -> dict[str, Any]:
    """Return the config file for `serve deploy`. Keys do not stand in it."""
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": host, "port": port, "request_timeout_s": None},
        "applications": [
            {
                "name": "ragcache",
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": settings.to_json(),
            }
        ],
    }


def kuberay_manifest(
    settings: FleetSettings, *, image: str, port: int, ray_version: str
) -> dict[str, Any]:
    """Return a RayService for KubeRay: a head without a model, and a worker for each replica.

    image: a container with `ragcache-integrations[fleet,vllm]`.
    """
    config = serve_config(_inside_pods(settings), host="0.0.0.0", port=port)
    config["proxy_location"] = "HeadOnly"
    gpus = {"nvidia.com/gpu": ceil(settings.replica_gpus)} if settings.replica_gpus else {}
    workers = {
        "groupName": "engines",
        "replicas": settings.replicas,
        "minReplicas": settings.replicas,
        "maxReplicas": settings.max_replicas or settings.replicas,
        "rayStartParams": {},
        "template": _pod("engine", image, {"limits": gpus} if gpus else {}),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "ragcache"},
        "spec": {
            "serveConfigV2": to_yaml(config),
            "rayClusterConfig": {
                "rayVersion": ray_version,
                "enableInTreeAutoscaling": bool(settings.max_replicas),
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0"},
                    "template": _pod("head", image, {}, {**HEAD_PORTS, "serve": port}),
                },
                "workerGroupSpecs": [workers],
            },
        },
    }


def _inside_pods(settings: FleetSettings) -> FleetSettings:
    """Return the settings as they hold in a pod: keys come from the Secret, and no core is shared."""
    environment = dict(settings.environment)
    if "RAGCACHE_KEYS" in environment:
        environment["RAGCACHE_KEYS"] = KEYS_FILE
    keys_file = KEYS_FILE if settings.keys_file else None
    return replace(settings, environment=environment, keys_file=keys_file, splits_cores=False)


def _pod(
    name: str, image: str, resources: dict[str, Any], ports: Mapping[str, int] | None = None
) -> dict[str, Any]:
    operator = {"secretKeyRef": {"name": SECRET, "key": "operator"}}
    container = {
        "name": name,
        "image": image,
        "env": [{"name": "RAGCACHE_OPERATOR_KEY", "valueFrom": operator}],
        "volumeMounts": [
            {"name": "keys", "mountPath": KEYS_FOLDER, "readOnly": True},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
        **({"resources": resources} if resources else {}),
        **(
            {"ports": [{"name": one, "containerPort": number} for one, number in ports.items()]}
            if ports
            else {}
        ),
    }
    volumes = [
        {"name": "keys", "secret": {"secretName": SECRET}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]
    return {"spec": {"containers": [container], "volumes": volumes}}


def to_yaml(said: Any) -> str:
    """Write plain values as YAML: block style, and every text in JSON's quotes, which YAML shares."""
    return "\n".join(_lines(said)) + "\n"


def _lines(said: Any) -> list[str]:
    match said:
        case dict() if said:
            return [line for key, value in said.items() for line in _entry(f"{key}:", value)]
        case list() if said:
            return [line for value in said for line in _entry("-", value)]
    return [json.dumps(said)]


def _entry(head: str, value: Any) -> list[str]:
    if isinstance(value, str) and value.endswith("\n"):
        return [f"{head} |", *(f"  {line}" for line in value.splitlines())]
    lines = _lines(value)
    if not (isinstance(value, dict | list) and value):
        return [f"{head} {lines[0]}"]
    if head == "-":
        return [f"- {lines[0]}", *(f"  {line}" for line in lines[1:])]
    return [head, *(f"  {line}" for line in lines)]
