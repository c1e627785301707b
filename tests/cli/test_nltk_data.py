"""nltk refuses files with several hard links, as uv makes them; LlamaIndex reads its data with nltk."""

import os
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from ragcache_cli.diagnosis import Finding, Verdict, findings
from ragcache_cli.machine import Machine
from ragcache_cli.nltk_data import find_linked_file, nltk_data_folder

LAPTOP = Machine("3.11.7", "Linux", 2, 16 << 30, 8 << 30, 8 << 30)
ROOT = Path(__file__).parents[2]


def data_folder(folder: Path) -> Path:
    file = folder / "tokenizers/punkt_tab/english/abbrev_types.txt"
    file.parent.mkdir(parents=True)
    file.write_text("dr\n")
    return folder


def of_data(machine: Machine) -> list[Finding]:
    return [found for found in findings("x", machine, {}, None) if found.what == "nltk data"]


def test_a_file_with_a_second_link_is_found(tmp_path):
    folder = data_folder(tmp_path / "data")
    assert find_linked_file(folder) is None
    file = next(folder.rglob("*.txt"))
    os.link(file, tmp_path / "uv's cache")
    assert find_linked_file(folder) == file
    assert find_linked_file(tmp_path / "absent") is None


def test_nltk_refuses_just_the_file_that_is_found(tmp_path, monkeypatch):
    pathsec = pytest.importorskip("nltk.pathsec", reason="an nltk that refuses no file")
    folder = data_folder(tmp_path / "data")
    monkeypatch.setattr("nltk.data.path", [str(folder)])
    file = next(folder.rglob("*.txt"))
    pathsec.open(str(file), required_root=str(folder)).close()
    os.link(file, tmp_path / "uv's cache")
    with pytest.raises(PermissionError, match="multiply-linked"):
        pathsec.open(str(file), required_root=str(folder))


def test_the_data_is_where_llama_index_says(tmp_path):
    assert nltk_data_folder({"NLTK_DATA": str(tmp_path)}) == tmp_path
    pytest.importorskip("llama_index.core")
    folder = nltk_data_folder({})
    assert folder is not None
    assert (folder / "tokenizers").is_dir()


def test_the_doctor_names_linked_data_and_says_what_to_do():
    assert of_data(LAPTOP) == []
    (found,) = of_data(replace(LAPTOP, has_linked_nltk_data=True))
    assert found.verdict is Verdict.NOTE
    assert "PermissionError" in found.text
    assert "uv pip install --link-mode copy --reinstall-package llama-index-core" in found.text


def test_uv_copies_what_it_installs_for_this_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["uv"]["link-mode"] == "copy"
