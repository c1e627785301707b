"""Who may import whom (docs/design.md, layout), and how light an import is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ragcache_engine

ROOT = Path(ragcache_engine.__file__).parents[1]

HEAVY = {"torch", "vllm", "faiss", "numpy", "transformers", "langchain_core", "llama_index"}

# Of the core of decisions: what may import which library.
LIBRARIES = {
    "ragcache_engine.tiers.disk.block_file": {"xxhash"},  # ten times as fast as Python's checksums
    "ragcache_engine.tiers.disk.key_files": {"cryptography"},  # loaded where files are encrypted
    "ragcache_engine.tiers.disk.key_ring": {"cryptography"},
    "ragcache_engine.tiers.shared.address": {"pydantic"},  # reads sizes, as EngineConfig does
    "ragcache_engine.tiers.shared.redis_store": {"redis"},  # loaded where there is such a store
    "ragcache_engine.tiers.shared.object_store": {"obstore"},
}

# For each part: what of this project it may import. The first prefix that fits counts.
MAY_IMPORT = {
    "ragcache_engine.daemon_threads": [],
    "ragcache_engine.visible": [],
    "ragcache_engine.latest_items": [],
    "ragcache_engine.tenants": [],
    "ragcache_engine.errors": ["visible"],
    "ragcache_engine.checks": ["errors"],
    "ragcache_engine.guide": ["errors", "visible"],
    "ragcache_engine.chat": ["chat", "guide", "checks", "errors", "visible"],
    "ragcache_engine.tables": ["visible"],
    "ragcache_engine.values": ["tables", "guide", "checks", "errors"],
    "ragcache_engine.cache_stats": ["values", "tables", "knowledge.tier", "tiers.counters"],
    "ragcache_engine.engine_table": [
        "cache_stats",
        "config",
        "tables",
        "tiers.shared.address",
        "values",
    ],
    "ragcache_engine.config": ["knowledge", "tiers.shared.address", "errors"],
    "ragcache_engine.corpora": [
        "corpora",
        "backends.server.connection",
        "serving.messages",
        "prompt",
        "tenants",
        "latest_items",
        "checks",
        "errors",
        "values",
    ],
    "ragcache_engine.serving": [
        "serving",
        "corpora",
        "anywhere.beginnings",
        "anywhere.donor_preparation",
        "anywhere.found_documents",
        "anywhere.neighbours",
        "protocols",
        "knowledge.tier",
        "chat",
        "guide",
        "prompt",
        "values",
        "tiers.provenance",
        "tiers.counters",
        "tiers.kept",
        "tiers.prompts",
        "tiers.tree_snapshot",
        "tiers.wire",
        "tiers.borrowing.context",
        "daemon_threads",
        "tenants",
        "latest_items",
        "checks",
        "errors",
        "visible",
    ],
    "ragcache_engine.cache_home": ["errors"],
    "ragcache_engine.forwarding": [
        "chat",
        "prompt",
        "protocols",
        "tiers.counters",
        "tiers.kept",
        "tiers.tree_snapshot",
        "values",
    ],
    "ragcache_engine.protocols": [
        "values",
        "tiers.borrowing.context",
        "tiers.provenance",
        "tiers.counters",
        "tiers.kept",
        "tiers.tree_snapshot",
        "tenants",
        "chat",
        "prompt",
    ],
    "ragcache_engine.knowledge": ["knowledge"],
    "ragcache_engine.prompt": ["prompt", "tenants", "latest_items", "values", "checks", "errors"],
    "ragcache_engine.processes": [],
    "ragcache_engine.tiers": [
        "tiers",
        "knowledge",
        "processes",
        "tenants",
        "latest_items",
        "values",
        "checks",
        "errors",
    ],
    "ragcache_engine.fleet": ["fleet"],
    "ragcache_engine.fleet_serving": [
        "fleet_serving",
        "corpora.registered",
        "prompt",
        "fleet",
        "serving",
        "tiers.tree_snapshot",
        "tiers.wire",
        "daemon_threads",
        "latest_items",
        "checks",
        "errors",
    ],
    "ragcache_engine.simulation": [
        "simulation",
        "fleet",
        "tiers",
        "knowledge",
        "retrievals.document_order",
        "values",
    ],
    "ragcache_engine.backends.choice": ["backends", "anywhere", "config", "protocols", "errors"],
    "ragcache_engine.speculation": [
        "speculation",
        "anywhere",
        "checks",
        "prompt",
        "protocols",
        "daemon_threads",
        "tenants",
        "latest_items",
        "values",
        "errors",
    ],
    "ragcache_engine.backends": [
        "backends",
        "corpora",
        "anywhere.idle_backend",
        "observing.metrics",
        "serving",
        "chat",
        "guide",
        "protocols",
        "simulation",
        "values",
        "checks",
        "errors",
        "knowledge",
        "tiers",
        "processes",
        "daemon_threads",
        "latest_items",
        "cache_home",
        "visible",
        "tenants",
    ],
    "ragcache_engine.search": ["search", "errors"],
    "ragcache_engine.index_server": [
        "index_server",
        "search",
        "serving",
        "backends.server.connection",
        "daemon_threads",
        "errors",
    ],
    "ragcache_engine.dashboard": [
        "dashboard",
        "requests",
        "observing",
        "tiers",
        "values",
        "errors",
        "visible",
    ],
    "ragcache_engine.engine_chat": ["requests", "chat", "protocols", "values", "checks", "errors"],
    "ragcache_engine.anywhere": [
        "anywhere",
        "forwarding",
        "cache_stats",
        "daemon_threads",
        "tenants",
        "latest_items",
        "cache_home",
        "chat",
        "config",
        "prompt",
        "protocols",
        "tiers",
        "values",
        "errors",
    ],
    "ragcache_engine.observing": [
        "cache_stats",
        "observing",
        "protocols",
        "tenants",
        "tiers",
        "values",
    ],
    "ragcache_engine.requests": [
        "cache_stats",
        "requests",
        "anywhere",
        "observing",
        "speculation",
        "tiers",
        "prompt",
        "protocols",
        "config",
        "daemon_threads",
        "latest_items",
        "values",
        "checks",
        "errors",
    ],
    "ragcache_engine.retrievals": [
        "retrievals",
        "requests",
        "anywhere",
        "observing",
        "speculation",
        "knowledge",
        "prompt",
        "protocols",
        "tenants",
        "values",
        "checks",
    ],
    "ragcache_engine.warming": [
        "warming",
        "daemon_threads",
        "requests",
        "anywhere",
        "prompt",
        "forwarding",
        "protocols",
        "knowledge",
        "tiers.kept",
        "values",
        "checks",
        "errors",
    ],
    "ragcache_engine.engine": [""],
    "ragcache_engine": [""],
}


def modules(package: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(node.module or "")
    return names


def allowed_for(module: str) -> list[str]:
    best = max((part for part in MAY_IMPORT if f"{module}.".startswith(f"{part}.")), key=len)
    return [f"ragcache_engine.{name}" if name else "ragcache_engine" for name in MAY_IMPORT[best]]


@pytest.mark.parametrize(
    "package", ["ragcache_engine", "ragcache_integrations.langchain", "ragcache_cli.main"]
)
@pytest.mark.slow
def test_importing_it_loads_nothing_heavy(package: str):
    if package == "ragcache_integrations.langchain":
        pytest.importorskip("langchain_core")
    heavy = HEAVY - {"langchain_core", "numpy"} if "langchain" in package else HEAVY
    script = f"import sys, {package}; print(*sorted(set(sys.modules) & {heavy!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""


@pytest.mark.slow
def test_a_server_and_a_fleet_start_without_faiss():
    script = (
        "import sys; sys.modules['faiss'] = None; import ragcache_engine.serving.doors, "
        "ragcache_engine.serving.recognising, ragcache_engine.corpora.registered"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(("module", "path"), modules("ragcache_engine"))
def test_inside_the_engine_imports_point_one_way(module: str, path: Path):
    ours = {name for name in imports_of(path) if name.startswith("ragcache")}
    allowed = allowed_for(module)
    strays = {
        name for name in ours if not any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed)
    }
    assert not strays


@pytest.mark.parametrize(("module", "path"), modules("ragcache_engine"))
def test_vllm_and_torch_stay_in_their_backend(module: str, path: Path):
    tops = {name.split(".")[0] for name in imports_of(path)}
    if not module.startswith("ragcache_engine.backends.vllm"):
        assert not tops & {"torch", "vllm", "transformers"}
    if not module.startswith(("ragcache_engine.search", "ragcache_engine.corpora.nearness")):
        assert not tops & {"faiss"}
    assert not tops & {"langchain_core", "llama_index", "ragcache_integrations", "ragcache_cli"}


@pytest.mark.parametrize(
    ("module", "path"), [*modules("ragcache_engine"), *modules("ragcache_integrations")]
)
def test_nothing_waits_for_the_threads_of_an_application(module: str, path: Path):
    """But for the vector store, which runs where LangChain's stores do: it has no engine."""
    called = [
        one for one in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(one, ast.Call)
    ]
    names = [getattr(one.func, "attr", getattr(one.func, "id", "")) for one in called]
    if module != "ragcache_integrations.langchain.faiss_store.vectorstore":
        assert "to_thread" not in names
        assert not [
            one
            for one, name in zip(called, names, strict=True)
            if name == "run_in_executor" and ast.unparse(one.args[0]) == "None"
        ]


@pytest.mark.parametrize(("module", "path"), modules("ragcache_integrations"))
def test_integrations_know_only_the_face_of_the_engine(module: str, path: Path):
    ours = {name for name in imports_of(path) if name.startswith(("ragcache", "vllm", "torch"))}
    other = (
        "llamaindex" if ".langchain" in module else "langchain" if ".llamaindex" in module else "-"
    )
    face = {"ragcache_engine", "ragcache_engine.search", "ragcache_engine.index_server"}
    assert all(name in face or "ragcache_integrations" in name for name in ours)
    assert not [name for name in ours if other in name]


@pytest.mark.parametrize(("module", "path"), modules("ragcache_engine"))
def test_the_core_of_decisions_needs_only_the_standard_library(module: str, path: Path):
    core = (
        "ragcache_engine.fleet",
        "ragcache_engine.knowledge",
        "ragcache_engine.prompt",
        "ragcache_engine.tiers",
        "ragcache_engine.simulation",
    )
    if is_below(module, *core):
        tops = {name.split(".")[0] for name in imports_of(path)} - {"ragcache_engine"}
        tops -= LIBRARIES.get(module, set())
        assert tops <= set(sys.stdlib_module_names) | {"__future__"}


@pytest.mark.parametrize(("module", "path"), modules("ragcache_engine"))
def test_ray_stays_in_four_files(module: str, path: Path):
    names = ("application", "engine_replica", "request_router", "running")
    if module not in {f"ragcache_engine.fleet_serving.{name}" for name in names}:
        assert "ray" not in {name.split(".")[0] for name in imports_of(path)}


# What the command line may use of the engine beside its face: names of documented subpackages.
CLI_DOORS = [
    "anywhere",
    "cache_home",
    "config",
    "corpora",
    "dashboard",
    "fleet",
    "fleet_serving",
    "index_server",
    "knowledge",
    "search",
    "serving",
    "simulation",
    "tiers.counters",
    "visible",
]
# And the files that look into a backend: they check how vLLM and a model are installed, start vLLM,
# compare with it.
CLI_INTO_BACKENDS = {
    "ragcache_cli.disk_warming",
    "ragcache_cli.diagnosis",
    "ragcache_cli.fleet_server",
    "ragcache_cli.precision",
    "ragcache_cli.prompts",
    "ragcache_cli.server",
}
# What a command's file may import before it runs.
LIGHT = {"ragcache_cli.models", "ragcache_cli.questions"}


def is_below(name: str, *parts: str) -> bool:
    return any(f"{name}.".startswith(f"{part}.") for part in parts)


@pytest.mark.parametrize(("module", "path"), modules("ragcache_cli"))
def test_the_command_line_goes_through_documented_doors(module: str, path: Path):
    doors = [f"ragcache_engine.{name}" for name in CLI_DOORS]
    if module in CLI_INTO_BACKENDS:
        doors.append("ragcache_engine.backends")
    engine = {name for name in imports_of(path) if is_below(name, "ragcache_engine")}
    assert not {name for name in engine - {"ragcache_engine"} if not is_below(name, *doors)}


@pytest.mark.parametrize(("module", "path"), modules("ragcache_cli"))
def test_the_command_line_knows_nothing_of_benchmarks_tests_and_tools(module: str, path: Path):
    outside = {"benchmarks", "tests", "tools", "examples"}
    outside |= {path.stem for path in (ROOT / "benchmarks").iterdir()}
    tops = {name.split(".")[0] for name in imports_of(path)}
    assert not tops & outside


@pytest.mark.parametrize(("module", "path"), modules("ragcache_cli"))
def test_inside_the_command_line_imports_point_from_commands_to_implementations(
    module: str, path: Path
):
    ours = {name for name in imports_of(path) if is_below(name, "ragcache_cli")}
    if module not in ("ragcache_cli.main", "ragcache_cli.__main__"):
        assert "ragcache_cli.main" not in ours
        assert is_below(module, "ragcache_cli.commands") or not {
            name for name in ours if is_below(name, "ragcache_cli.commands")
        }


def test_a_command_imports_its_implementation_only_when_it_runs():
    script = "import sys, ragcache_cli.commands as commands, ragcache_cli.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {name for name in done.stdout.split() if is_below(name, "ragcache_cli")}
    mains = {
        "ragcache_cli",
        "ragcache_cli.main",
        "ragcache_cli.folders",
        "ragcache_cli.logging_setup",
        "ragcache_cli.option_names",
        "ragcache_cli.visible_console",
    }
    beneath_models = {"ragcache_cli.errors", "ragcache_cli.extras"}
    implementations = loaded - mains - LIGHT - beneath_models
    assert not {name for name in implementations if not is_below(name, "ragcache_cli.commands")}


@pytest.mark.slow
def test_no_modules_import_one_another_in_a_circle():
    packages = ("ragcache_engine", "ragcache_integrations", "ragcache_cli")
    paths = {name: path for package in packages for name, path in modules(package)}
    imported = {
        name: modules_imported_by(path, set(paths)) - {name} for name, path in paths.items()
    }
    done: set[str] = set()
    for name in imported:
        assert not circle_from(name, imported, [], done)


def modules_imported_by(path: Path, known: set[str]) -> set[str]:
    """Those of `known` that a file imports anywhere. `from a import b` is a.b if that is a module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= members & known
            if members - known:
                found.add(node.module)
    return found & known


def circle_from(
    name: str, imported: dict[str, set[str]], way: list[str], done: set[str]
) -> list[str]:
    """The modules of a circle that begins on the way from `name`; empty if there is none."""
    if name in way:
        return [*way[way.index(name) :], name]
    if name in done:
        return []
    for other in sorted(imported[name]):
        if circle := circle_from(other, imported, [*way, name], done):
            return circle
    done.add(name)
    return []
