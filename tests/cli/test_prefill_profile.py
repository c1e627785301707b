"""`ragcache profile` against an engine whose prefill times are known exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ragcache_cli.errors import CommandError
from ragcache_cli.main import main
from ragcache_cli.prefill_profile import (
    CACHED,
    COMPUTED,
    QUICK_CACHED,
    QUICK_COMPUTED,
    ProfileSettings,
    Timings,
    choose_lengths,
    default_output,
    measure_prefill,
    summary,
)
from ragcache_engine import ModelLimits, TokenizedPrompt
from ragcache_engine.backends.memory import MemoryBackend, linear_prefill
from ragcache_engine.knowledge import CostProfile


@pytest.fixture(autouse=True)
def _a_home_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path / "home"))


def profile(*arguments: str | Path) -> int:
    return main(["profile", "--backend", "memory", *map(str, arguments)])


def test_the_measured_times_are_those_the_engine_takes(tmp_path):
    output = tmp_path / "new" / "profile.json"
    assert profile("--output", output, "--model", "org/model") == 0
    made = CostProfile.load(output, model="org/model", dtype="auto", hardware="a virtual clock")
    assert (made.cached_tokens, made.computed_tokens) == (CACHED, COMPUTED)
    assert made.block_tokens == 16
    assert made.measured_on is not None
    for cached, row in zip(made.cached_tokens, made.seconds, strict=True):
        for computed, seconds in zip(made.computed_tokens, row, strict=True):
            assert seconds == pytest.approx(linear_prefill(cached, computed), rel=1e-6)


def test_the_table_the_gain_and_the_file_are_shown(tmp_path, capsys):
    assert profile("--output", tmp_path / "profile.json") == 0
    out = capsys.readouterr().out
    assert "the memory backend, a virtual clock" in out
    assert "2,048" in out
    assert "A prompt of 2,080 tokens: 229 ms; with 2,048 of them cached 4 ms." in out
    assert f"Written: {tmp_path / 'profile.json'}" in out


def test_a_quick_profile_is_coarser_and_does_not_replace_a_thorough_one(tmp_path):
    assert profile("--quick", "--repeats", "1") == 0
    (written,) = (tmp_path / "home" / "profiles").iterdir()
    assert written.name == "memory-auto-quick.json"
    made = CostProfile.load(written, model="demo")
    assert (made.cached_tokens, made.computed_tokens) == (QUICK_CACHED, QUICK_COMPUTED)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("demo", "SmolLM2-135M-Instruct-bfloat16.json"),
        ("org/model", "org--model-bfloat16.json"),
        ("/models/one/", "models--one-bfloat16.json"),
    ],
)
def test_each_model_has_a_file_of_its_own(model, name):
    settings = ProfileSettings(model, "auto", "bfloat16", 3, quick=False, output=None)
    assert default_output(settings).name == name


def test_an_output_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert profile("--output", tmp_path / "file" / "profile.json") == 1
    assert "choose with --output" in capsys.readouterr().err
    assert profile("--output", tmp_path) == 1
    assert "is a folder; --output names the file" in capsys.readouterr().err


def test_an_old_profile_is_replaced_whole(tmp_path):
    output = tmp_path / "profile.json"
    output.write_text("old")
    assert profile("--quick", "--output", output) == 0
    assert json.loads(output.read_text())["format"] == "ragcache-cost-profile"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["profile.json"]


def test_lengths_are_left_out_until_the_longest_prompt_fits():
    def fit(context: int, blocks: int, block: int = 16) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return choose_lengths(CACHED, COMPUTED, ModelLimits(context, block, blocks))

    assert fit(8192, 1024) == (CACHED, COMPUTED)
    assert fit(4096, 1024) == (CACHED, COMPUTED[:-1])  # 4,096 leave no room for the answer
    assert fit(2048, 1024) == (CACHED[:-1], COMPUTED[:-2])
    assert fit(8192, 100) == (CACHED[:-1], COMPUTED[:-2])
    with pytest.raises(CommandError, match="longer context"):
        fit(100, 1024)


def test_cached_lengths_are_whole_blocks():
    assert choose_lengths((0, 100, 120), (32, 64), ModelLimits(8192, 128, 1024)) == (
        (0, 128),
        (32, 64),
    )


def test_what_the_engine_caches_less_of_counts_as_what_it_did(engine_on):
    backend = MemoryBackend(block_tokens=64)
    engine = engine_on(backend)
    timings = measure_prefill(engine, (0, 32, 100, 200), (16, 32), repeats=1)
    assert timings.cached_tokens == (0, 64, 192)
    assert timings.medians[2] == pytest.approx((linear_prefill(192, 16), linear_prefill(192, 32)))


class KnowsWordsBehindASpace(MemoryBackend):
    """Splits a word that opens a prompt, unless it is very short, and puts a token before it."""

    def tokenize(self, text: str, add_special_tokens: bool = True) -> TokenizedPrompt:
        opening = len(text.split(" ")[0])
        cut = 0 if opening <= 3 else 2
        ids = [
            token_id
            for part in ("<s>", text[:cut], text[cut:])
            for token_id in super(KnowsWordsBehindASpace, self).tokenize(part).token_ids
        ]
        return TokenizedPrompt(text, ids)


def test_prompts_have_their_length_though_a_word_alone_is_more_tokens_than_in_a_sentence(engine_on):
    timings = measure_prefill(engine_on(KnowsWordsBehindASpace()), (0, 64), (16, 128), repeats=9)
    assert timings.cached_tokens == (0, 64)
    assert timings.medians[1] == pytest.approx((linear_prefill(64, 16), linear_prefill(64, 128)))


def test_a_cache_that_fills_up_is_warmed_again(engine_on):
    engine = engine_on(MemoryBackend(device_blocks=20))
    timings = measure_prefill(engine, (0, 64), (16, 128), repeats=9)
    assert timings.medians[1] == pytest.approx((linear_prefill(64, 16), linear_prefill(64, 128)))


def test_a_cache_that_keeps_losing_what_is_measured_is_an_error(engine_on, monkeypatch):
    def only_says_so(engine, prompts, wanted: int) -> int:
        prompts.begin_anew(wanted)
        engine.clear_cache()
        return wanted

    monkeypatch.setattr("ragcache_cli.prefill_profile._really_cached", only_says_so)
    with pytest.raises(CommandError, match="of 80 tokens 64 should be cached, and 0 were"):
        measure_prefill(engine_on(MemoryBackend()), (64,), (16, 32), repeats=1)


def test_the_first_timing_of_each_length_is_thrown_away(engine_on):
    seen: set[int] = set()

    def compiles_first(cached: int, computed: int) -> float:
        first = computed not in seen
        seen.add(computed)
        return 100.0 if first else linear_prefill(cached, computed)

    engine = engine_on(MemoryBackend(prefill_s=compiles_first))
    timings = measure_prefill(engine, (0, 64), (48, 96), repeats=1)
    assert max(map(max, timings.medians)) < 1


def test_progress_ends_where_it_said_it_would(engine_on):
    steps: list[tuple[int, int]] = []
    engine = engine_on(MemoryBackend())
    measure_prefill(engine, (0, 64), (16, 32), 2, lambda count, total: steps.append((count, total)))
    assert steps == sorted(steps)
    assert steps[-1] == (240, 240)


def test_repeats_that_differ_much_come_with_a_warning():
    made = CostProfile("m", "", "", "", 16, (0, 64), (16, 32), ((1.0, 2.0), (1.5, 3.0)))
    cell = (1.0, 1.0, 1.1)
    steady = Timings((0, 64), (16, 32), ((cell, cell), (cell, cell)))
    assert summary(made, steady)[-1] == "Repeats differed by ±5%."
    cell = (1.0, 1.0, 3.0)
    unsteady = Timings((0, 64), (16, 32), ((cell, cell), (cell, cell)))
    assert "measure again" in summary(made, unsteady)[-1]
