"""The cost profile: T between and beyond what was measured, as a file, and what is decided by it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ragcache_engine.knowledge import CostProfile, UnusableProfile
from ragcache_engine.knowledge.cost import blocks_to_load


def profile_of(
    seconds, cached: tuple[int, ...] = (0, 100), computed: tuple[int, ...] = (10, 20, 40)
) -> CostProfile:
    return CostProfile(
        model="org/model",
        dtype="bfloat16",
        hardware="a machine",
        vllm_version="0.32.0",
        block_tokens=16,
        cached_tokens=cached,
        computed_tokens=computed,
        seconds=tuple(map(tuple, seconds)),
    )


MEASURED = profile_of([[1.0, 2.0, 4.0], [2.0, 4.0, 9.0]])


@st.composite
def grids(draw, rising: bool = False) -> CostProfile:
    lengths = st.integers(0, 5000)
    cached = draw(st.sets(lengths, min_size=1, max_size=4))
    computed = draw(st.sets(lengths, min_size=2, max_size=5))
    rows = []
    for _ in cached:
        row = draw(st.lists(st.floats(0, 100), min_size=len(computed), max_size=len(computed)))
        rows.append(sorted(row) if rising else row)
    return profile_of(rows, tuple(sorted(cached)), tuple(sorted(computed)))


# -- T ---------------------------------------------------------------------------------------------


@given(grids())
@pytest.mark.slow
def test_at_the_measured_points_it_says_what_was_measured(profile):
    for cached, row in zip(profile.cached_tokens, profile.seconds, strict=True):
        for computed, seconds in zip(profile.computed_tokens, row, strict=True):
            assert profile.prefill_s(cached, computed) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(
    ("cached", "computed", "seconds"),
    [
        (0, 15, 1.5),
        (50, 10, 1.5),
        (50, 15, 2.25),  # the mean of 1, 2, 2 and 4
        (25, 25, 0.75 * 2.5 + 0.25 * 5.25),
    ],
)
def test_between_the_points_it_is_bilinear(cached, computed, seconds):
    assert MEASURED.prefill_s(cached, computed) == pytest.approx(seconds)


@given(grids(), st.data())
@pytest.mark.slow
def test_between_four_points_it_is_between_their_times(profile, data):
    assume(len(profile.cached_tokens) > 1)
    row = data.draw(st.integers(0, len(profile.cached_tokens) - 2))
    column = data.draw(st.integers(0, len(profile.computed_tokens) - 2))
    cached = data.draw(st.integers(*profile.cached_tokens[row : row + 2]))
    computed = data.draw(st.integers(*profile.computed_tokens[column : column + 2]))
    corners = [
        time for line in profile.seconds[row : row + 2] for time in line[column : column + 2]
    ]
    time = profile.prefill_s(cached, computed)
    assert min(corners) - 1e-9 <= time <= max(corners) + 1e-9


@pytest.mark.parametrize(
    ("cached", "computed", "seconds"),
    [
        (0, 80, 8.0),
        (200, 10, 3.0),
        (200, 80, 14.0 + 2 * (14.0 - 6.0)),
        (0, 5, 0.5),
        (0, 0, 0.0),
    ],
)
def test_past_the_edges_it_goes_on_in_a_straight_line(cached, computed, seconds):
    assert MEASURED.prefill_s(cached, computed) == pytest.approx(seconds)


def test_computing_nothing_costs_what_a_step_costs_at_least():
    assert profile_of([[1.1, 1.2, 1.4]], cached=(0,)).prefill_s(0, 0) == pytest.approx(1.0)


def test_a_slope_that_falls_is_not_carried_on_past_the_edge():
    noisy = profile_of([[1.0, 2.0, 1.5], [0.5, 1.0, 1.2]])
    assert noisy.prefill_s(0, 4000) == pytest.approx(1.5)
    assert noisy.prefill_s(9000, 10) == pytest.approx(0.5)


def test_columns_that_rise_at_different_rates_do_not_cross_past_the_edge():
    crossing = profile_of([[1.0, 5.0], [4.0, 5.0]], computed=(10, 20))
    assert crossing.prefill_s(500, 10) == crossing.prefill_s(500, 20)


@given(grids(), st.integers(0, 200_000), st.integers(0, 200_000))
def test_it_is_never_negative(profile, cached, computed):
    assert profile.prefill_s(cached, computed) >= 0


@given(grids(rising=True), st.integers(0, 20_000), st.integers(0, 20_000), st.integers(0, 5000))
@pytest.mark.slow
def test_it_never_falls_with_more_to_compute_where_the_measurements_do_not(
    profile, cached, computed, more
):
    less_s = profile.prefill_s(cached, computed)
    assert profile.prefill_s(cached, computed + more) >= less_s * (1 - 1e-9) - 1e-9


def test_before_any_measurement_it_is_linear_in_the_tokens_and_quadratic_in_the_attention():
    default = CostProfile.default()
    for cached in (0, 700, 4096, 20_000):
        for computed in (0, 64, 1024, 8192):
            formula = 1e-4 * computed + 1e-8 * computed * (cached + computed / 2)
            assert default.prefill_s(cached, computed) == pytest.approx(formula)
    assert default.prefill_s(100, 1500) == pytest.approx(1e-4 * 1500 + 1e-8 * 1500 * 850, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cached_tokens": ()}, "at least one cached and two computed"),
        ({"computed_tokens": (10,)}, "at least one cached and two computed"),
        ({"computed_tokens": (10, 10, 20)}, "lengths rise"),
        ({"cached_tokens": (-1, 10)}, "lengths rise"),
        ({"seconds": ((1.0, 2.0, 3.0),)}, "one time for each pair"),
        ({"seconds": ((1.0, 2.0), (1.0, 2.0))}, "one time for each pair"),
        ({"seconds": ((1.0, 2.0, 3.0), (1.0, 2.0, -3.0))}, "not negative"),
        ({"seconds": ((1.0, 2.0, 3.0), (1.0, 2.0, float("nan")))}, "finite"),
        ({"block_tokens": 0}, "at least one token"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        replace(MEASURED, **changes)


# -- as a file -------------------------------------------------------------------------------------


@given(grids())
@pytest.mark.slow
def test_what_is_written_is_read_again(profile):
    assert CostProfile.from_json(profile.to_json()) == profile


def test_a_date_is_kept_if_there_is_one_and_left_out_if_not():
    assert "measured_on" not in json.loads(MEASURED.to_json())
    dated = replace(MEASURED, measured_on="2026-01-31")
    assert CostProfile.from_json(dated.to_json()) == dated


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(MEASURED.to_json(), encoding="utf-8")
    return path


def test_a_profile_of_the_same_model_is_loaded(file):
    assert CostProfile.load(file, model="org/model") == MEASURED
    loaded = CostProfile.load(
        file, model="org/model", dtype="bfloat16", hardware="a machine", vllm_version="0.32.0"
    )
    assert loaded == MEASURED


@pytest.mark.parametrize("name", ["model", "dtype", "hardware", "vllm_version"])
def test_a_profile_of_something_else_is_refused_with_what_to_do(file, name):
    with pytest.raises(UnusableProfile, match=f"on {name} .*'other'.*`ragcache profile`"):
        CostProfile.load(file, **{"model": "org/model", name: "other"})


def without(key: str) -> str:
    return json.dumps({k: v for k, v in json.loads(MEASURED.to_json()).items() if k != key})


def with_(**changes) -> str:
    return json.dumps(json.loads(MEASURED.to_json()) | changes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        MEASURED.to_json()[:-20],
        "[1, 2]",
        '"ragcache-cost-profile"',
        '{"format": "something else", "version": 1}',
        "[" * 100_000,
        with_(version=2),
        with_(model=None),
        with_(block_tokens="16"),
        with_(block_tokens=True),
        with_(cached_tokens=7),
        with_(cached_tokens=[0, 1.5]),
        with_(seconds=[[1, 2, 3], 4]),
        with_(seconds=[[1, 2, 3], [1, 2, "x"]]),
        with_(seconds=[[1, 2, 3], [1, 2, float("inf")]]),
        with_(seconds=[[1, 2, 3], [1, 2, 10**400]]),
        with_(measured_on=5),
        *(without(key) for key in ("format", "version", "model", "seconds", "computed_tokens")),
    ],
)
def test_damaged_and_foreign_json_is_refused_with_what_to_do(file, text):
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UnusableProfile, match=r"profile\.json: .*`ragcache profile`"):
        CostProfile.load(file, model="org/model")


def test_bytes_that_are_no_text_are_refused_too(file):
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UnusableProfile, match="not a cost profile"):
        CostProfile.load(file, model="org/model")


# -- load or recompute -----------------------------------------------------------------------------


ONE_MS_A_TOKEN = profile_of([[0.01, 0.02, 0.04]], cached=(0,))


def to_load(bandwidth: float, latency_s: float = 0.0, profile: CostProfile = ONE_MS_A_TOKEN) -> int:
    """Of 100 tokens in blocks of 10 tokens and 1,000 bytes, 80 could be loaded."""
    return blocks_to_load(
        profile,
        cached_tokens=0,
        computed_tokens=100,
        loadable_blocks=8,
        block_tokens=10,
        block_bytes=1000,
        bandwidth_bytes_per_s=bandwidth,
        latency_s=latency_s,
    )


def test_all_is_loaded_where_loading_is_quicker_and_nothing_where_it_is_not():
    assert to_load(bandwidth=101_000) == 8  # a block takes 9.9 ms to load, 10 ms to compute
    assert to_load(bandwidth=99_000) == 0


def test_a_latency_can_outweigh_what_is_saved():
    assert to_load(bandwidth=200_000, latency_s=0.03) == 8  # it saves 40 ms
    assert to_load(bandwidth=200_000, latency_s=0.05) == 0


def test_where_a_short_rest_is_computed_for_nothing_only_the_others_are_loaded():
    flat_to_50 = profile_of([[0.01, 0.01, 0.06]], cached=(0,), computed=(10, 50, 100))
    assert to_load(bandwidth=200_000, profile=flat_to_50) == 5


def test_more_than_there_is_to_compute_cannot_be_loaded():
    with pytest.raises(ValueError, match="more tokens to load"):
        blocks_to_load(
            ONE_MS_A_TOKEN,
            cached_tokens=0,
            computed_tokens=15,
            loadable_blocks=2,
            block_tokens=10,
            block_bytes=1,
            bandwidth_bytes_per_s=1.0,
        )


def loading(
    profile: CostProfile, cached: int, loadable: int, rest: int, bandwidth: float, latency: float
) -> tuple[int, Callable[[int], float]]:
    """Return how many blocks of 16 tokens to load, and after how many seconds a number is done."""
    computed = loadable * 16 + rest

    def done_s(blocks: int) -> float:
        load_s = latency + blocks * 1000 / bandwidth if blocks else 0.0
        return load_s + profile.prefill_s(cached + blocks * 16, computed - blocks * 16)

    blocks = blocks_to_load(
        profile,
        cached_tokens=cached,
        computed_tokens=computed,
        loadable_blocks=loadable,
        block_tokens=16,
        block_bytes=1000,
        bandwidth_bytes_per_s=bandwidth,
        latency_s=latency,
    )
    return blocks, done_s


@given(
    grids(rising=True),
    st.integers(0, 3000),
    st.integers(0, 200),
    st.integers(1, 100),
    st.floats(1e3, 1e9),
    st.floats(0, 1),
)
def test_a_request_never_gets_slower_by_loading(
    profile, cached, loadable, rest, bandwidth, latency
):
    blocks, done_s = loading(profile, cached, loadable, rest, bandwidth, latency)
    assert 0 <= blocks <= loadable
    assert done_s(blocks) <= min(done_s(0), done_s(loadable)) + 1e-9


@given(st.integers(0, 3000), st.integers(1, 100), st.floats(1e4, 1e9), st.floats(0, 0.1))
def test_where_tokens_get_dearer_behind_more_of_them_no_other_number_ends_sooner(
    cached, loadable, bandwidth, latency
):
    blocks, done_s = loading(CostProfile.default(), cached, loadable, 50, bandwidth, latency)
    assert done_s(blocks) <= min(map(done_s, range(loadable + 1))) + 1e-9
