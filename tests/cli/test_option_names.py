"""What the engine says in settings of Python, a command says in its own options."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragcache_cli.engine_settings import make_config
from ragcache_cli.main import main, parser
from ragcache_cli.option_names import in_options
from ragcache_engine import ConfigError, EngineConfig, EngineStartFailed

ASK = frozenset(vars(parser().parse_args(["ask", "Why?", "--corpus", "notes"])))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "or choose a ratio by hand: EngineConfig(recompute_ratio=...)",
            "or choose a ratio by hand: --recompute-ratio ...",
        ),
        (
            "device_cache=0.50 GiB holds 9 tokens: raise device_cache to at least 2 GiB, or lower "
            "max_model_len in vllm_args",
            "--device-cache 0.50 GiB holds 9 tokens: raise --device-cache to at least 2 GiB, or lower "
            "max_model_len with --vllm-arg",
        ),
        (
            'recompute_ratio is given, and reuse="prefix" borrows nothing: set reuse="anywhere" as well, '
            "or leave recompute_ratio out",
            "--recompute-ratio is given, and --reuse prefix borrows nothing: set --reuse anywhere as "
            "well, or leave --recompute-ratio out",
        ),
        (
            'donors is given, and reuse="prefix" borrows nothing: leave donors out',
            "--donors is given, and --reuse prefix borrows nothing: leave --donors out",
        ),
        ("set a smaller host_cache", "set a smaller --host-cache"),
        (
            "raise request_timeout_s if prompts take long",
            "raise --request-timeout if prompts take long",
        ),
        ("use a guide, or backend='vllm'", "use a guide, or --backend vllm"),
    ],
)
def test_settings_with_an_option_of_the_command_are_named_by_it(said: str, shown: str):
    assert in_options(said, ASK) == shown


@pytest.mark.parametrize(
    "said",
    [
        "set another disk_cache_dir",  # ask has no such option
        "the donors of d1 were evicted",
        "the model's context holds 5 tokens",
        "ragcache_host_cache_bytes is no metric",
        "the model reads my_host_cache.txt",
    ],
)
def test_all_else_stays_as_it_is(said: str):
    assert in_options(said, ASK) == said


def test_an_option_may_have_another_name_than_its_setting():
    warm = frozenset(vars(parser().parse_args(["warm", "--corpus", "notes"])))
    assert (
        in_options("cost_profile p.json cannot be used", warm) == "--profile p.json cannot be used"
    )


def test_a_wrong_value_is_told_once_and_without_the_words_of_a_library():
    with pytest.raises(ConfigError) as refused:
        make_config({"backend": "memory", "disk_cache": 1 << 30, "host_cache": 0})
    assert str(refused.value).startswith("a disk cache needs a host cache")
    with pytest.raises(ConfigError, match=r"^device_cache: "):
        make_config({"backend": "memory", "device_cache": 0})


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Return the error of a command that fails."""
    assert main(list(map(str, arguments))) == 1
    return " ".join(capsys.readouterr().err.split())


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "apples.txt").write_text("All that is known about apples.")
    (tmp_path / "log.jsonl").write_text("What about apples?")
    return tmp_path


@pytest.fixture(autouse=True)
def _quick_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    from word_bags import WordBags

    monkeypatch.setattr("ragcache_cli.embedding.load_embedder", WordBags)


def test_every_command_with_an_engine_names_its_options(
    corpus: Path, capsys: pytest.CaptureFixture[str]
):
    ask = ("ask", "Why?", "--corpus", corpus, "--backend", "memory")
    said = run(capsys, *ask, "--recompute-ratio", "0.1")
    assert "error: --recompute-ratio is given, and --reuse prefix borrows nothing" in said
    assert "error: --device-cache: " in run(capsys, *ask, "--device-cache", "0")
    assert "--device-cache is 9 bytes" in run(capsys, *ask, "--device-cache", "9")
    warm = ("warm", "--corpus", corpus, "--questions", corpus / "log.jsonl", "--backend", "memory")
    said = run(capsys, *warm, "--disk-cache", "0", "--disk-cache-dir", corpus)
    assert "error: --disk-cache-dir is given and --disk-cache is 0" in said
    said = run(capsys, *warm, "--profile", corpus / "log.jsonl")
    assert said.count("log.jsonl cannot be used") == 1
    assert "--profile" in said
    profile = ("profile", "--backend", "memory", "--output", corpus / "profile.json")
    assert "error: --host-cache is 9 bytes" in run(capsys, *profile, "--host-cache", "9")


def test_a_warning_of_the_engine_names_the_option(corpus: Path, capsys: pytest.CaptureFixture[str]):
    ask = ("ask", "Why?", "--corpus", str(corpus), "--backend", "memory", "--reuse", "anywhere")
    assert main(ask) == 0
    assert "choose a ratio by hand: --recompute-ratio" in capsys.readouterr().err


def test_one_question_that_fails_names_the_option_too(
    corpus: Path, capsys: pytest.CaptureFixture[str]
):
    said = run(capsys, "ask", "why " * 9000, "--corpus", corpus, "--backend", "memory")
    assert "raise max_model_len with --vllm-arg" in said


@pytest.mark.parametrize(
    "command",
    [
        ["ask", "Why?", "--corpus", "x"],
        ["warm", "--corpus", "x"],
        ["profile"],
        ["calibrate", "--corpus", "x", "--questions", "y"],
    ],
)
def test_what_the_engine_may_ask_for_can_be_given(command: list[str]):
    """Memory, context and time are what an engine runs out of; its advice must be followable."""
    more = ["--device-cache", "1GiB", "--host-cache", "2GiB", "--request-timeout", "300"]
    parsed = parser().parse_args([*command, *more, "--vllm-arg", "max_model_len=4096"])
    assert parsed.vllm_arg == [("max_model_len", 4096)]


def test_the_engine_gets_what_was_given(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    seen: list[EngineConfig] = []

    def start(config: EngineConfig) -> None:
        seen.append(config)
        raise EngineStartFailed("not now")

    given = ["--device-cache", "1GiB", "--host-cache", "2GiB", "--request-timeout", "300"]
    given += ["--vllm-arg", "max_model_len=4096", "--dtype", "float16"]
    for module in ("answering", "disk_warming", "prefill_profile"):
        monkeypatch.setattr(f"ragcache_cli.{module}.RAGCacheEngine", start)
    asked = ("--corpus", corpus, "--backend", "memory", *given)
    run(capsys, "ask", "Why?", *asked)
    run(capsys, "warm", "--questions", corpus / "log.jsonl", *asked)
    run(capsys, "profile", "--backend", "memory", "--output", corpus / "p.json", *given)
    for config in seen:
        assert (config.device_cache, config.host_cache) == (1 << 30, 2 << 30)
        assert config.request_timeout_s == 300
        assert config.vllm_args == {"dtype": "float16", "max_model_len": 4096}
    assert len(seen) == 3
