import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_audit.errors import InputError
from spark_audit.stats.matching import (
    OUTSIDE_CALIPER,
    MatchedPair,
    Matching,
    dilate,
    eligible_windows,
    match_spans,
    micro_nats,
    non_overlapping_windows,
    placebo_spans,
)
from spark_audit.stats.window_assignment import Choices, assign_disjoint

# A worked example: position 0 is not scored, PII at A = 1:3 and B = 6:8.
# fmt: off
NLL = [0, 2.0, 1.0, 3.0, .4, 2.2, 1.1, 2.8, .5, 5.0, 1.6, 1.5, 2.1, .9, 3.2, .2]
# fmt: on
A = (1, 3)
B = (6, 8)


def everything(tokens: int) -> np.ndarray:
    return np.ones(tokens, dtype=bool)


def worked() -> tuple[np.ndarray, np.ndarray]:
    unll = micro_nats(np.array(NLL))
    unll[0] = -1
    return unll, everything(16)


def test_micro_nats_round_half_to_even():
    got = micro_nats(np.array([0.0, 0.5e-6, 1.5e-6, 2.5e-6, 1.2345678, -1e-7]))
    assert got.dtype == np.int64
    assert got.tolist() == [0, 0, 2, 2, 1234568, 0]
    # float32 scores widen before they are scaled.
    assert micro_nats(np.array([0.1], dtype=np.float32)).tolist() == [100000]
    assert micro_nats(np.zeros((2, 0))).shape == (2, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -0.5, 1e9])
def test_micro_nats_refuse_what_is_no_nll(bad):
    with pytest.raises(InputError, match="^reference scores: 1 of 3 "):
        micro_nats(np.array([1.0, bad, 2.0]))


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 6))
def test_eligible_windows_equal_the_plain_loop(mask, length):
    plain = [s for s in range(len(mask) - length + 1) if all(mask[s : s + length])]
    eligible = np.array(mask, dtype=bool)
    got = eligible_windows(eligible, length)
    assert got.dtype == np.int64
    assert got.tolist() == plain


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 5))
def test_dilate_equals_the_plain_loop(mask, buffer):
    got = dilate(np.array(mask, dtype=bool), buffer)
    assert got.dtype == np.bool_
    assert got.tolist() == [
        any(mask[max(t - buffer, 0) : t + buffer + 1]) for t in range(len(mask))
    ]


@pytest.mark.parametrize("caliper_u", [500_000, 100_000])
def test_the_worked_example_has_its_optimum(caliper_u):
    matches = match_spans(*worked(), [A, B], caliper_u=caliper_u)
    assert matches == Matching(
        [MatchedPair(0, 10, 12, 100_000), MatchedPair(1, 13, 15, 200_000)], {}
    )


@pytest.mark.parametrize("base", [0, 10**12])
@pytest.mark.parametrize("length", [1, 3, 7])
def test_caliper_is_inclusive_to_the_last_micro_nat(base, length):
    """Sums beyond float32 and differences of one unit decide alike."""
    caliper_u = 123_457
    unll = np.full(2 * length, base, dtype=np.int64)
    unll[-1] += caliper_u * length
    spans = [(0, length)]
    eligible = everything(2 * length)
    matches = match_spans(unll, eligible, spans, caliper_u=caliper_u)
    assert matches.pairs == [MatchedPair(0, length, 2 * length, caliper_u * length)]
    unll[-1] += 1
    matches = match_spans(unll, eligible, spans, caliper_u=caliper_u)
    assert matches.unmatched == {0: OUTSIDE_CALIPER}


def test_a_control_shows_something():
    # Tokens 1 and 2 are blank: no control by themselves, but within one.
    unll = np.array([5, 5, 5, 9, 9], dtype=np.int64)
    shows = np.array([True, False, False, True, True])
    matches_of_one = match_spans(unll, everything(5), [(0, 1)], shows=shows)
    assert [(p.start, p.end) for p in matches_of_one.pairs] == [(3, 4)]
    two = match_spans(unll, everything(5), [(0, 2)], shows=shows)
    assert [(p.start, p.end) for p in two.pairs] == [(2, 4)]
    matches_alone = match_spans(unll[:3], everything(3), [(0, 1)], shows=shows[:3])
    assert matches_alone.unmatched == {0: "no eligible window of length 1"}


@st.composite
def examples(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]:
    tokens = draw(st.integers(1, 40))
    # Few distinct values make ties; -1 is a token without a score.
    values = draw(st.sampled_from([(-1, 0, 1, 2), (-1, 0, 250_000, 500_001, 10**6)]))
    unll = draw(st.lists(st.sampled_from(values), min_size=tokens, max_size=tokens))
    mask = draw(st.lists(st.booleans(), min_size=tokens, max_size=tokens))
    spans = []
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, tokens - 1))
        spans.append((start, draw(st.integers(start + 1, min(start + 4, tokens)))))
    return np.array(unll, dtype=np.int64), np.array(mask, dtype=bool), spans


def plainly(
    unll: np.ndarray,
    eligible: np.ndarray,
    spans: list[tuple[int, int]],
    *,
    caliper_u: int,
    distance: str,
    controls: str,
) -> tuple[dict[int, Choices], dict[int, str]]:
    """Candidates and reasons by loops over Python integers."""
    u = unll.tolist()
    pii = {t for start, end in spans for t in range(start, end)}
    choices = {}
    reasons = {}
    for i in sorted(range(len(spans)), key=lambda i: (*spans[i], i)):
        start, end = spans[i]
        length = end - start
        if min(u[start:end]) < 0:
            reasons[i] = "span not fully scored"
            continue
        reasons[i] = f"no eligible window of length {length}"
        admissible = {}
        for s in range(len(u) - length + 1):
            window = range(s, s + length)
            if not all(eligible[t] and u[t] >= 0 and t not in pii for t in window):
                continue
            if controls == "before" and s + length > start:
                continue
            if reasons[i].startswith("no"):
                reasons[i] = "none within caliper"
            mean = abs(sum(u[t] for t in window) - sum(u[start:end]))
            pairs = zip(sorted(u[start:end]), sorted(u[s : s + length]), strict=True)
            cost = mean if distance == "mean" else sum(abs(a - b) for a, b in pairs)
            if cost <= caliper_u * length:
                admissible[s] = cost
        if admissible:
            reasons[i] = "lost to another span"
            starts = np.array(sorted(admissible), dtype=np.int64)
            costs = np.array([admissible[s] for s in starts], dtype=np.int64)
            choices[i] = Choices(length, starts, costs)
    return choices, reasons


@settings(max_examples=300, deadline=None)
@given(
    examples(),
    st.sampled_from([0, 1, 250_000, 500_000]),
    st.sampled_from(["mean", "profile"]),
    st.sampled_from(["any", "before"]),
)
def test_matches_are_disjoint_and_those_of_a_plain_search(
    example, caliper_u, distance, controls
):
    unll, eligible, spans = example
    options: dict[str, Any] = {
        "caliper_u": caliper_u,
        "distance": distance,
        "controls": controls,
    }
    matches = match_spans(unll, eligible, spans, **options)
    choices, reasons = plainly(unll, eligible, spans, **options)

    used: set[int] = set()
    for pair in matches.pairs:
        assert not used & set(range(pair.start, pair.end))
        used |= set(range(pair.start, pair.end))
        choice = choices[pair.span]
        assert pair.end - pair.start == choice.length
        (position,) = np.flatnonzero(choice.starts == pair.start)
        assert pair.cost == choice.costs[position]
    assert all(eligible[t] and unll[t] >= 0 for t in used)
    assert not used & {t for start, end in spans for t in range(start, end)}

    counts = Counter(pair.span for pair in matches.pairs)
    assert max(counts.values(), default=0) <= 1
    assert [*matches.unmatched] == sorted(set(range(len(spans))) - {*counts})
    assert all(why == reasons[i] for i, why in matches.unmatched.items())

    picks = assign_disjoint(list(choices.values()))
    expected = [
        (i, window[0], window[1])
        for i, window in zip(choices, picks, strict=True)
        if window is not None
    ]
    assert [(p.span, p.start, p.cost) for p in matches.pairs] == sorted(expected)


@pytest.mark.parametrize("distance", ["mean", "profile"])
def test_long_examples_stay_small(distance):
    rng = np.random.default_rng(3)
    tokens = 20_000
    length = 2_000
    unll = micro_nats(rng.gamma(1, 2, tokens))
    spans = [(0, length), (9_000, 9_000 + length), (15_000, 15_003)]
    tracemalloc.start()
    matches = match_spans(unll, everything(tokens), spans, distance=distance)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(matches.pairs) == 3
    # All windows of the long spans at once would take 2 x 13 000 x 2 000 x 8 bytes.
    assert peak < 64 * 2**20


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5))
def test_non_overlapping_windows_equal_the_plain_loop(mask, length):
    plain = []
    t = 0
    while t + length <= len(mask):
        if all(mask[t : t + length]):
            plain.append(t)
            t += length
        else:
            t += 1
    got = non_overlapping_windows(np.array(mask, dtype=bool), length)
    assert got.dtype == np.int64
    assert got.tolist() == plain


@given(examples(), st.lists(st.integers(1, 6), max_size=5), st.integers(0, 9))
def test_placebo_spans_are_free_and_repeatable(example, lengths, seed):
    unll, eligible, _ = example
    wanted = [(0, length) for length in lengths]
    spans = placebo_spans(unll, eligible, wanted, np.random.default_rng(seed))
    tokens = [t for start, end in spans for t in range(start, end)]
    assert len(tokens) == len(set(tokens))
    assert all(eligible[t] and unll[t] >= 0 for t in tokens)
    drawn = iter(lengths)
    # The windows stand in the order of their lengths.
    assert all(any(end - start == n for n in drawn) for start, end in spans)
    again = placebo_spans(unll, eligible, wanted, np.random.default_rng(seed))
    assert again == spans
