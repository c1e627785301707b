"""The files of a fleet are read as they were meant, and no key stands in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ragcache_engine import ConfigError
from ragcache_engine.fleet_serving.fleet_settings import FleetSettings
from ragcache_engine.fleet_serving.manifests import kuberay_manifest, serve_config, to_yaml

yaml = pytest.importorskip("yaml")

SETTINGS = FleetSettings(
    ("-m", "ragcache_cli", "serve", "Qwen/Qwen2.5-7B-Instruct", "--", "--dtype", "float16"),
    {"RAGCACHE_KEYS": "/etc/ragcache/keys.toml"},
    replicas=3,
    max_replicas=9,
    replica_gpus=1,
    keys_file="/etc/ragcache/keys.toml",
)


def test_yaml_says_what_was_meant():
    said = {"a": [], "b": {}, "c": [{"d": "x: y\nz", "e": [1, "2", None]}, [True]], "f": "- 'q'"}
    said["g"] = "several\nlines\n"
    assert yaml.safe_load(to_yaml(said)) == said


def test_serve_reads_the_settings_back():
    config = yaml.safe_load(to_yaml(serve_config(SETTINGS, host="0.0.0.0", port=8000)))
    (application,) = config["applications"]
    assert FleetSettings.from_json(application["args"]) == SETTINGS
    assert config["http_options"]["port"] == 8000


def test_serve_itself_accepts_the_file():
    schema = pytest.importorskip("ray.serve.schema")
    config = yaml.safe_load(to_yaml(serve_config(SETTINGS, host="0.0.0.0", port=8000)))
    read = schema.ServeDeploySchema.model_validate(config)
    assert read.applications[0].import_path.endswith("application:build")


def test_the_application_is_built_from_the_file():
    pytest.importorskip("ray.serve")
    from ragcache_engine.fleet_serving.application import build, engine_options

    assert build(SETTINGS.to_json())
    options = engine_options(SETTINGS)
    assert options["autoscaling_config"]["max_replicas"] == 9
    assert options["ray_actor_options"]["num_gpus"] == 1


def test_kubernetes_gets_a_worker_for_each_replica_and_keys_from_a_secret():
    made = yaml.safe_load(
        to_yaml(
            kuberay_manifest(SETTINGS, image="shop/ragcache:1", port=8000, ray_version="2.60.0")
        )
    )
    assert made["kind"] == "RayService"
    (workers,) = made["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert (workers["replicas"], workers["maxReplicas"]) == (3, 9)
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert "secretKeyRef" in container["env"][0]["valueFrom"]
    inner = yaml.safe_load(made["spec"]["serveConfigV2"])
    assert FleetSettings.from_json(inner["applications"][0]["args"]) == SETTINGS


def test_in_a_pod_keys_are_where_the_secret_is_and_the_door_where_kubernetes_looks():
    here = replace(SETTINGS, keys_file="/home/anna/keys.toml", splits_cores=True)
    here = replace(here, environment={"RAGCACHE_KEYS": "/home/anna/keys.toml"})
    made = kuberay_manifest(here, image="shop/ragcache:1", port=8080, ray_version="2.60.0")
    assert "/home/anna" not in to_yaml(made)
    cluster = made["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        mounted = {each["mountPath"] for each in container["volumeMounts"]}
        inner = yaml.safe_load(made["spec"]["serveConfigV2"])["applications"][0]["args"]
        assert str(Path(inner["keys_file"]).parent) in mounted
        assert inner["environment"]["RAGCACHE_KEYS"] == inner["keys_file"]
        assert not inner.get("splits_cores")
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert {"name": "serve", "containerPort": 8080} in head["ports"]


def test_serve_accepts_the_file_inside_the_manifest():
    schema = pytest.importorskip("ray.serve.schema")
    made = kuberay_manifest(SETTINGS, image="shop/ragcache:1", port=8000, ray_version="2.60.0")
    config = yaml.safe_load(made["spec"]["serveConfigV2"])
    assert schema.ServeDeploySchema.model_validate(config).proxy_location == "HeadOnly"


@pytest.mark.parametrize(
    "changes", [{"replicas": 0}, {"replicas": 3, "max_replicas": 2}, {"routing": "nearest"}]
)
def test_settings_that_cannot_work_are_refused(changes):
    with pytest.raises(ConfigError):
        FleetSettings(("server",), **changes)
    with pytest.raises(ConfigError, match="no fleet's"):
        FleetSettings.from_json({"servers": 3})


def test_a_pod_has_a_whole_gpu_where_a_replica_takes_half_of_one():
    half = replace(SETTINGS, replica_gpus=0.5)
    made = kuberay_manifest(half, image="shop/ragcache:1", port=8000, ray_version="2.60.0")
    (workers,) = made["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
