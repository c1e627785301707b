"""What is built for release, and what the pages say about installing it."""

from __future__ import annotations

import os
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from ragcache_cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

ONLY_FOR_DEVELOPERS = {'boto3 ; sys_platform == "never"'}
"""Overrides that only the extra `dev` needs."""


def test_users_of_the_wheel_override_what_the_clone_overrides(capsys):
    assert main(["doctor", "--cpu-overrides"]) == 0
    printed = capsys.readouterr().out
    assert printed == (ROOT / "ragcache_cli" / "cpu-overrides.txt").read_text(encoding="utf-8")
    overridden = PROJECT["tool"]["uv"]["override-dependencies"]
    lines = [line for line in printed.splitlines() if not line.startswith("#")]
    assert sorted(lines) == sorted(set(overridden) - ONLY_FOR_DEVELOPERS)


def test_the_guide_explains_every_override():
    guide = (ROOT / "docs" / "guides" / "getting-started.md").read_text(encoding="utf-8")
    overridden = set(PROJECT["tool"]["uv"]["override-dependencies"]) - ONLY_FOR_DEVELOPERS
    for requirement in overridden:
        name = re.split("[ >]", requirement)[0]
        assert re.search(rf"^- .*`{name}`.*:", guide, re.MULTILINE), name


def test_the_description_for_package_indexes_has_no_link_into_the_repository():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    described = readme
    for rule in hook["substitutions"]:
        described = re.sub(rule["pattern"], rule["replacement"], described)
    check = runpy.run_path(str(ROOT / "tools" / "check_installed.py"))
    assert check["links_into_the_repository"](readme)
    assert check["links_into_the_repository"](described) == []
    assert "](https://arxiv.org" in described
    code = re.compile(r"```.*?```", re.DOTALL)
    assert code.findall(described) == code.findall(readme)


def test_the_guide_sets_uvs_link_mode_as_the_clone_does():
    guide = (ROOT / "docs" / "guides" / "getting-started.md").read_text(encoding="utf-8")
    assert f"--link-mode {PROJECT['tool']['uv']['link-mode']}" in guide


def test_all_pages_make_one_claim_on_installing():
    texts = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
    assert {name for name, text in texts.items() if "not on PyPI yet" in text} == {
        "README.md",
        "docs/guides/getting-started.md",
    }
    assert not [name for name, text in texts.items() if "no release yet" in text]


def test_every_extra_that_a_page_installs_exists():
    extras = set(PROJECT["project"]["optional-dependencies"])
    named = {
        extra
        for page in PAGES
        for group in re.findall(r"(?:ragcache-integrations|'\.)\[([a-z,-]+)\]", page.read_text())
        for extra in group.split(",")
    }
    assert named
    assert named <= extras


def test_the_check_of_a_wheel_runs_programs_of_the_readme():
    check = runpy.run_path(str(ROOT / "tools" / "check_installed.py"))
    programs = check["runnable_programs"]((ROOT / "README.md").read_text(encoding="utf-8"))
    assert programs
    assert all('EngineConfig(backend="memory")' in program for program in programs)
    assert not any(
        "hub" in program or 'SentenceTransformer("sent' in program for program in programs
    )


def test_every_extra_of_users_is_tried_before_a_release():
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    alone = re.search(r"^EACH := (.*)$", make, re.MULTILINE)
    together = re.search(r"check_wheel\.sh \$\$uv ([a-z,-]+)$", make, re.MULTILINE)
    assert alone
    assert together
    tried = {*alone[1].split(), *together[1].split(",")}
    extras = set(PROJECT["project"]["optional-dependencies"])
    assert extras - tried == {"vllm", "docs", "dev"}  # a GPU's wheel; tools of the clone
    checks = runpy.run_path(str(ROOT / "tools" / "check_extra.py"))["CHECKS"]
    assert set(checks) == set(alone[1].split())


def test_what_tries_the_extra_for_encryption_runs():
    pytest.importorskip("cryptography")
    runpy.run_path(str(ROOT / "tools" / "check_extra.py"))["CHECKS"]["encryption"]()


def test_the_script_that_starts_vllms_python_can_be_executed():
    script = ROOT / "ragcache_engine" / "backends" / "vllm" / "log" / "start_python.sh"
    assert os.access(script, os.X_OK)
