import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from demo_lines import foreign_lines
from rich.console import Console

from ragcache_cli.chain_comparison import AGAIN as AGAIN_TITLE
from ragcache_cli.chain_comparison import KEPT
from ragcache_cli.chain_comparison import NEW as NEW_TITLE
from ragcache_cli.demo_report import draw, next_steps, summary, table, write_figures
from ragcache_cli.machine import Machine
from ragcache_cli.main import parser
from ragcache_cli.measurements import (
    Asked,
    PassageSource,
    Round,
    Run,
    Side,
    mean_likeness,
    mostly_from_disk,
    same_answers,
    same_prompts,
)
from ragcache_cli.side_by_side import show_question
from ragcache_engine import CachedTokens, Warmed

MACHINE = Machine("3.11.7", "Linux", 2, 8 << 30, 4 << 30, 1 << 30)


def run(name: str, ttfts_s: list[float], reused: list[CachedTokens], answers: list[str]) -> Run:
    rows = zip(ttfts_s, reused, answers, strict=True)
    asked = [
        Asked(f"Question number {n}?", f"prompt {n}", answer, ttft_s, 1000, tokens)
        for n, (ttft_s, tokens, answer) in enumerate(rows, 1)
    ]
    if name == Side.ANYWHERE:
        asked = [replace(one, cached=CachedTokens(), borrowed=one.cached) for one in asked]
    return Run(name, tuple(asked))


NEW = Round(
    "new questions",
    (
        run(Side.STOCK, [1.0, 2.0, 0.6], [CachedTokens()] * 3, ["a", "b c", "d"]),
        run(Side.EXACT, [1.0, 1.0, 0.25], [CachedTokens(device=300)] * 3, ["a", "b c", "d"]),
        run(Side.ANYWHERE, [0.5, 0.3, 0.1], [CachedTokens(500, 300, 100)] * 3, ["a", "b", "x"]),
    ),
)
AGAIN = Round(
    "the same again",
    (
        run(Side.STOCK, [1.0], [CachedTokens()], ["a"]),
        run(Side.EXACT, [0.1], [CachedTokens(host=960)], ["a"]),
        run(Side.ANYWHERE, [0.5], [CachedTokens(900)], ["a"]),
    ),
)


def printed(width: int = 120) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table([NEW, AGAIN], width))
    return console.export_text()


def rows(text: str, first: str) -> list[list[str]]:
    """The words of each line that begins so."""
    return [line.split() for line in text.splitlines() if line.split()[:1] == [first]]


def test_a_row_has_the_times_the_shares_reused_and_whether_the_answers_agree():
    words = ["Question", "number", "2?"]
    (second,) = rows(printed(), "2")
    times, shares = ["2.00", "1.00", "0.30"], ["0%", "30%", "90%"]
    assert second == ["2", *words, *times, "1,000", *shares, "yes", "no"]


def test_each_round_has_its_means_and_medians():
    new, again = rows(printed(), "mean,")
    assert new[-9:] == ["1.20", "0.75", "0.30", "1,000", "0%", "30%", "90%", "3/3", "1/3"]
    assert rows(printed(), "median") == [
        ["median", "1.00", "1.00", "0.30"],
        ["median", "1.00", "0.10", "0.50"],
    ]
    assert again[-9:] == ["1.00", "0.10", "0.50", "1,000", "0%", "96%", "90%", "1/1", "1/1"]


@pytest.mark.parametrize("width", [80, 88, 89, 200])
def test_the_means_are_named_where_there_is_room(width):
    words = printed(width).split()
    assert words.count("median") == 2
    assert sum(word.startswith("mean") for word in words) == 2


@pytest.mark.parametrize("width", [72, 80, 89, 100, 200])
def test_a_narrow_terminal_loses_words_and_no_figure(width):
    text = printed(width)
    (second,) = rows(text, "2")
    assert second[-9:] == [
        *["2.00", "1.00", "0.30"],
        "1,000",
        *["0%", "30%", "90%"],
        *["yes", "no"],
    ]
    assert all(len(line) <= width for line in text.splitlines())
    heads = "\n".join(text.splitlines()[1:4])
    assert all(heads.count(head) == 3 for head in ("TTFT s", "reused"))
    assert heads.count("equal") == 2


def test_three_sentences_say_how_much_sooner_how_many_equal_and_what_the_trade_is():
    sooner, equal, trade = summary(NEW, AGAIN, prefill_s=9.0)
    assert "0.30 s at any position, 4.0 times sooner than stock vLLM's 1.20 s" in sooner
    assert "0.75 s exactly, 1.6 times sooner than stock's" in sooner
    assert "0.10 s exactly, 10.0 times sooner than stock's 1.00 s" in sooner
    assert "4 of 4 exact answers" in equal
    assert "2 of 4 at any position" in equal
    assert "took 9 s to prefill, which 10 questions bring back" in trade
    assert all(sentence.count(". ") == 0 for sentence in (sooner, equal, trade))


def test_what_was_slower_is_called_later():
    stock, exact, anywhere = NEW.runs
    quick_stock = replace(stock, asked=tuple(replace(one, ttft_s=0.1) for one in stock.asked))
    slower = Round(NEW.title, (quick_stock, exact, anywhere))
    sooner, _, trade = summary(slower, AGAIN, prefill_s=9.0)
    assert "3.00 times later than stock vLLM's 0.10 s" in sooner
    assert "bring back" not in trade
    assert "at any position 0 of 3 questions gain, but" in trade


def test_the_trade_counts_the_questions_that_gain():
    assert "at any position every question gains, but" in summary(NEW, AGAIN, prefill_s=9.0)[2]
    stock, exact, anywhere = NEW.runs
    first, *rest = anywhere.asked
    slow_first = replace(anywhere, asked=(replace(first, ttft_s=1.5), *rest))
    trade = summary(replace(NEW, runs=(stock, exact, slow_first)), AGAIN, prefill_s=9.0)[2]
    assert "at any position 2 of 3 questions gain, but" in trade


def test_the_trade_says_where_exact_answers_gained_nothing_and_where_all_are_equal():
    stock, exact, anywhere = AGAIN.runs
    slow = replace(exact, asked=(replace(exact.asked[0], ttft_s=2.0),))
    trade = summary(AGAIN, replace(AGAIN, runs=(stock, slow, anywhere)), prefill_s=9.0)[2]
    assert "gained nothing here even where documents come again" in trade
    assert "approximate, though here the same" in trade


@pytest.mark.parametrize("title", [NEW_TITLE, KEPT, AGAIN_TITLE])
def test_the_demos_own_lines_are_known(title: str):
    console = Console(width=1000, record=True, file=io.StringIO())
    source = PassageSource("python#with:1", 120, borrowed=100, recomputed=20, tier="host")
    asked = replace(NEW.run(Side.ANYWHERE).asked[0], passages=(source, source))
    with show_question("1/3 Why?", [str(side) for side in Side], console) as shown:
        for side in Side:
            shown.ended(side, asked)
    console.print(table([replace(NEW, title=title), AGAIN], 1000))
    for line in (*summary(NEW, AGAIN, 9.0), *next_steps("ragcache", 0.1)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    assert foreign_lines(console.export_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "  warnings.warn(",
        '  File "/usr/lib/python3/site.py", line 1',
        "    return forward_call(*args, **kwargs)",
        "  leaked 3 instances!",
        " - leaked instance 0x7f",
        "WARNING 11-24 15:00:00 [cpu.py:12] something",
        "✓",
        "Loading safetensors checkpoint shards: 100% Completed | 1/1",
    ],
)
def test_a_line_of_somebody_elses_is_foreign(line: str):
    assert foreign_lines(f"✓ Loading libraries (3 s)\n{line}\n") == [line]


def test_what_to_try_next_are_commands_that_there_are():
    lines = next_steps("ragcache", 0.1)
    assert len(lines) > 3
    for line in lines:
        command = line.split("#")[0].replace('"YOUR QUESTION"', "Why?")
        assert parser().parse_args(command.split()[1:]).run


def test_a_run_that_finds_its_prompts_on_disk_is_told_from_a_first_one():
    kept = run(Side.EXACT, [0.1], [CachedTokens(device=100, disk=800)], ["a"])
    assert mostly_from_disk(kept)
    assert not mostly_from_disk(AGAIN.run(Side.EXACT))


def test_answers_and_prompts_are_compared_to_the_character():
    stock, exact, anywhere = NEW.runs
    assert same_answers(anywhere, stock) == [True, False, False]
    assert mean_likeness(exact, stock) == 1
    assert 0 < mean_likeness(anywhere, stock) < 1
    assert same_prompts(NEW.runs)
    assert not same_prompts([stock, Run("other", stock.asked[:2])])


def test_the_picture_is_a_png_of_readable_size(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "ttft.png"
    draw([NEW, AGAIN], path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    assert width >= 1000
    assert height >= 300


def test_the_raw_figures_hold_every_question_the_machine_and_the_versions(tmp_path: Path):
    path = tmp_path / "demo.json"
    write_figures(
        path,
        [NEW, AGAIN],
        Warmed(6, 900, 800),
        MACHINE,
        {"torch": "2"},
        {"dtype": "float32"},
        {"Start": 1.23456},
    )
    content = json.loads(path.read_text())
    assert content["machine"]["cores"] == 2
    assert content["versions"] == {"torch": "2"}
    assert content["phases_s"] == {"Start": 1.235}
    assert content["prefilled"]["computed_tokens"] == 800
    new = content["rounds"][0]["runs"]
    assert [figures["same_answers_as_stock"] for figures in new] == [3, 3, 1]
    assert new[1]["asked"][0]["cached"] == {"device": 300, "host": 0, "disk": 0}
