"""The file of a fleet is read as it was meant."""

from __future__ import annotations

import pytest

from ragcache_engine import ConfigError
from ragcache_engine.fleet_serving.deploy_file import serve_config
from ragcache_engine.fleet_serving.fleet_settings import FleetSettings

yaml = pytest.importorskip("yaml")

SETTINGS = FleetSettings(
    ("-m", "ragcache_cli", "serve", "Qwen/Qwen2.5-7B-Instruct", "--", "--dtype", "float16"),
    {"RAGCACHE_KEYS": "/etc/ragcache/keys.toml"},
    replicas=3,
    max_replicas=9,
    replica_gpus=1,
    keys_file="/etc/ragcache/keys.toml",
)


def test_serve_reads_the_settings_back():
    config = yaml.safe_load(yaml.safe_dump(serve_config(SETTINGS, host="0.0.0.0", port=8000)))
    (application,) = config["applications"]
    assert FleetSettings.from_json(application["args"]) == SETTINGS
    assert config["http_options"]["port"] == 8000


def test_serve_itself_accepts_the_file():
    schema = pytest.importorskip("ray.serve.schema")
    config = yaml.safe_load(yaml.safe_dump(serve_config(SETTINGS, host="0.0.0.0", port=8000)))
    read = schema.ServeDeploySchema.model_validate(config)
    assert read.applications[0].import_path.endswith("application:build")


def test_the_application_is_built_from_the_file():
    pytest.importorskip("ray.serve")
    from ragcache_engine.fleet_serving.application import build, engine_options

    assert build(SETTINGS.to_json())
    options = engine_options(SETTINGS)
    assert options["autoscaling_config"]["max_replicas"] == 9
    assert options["ray_actor_options"]["num_gpus"] == 1


def test_the_door_stands_on_the_head():
    pytest.importorskip("ray.serve")
    from ragcache_engine.fleet_serving.application import ON_HEAD, ingress_options

    assert ingress_options(SETTINGS)["ray_actor_options"]["resources"] == {ON_HEAD: 0.001}


def test_several_doors_share_what_the_fleet_takes():
    pytest.importorskip("ray.serve")
    from ragcache_engine.fleet_serving.application import ingress_options

    settings = FleetSettings(("server",), replicas=3, doors=2, max_requests=7)
    assert ingress_options(settings)["num_replicas"] == 2
    assert settings.most_requests_of_a_door == 4


@pytest.mark.parametrize(
    "changes",
    [{"replicas": 0}, {"replicas": 3, "max_replicas": 2}, {"routing": "nearest"}, {"doors": 0}],
)
def test_settings_that_cannot_work_are_refused(changes):
    with pytest.raises(ConfigError):
        FleetSettings(("server",), **changes)
    with pytest.raises(ConfigError, match="no fleet's"):
        FleetSettings.from_json({"servers": 3})
