import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from ragcache_cli.demo_report import draw, remark_if_all_fits, summary, table, write_figures
from ragcache_cli.machine import Machine
from ragcache_cli.measurements import Asked, Run, same_answers, same_prompts
from ragcache_engine import CachedTokens

MACHINE = Machine("3.11.7", "Linux", 2, 8 << 30, 4 << 30, 1 << 30)


def run(name: str, ttfts_s: list[float], cached: list[CachedTokens], answers: list[str]) -> Run:
    rows = zip(ttfts_s, cached, answers, strict=True)
    return Run(
        name,
        tuple(
            Asked(f"Question number {n}?", f"prompt {n}", answer, ttft_s, 1000 + n, tokens)
            for n, (ttft_s, tokens, answer) in enumerate(rows, 1)
        ),
    )


STOCK = run("stock", [1.0, 2.0, 0.5], [CachedTokens()] * 3, ["a", "b", "c"])
OTHERS = [
    run("langchain", [0.5, 0.25, 0.5], [CachedTokens(device=960)] * 3, ["a", "b", "c"]),
    run("llamaindex", [4.0, 2.0, 1.0], [CachedTokens(64, 32, 16)] * 3, ["a", "x", "c"]),
]


def printed(width: int = 120) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table(STOCK, OTHERS, width))
    return console.export_text()


def row(text: str, first: str) -> list[str]:
    """The cells of the line that begins so, its words apart."""
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [first])


def test_a_row_has_the_times_the_tokens_by_tier_and_whether_the_answers_agree():
    words = ["Question", "number", "2?"]
    times, cached = ["2.00", "0.25", "2.00"], ["0", "960", "64/32/16"]
    assert row(printed(), "2") == ["2", *words, *times, "1,002", *cached, "yes", "no"]


def test_the_totals_are_right():
    text = printed()
    assert row(text, "mean") == ["mean", "1.17", "0.42", "2.33"]
    assert row(text, "median") == ["median", "1.00", "0.50", "2.00"]
    times, cached = ["3.50", "1.25", "7.00"], ["0", "2,880", "192/96/48"]
    assert row(text, "sum") == ["sum", *times, "3,006", *cached, "3/3", "2/3"]


@pytest.mark.parametrize("width", [80, 100, 106, 200])
def test_a_narrow_terminal_loses_words_and_no_figure(width):
    text = printed(width)
    assert row(text, "2")[-9:] == [
        *["2.00", "0.25", "2.00"],
        "1,002",
        *["0", "960", "64/32/16"],
        *["yes", "no"],
    ]
    assert all(len(line) <= width for line in text.splitlines())


def test_the_summary_says_faster_and_slower_as_it_is():
    faster, slower = summary(STOCK, OTHERS)
    assert "2.80 times as fast" in faster
    assert "3 of 3 answers as stock" in faster
    assert "2.00 times as slow" in slower
    assert "2 of 3 answers as stock" in slower


def test_a_demo_that_fits_the_device_cache_says_that_stock_vllm_does_as_well():
    needed = STOCK.prompt_tokens + 60
    assert "fit the device cache" in (remark_if_all_fits(STOCK, 60, needed) or "")
    assert remark_if_all_fits(STOCK, 60, needed - 1) is None


def test_answers_and_prompts_are_compared_to_the_character():
    assert same_answers(OTHERS[1], STOCK) == [True, False, True]
    assert same_prompts([STOCK, *OTHERS])
    assert not same_prompts([STOCK, Run("other", STOCK.asked[:2])])


def test_the_picture_is_a_png_of_readable_size(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "ttft.png"
    draw(STOCK, OTHERS, path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    assert width >= 1000
    assert height >= 300


def test_the_raw_figures_hold_every_question_the_machine_and_the_versions(tmp_path: Path):
    path = tmp_path / "demo.json"
    write_figures(
        path, [STOCK, *OTHERS], MACHINE, {"torch": "2"}, {"dtype": "auto"}, {"Start": 1.23456}
    )
    content = json.loads(path.read_text())
    assert content["machine"]["cores"] == 2
    assert content["versions"] == {"torch": "2"}
    assert content["phases_s"] == {"Start": 1.235}
    assert [r["same_answers_as_first_run"] for r in content["runs"]] == [3, 3, 2]
    assert content["runs"][1]["asked"][0]["cached"] == {"device": 960, "host": 0, "disk": 0}
