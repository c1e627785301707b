"""A model that cannot be had is named at once, before vLLM asks the hub for it again and again."""

from __future__ import annotations

import pytest

pytest.importorskip("huggingface_hub")

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

from ragcache_engine import ModelNotFound
from ragcache_engine.backends.vllm.model_lookup import require_model


class Unreachable(Exception):
    """As the exceptions of HTTP libraries: no OSError."""


class Answer:
    """The part of an HTTP answer that the hub's errors read."""

    request = None

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code
        self.headers: dict[str, str] = {}


def http_error(kind: type[HfHubHTTPError], status: int) -> HfHubHTTPError:
    return kind(f"{status} from the hub", response=Answer(status))  # type: ignore[arg-type]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with an empty cache that knows every model; its calls, and what it raises if anything."""

    class Hub:
        def __init__(self) -> None:
            self.asked: list[dict[str, object]] = []
            self.error: Exception | None = None
            self.cache = tmp_path / "hub"

        def store(self, folder: str, *files: str) -> None:
            for file in files:
                path = self.cache / folder / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("{}")

    hub = Hub()

    def model_info(self, repo_id: str, **options: object) -> None:
        hub.asked.append({"repo_id": repo_id, **options})
        if hub.error is not None:
            raise hub.error

    monkeypatch.setattr(HfApi, "model_info", model_info)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub.cache))
    for name in ("VLLM_USE_MODELSCOPE", "VLLM_MODEL_REDIRECT_PATH"):
        monkeypatch.delenv(name, raising=False)
    return hub


def test_a_model_that_the_hub_has_is_asked_for_once_and_not_for_long(hub):
    require_model("org/name")
    (asked,) = hub.asked
    assert asked["repo_id"] == "org/name"
    assert 0 < asked["timeout"] <= 15


def test_a_model_in_the_hubs_cache_needs_no_network(hub):
    hub.store("models--org--name", "snapshots/abc/config.json")
    hub.error = Unreachable("Name or service not known")
    require_model("org/name")
    assert hub.asked == []


def test_what_the_hub_once_did_not_have_does_not_count_as_cached(hub):
    hub.store("models--org--name", ".no_exist/abc/config.json", "refs/main")
    hub.error = Unreachable("Name or service not known")
    with pytest.raises(ModelNotFound):
        require_model("org/name")


def test_an_unknown_hub_id_is_named_with_what_to_do(hub):
    hub.error = http_error(RepositoryNotFoundError, 404)
    with pytest.raises(ModelNotFound, match=r"'org/nmae'.*spelling.*HF_TOKEN"):
        require_model("org/nmae")


@pytest.mark.parametrize("error", [Unreachable("no route"), TimeoutError(), ConnectionError()])
def test_a_hub_out_of_reach_is_named_with_what_to_do(hub, error):
    hub.error = error
    with pytest.raises(ModelNotFound, match=r"(?s)network.*folder.*HF_HUB_ETAG_TIMEOUT"):
        require_model("org/name")


def test_offline_mode_is_named_as_the_cause(hub):
    hub.error = OfflineModeIsEnabled("offline mode is enabled")
    with pytest.raises(ModelNotFound, match=r"HF_HUB_OFFLINE.*download"):
        require_model("org/name")


def test_what_is_no_hub_id_at_all_is_named_without_asking_the_hub(hub):
    with pytest.raises(ModelNotFound, match="neither a folder nor a hub id"):
        require_model("a model, any")
    assert hub.asked == []


def test_a_hub_that_is_only_busy_leaves_the_retries_to_vllm(hub):
    hub.error = http_error(HfHubHTTPError, 503)
    require_model("org/name")


@pytest.mark.parametrize("name", ["VLLM_USE_MODELSCOPE", "VLLM_MODEL_REDIRECT_PATH"])
def test_models_that_come_from_elsewhere_are_left_to_vllm(hub, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    hub.error = Unreachable("no route")
    require_model("org/name")
    assert hub.asked == []


def test_one_file_of_a_repository_is_left_to_vllm(hub):
    require_model("org/name-GGUF:Q4_K_M")
    assert hub.asked == []


def test_a_folder_without_a_model_is_named_without_asking_the_hub(hub, tmp_path):
    with pytest.raises(ModelNotFound, match="does not exist"):
        require_model(str(tmp_path / "absent"))
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        require_model(str(tmp_path))
    assert hub.asked == []
