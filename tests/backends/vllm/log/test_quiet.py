"""What a program sees of vLLM: one line while the model loads, and the cause when something fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ragcache_engine import EngineConfig, EngineStartFailed, RAGCacheEngine

pytest.importorskip("vllm")

pytestmark = [pytest.mark.vllm, pytest.mark.program, pytest.mark.timeout(600)]

THREE_ANSWERS = """
import logging
import sys

from ragcache_engine import Document, EngineConfig, RAGCacheEngine, SamplingOptions


def main(model, folder):
    logging.basicConfig(filename=folder + "/app.log", filemode="w", level=logging.INFO)
    logging.info("before")
    print("first line")
    config = EngineConfig(
        model=model, device_cache="200MiB", disk_cache="100MiB", disk_cache_dir=folder + "/app.log",
        vllm_args={"dtype": "float32", "max_model_len": 1024},
    )
    tides = Document("tides", "The tides follow the moon.")
    with RAGCacheEngine(config) as engine:
        for question in ("Why?", "When?", "Where?"):
            answer = engine.generate(
                f"{tides.text} {question}", [tides], SamplingOptions(max_tokens=4, ignore_eos=True)
            )
            print(question, answer.usage.output_tokens)
    logging.info("after")
    ours = logging.getLogger("vllm")
    print(ours.handlers, ours.propagate)


if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.fixture
def log_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, in which the log files are made."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home" / ".cache" / "ragcache" / "logs"


def test_three_answers_show_one_line_besides_what_the_program_prints(
    demo_model: str, tmp_path: Path, log_home: Path
):
    script = tmp_path / "three_answers.py"
    script.write_text(THREE_ANSWERS)
    # The test's own settings quieten vLLM; a user has none.
    user = {name: value for name, value in os.environ.items() if name != "VLLM_LOGGING_LEVEL"}
    done = subprocess.run(
        [sys.executable, str(script), demo_model, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=500,
        env=user,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "first line\nWhy? 4\nWhen? 4\nWhere? 4\n[] True\n"
    (log,) = log_home.iterdir()
    assert done.stderr == f"RAGCache: vLLM loads {Path(demo_model).name}; its log: {log}\n"

    application = (tmp_path / "app.log").read_text().splitlines()
    assert (application[0], application[-1]) == ("INFO:root:before", "INFO:root:after")
    (warning,) = (line for line in application if line.startswith("WARNING:"))
    assert "ragcache_engine.backends.vllm.tiers.spec:the disk tier is switched off" in warning
    assert not [line for line in application if "vllm." in line and "ragcache_engine" not in line]

    kept = log.read_text()
    for process in ("MainProcess", "EngineCore"):
        assert f"INFO {process} [vllm." in kept
    assert "the disk tier is switched off" in kept
    assert "Loading safetensors" in kept, "what was printed and not logged is kept as well"


def test_a_model_that_cannot_be_loaded_is_an_error_with_the_cause_and_the_log(
    demo_model: str, tmp_path: Path, log_home: Path, capfd: pytest.CaptureFixture[str]
):
    damaged = shutil.copytree(demo_model, tmp_path / "damaged")
    os.truncate(damaged / "model.safetensors", 100_000_000)
    config = EngineConfig(
        model=str(damaged),
        device_cache="200MiB",
        vllm_args={"dtype": "float32", "max_model_len": 1024},
    )
    with pytest.raises(EngineStartFailed) as failed:
        RAGCacheEngine(config)
    message = str(failed.value)
    found = re.search(r"vLLM's log, (.*), says:\n    .*SafetensorError: .*", message)
    assert found, message
    assert Path(found[1]).parent == log_home
    assert "Traceback" in Path(found[1]).read_text()
    assert len(message.splitlines()) < 8
    assert capfd.readouterr().err.count("\n") == 1, "nothing is shown twice"


def test_vllm_shows_its_log_where_the_user_wants_it(
    demo_model: str, tmp_path: Path, log_home: Path
):
    script = tmp_path / "shown.py"
    script.write_text(THREE_ANSWERS.replace("device_cache=", 'vllm_log="show", device_cache='))
    done = subprocess.run(
        [sys.executable, str(script), demo_model, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "VLLM_LOGGING_LEVEL": "INFO"},
    )
    assert done.returncode == 0, done.stderr
    assert "Initializing a V1 LLM engine" in done.stdout
    assert "the disk tier is switched off" in done.stderr
    assert not log_home.exists()
    assert "nanobind" not in done.stderr
