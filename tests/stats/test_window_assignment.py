import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from spark_audit.stats.window_assignment import (
    Choices,
    Pick,
    assign_disjoint,
    best_windows,
)


def choices_of(*spans: tuple[int, dict[int, int]]) -> list[Choices]:
    """``(length, {start: cost})`` a span."""
    return [
        Choices(
            length,
            np.array(sorted(costs), dtype=np.int64),
            np.array([costs[s] for s in sorted(costs)], dtype=np.int64),
        )
        for length, costs in spans
    ]


def random_choices(
    rng: np.random.Generator,
    *,
    spans: int,
    tokens: int,
    windows: int,
    largest: int,
) -> list[Choices]:
    out = []
    for _ in range(spans):
        length = int(rng.integers(1, 5))
        starts = np.arange(tokens - length + 1)
        n = int(rng.integers(0, min(windows, len(starts)) + 1))
        starts = np.sort(rng.choice(starts, n, replace=False))
        out.append(Choices(length, starts, rng.integers(0, largest + 1, n)))
    return out


def tokens_of(picks: Sequence[Pick | None], choices: Sequence[Choices]) -> list[int]:
    return [
        token
        for window, choice in zip(picks, choices, strict=True)
        if window is not None
        for token in range(window[0], window[0] + choice.length)
    ]


def value(picks: Sequence[Pick | None]) -> tuple[int, int]:
    """What is optimised first: spans without a window, cost."""
    return picks.count(None), sum(window[1] for window in picks if window is not None)


def whole_order(picks: Sequence[Pick | None]) -> tuple[object, ...]:
    """The documented order, ties and all."""
    mask = [window is not None for window in reversed(picks)]
    starts = [0 if window is None else window[0] for window in picks]
    return (*value(picks), mask, starts)


def by_brute_force(choices: Sequence[Choices]) -> list[Pick | None]:
    options = [
        [None, *zip(choice.starts.tolist(), choice.costs.tolist(), strict=True)]
        for choice in choices
    ]
    valid = []
    for picks in itertools.product(*options):
        used = tokens_of(picks, choices)
        if len(used) == len(set(used)):
            valid.append(list(picks))
    return min(valid, key=whole_order)


# The largest cost: 2 makes ties everywhere, the last makes them rare.
@pytest.mark.parametrize("largest", [0, 2, 10, 10**6])
@pytest.mark.parametrize(
    ("spans", "tokens", "windows", "cases"),
    [(2, 8, 7, 60), (3, 14, 8, 80), (4, 12, 5, 60)],
)
def test_equals_brute_force_in_every_tie(spans, tokens, windows, cases, largest):
    rng = np.random.default_rng([spans, tokens, 1, largest])
    for _ in range(cases):
        choices = random_choices(
            rng, spans=spans, tokens=tokens, windows=windows, largest=largest
        )
        assert assign_disjoint(choices) == by_brute_force(choices)


def test_groups_change_nothing_about_the_assignment(monkeypatch):
    """Solving all spans as one group gives what merging on demand gives."""
    rng = np.random.default_rng(5)
    for case in range(120):
        choices = random_choices(
            rng, spans=5, tokens=30, windows=26, largest=(1, 5, 10**6)[case % 3]
        )
        choices = [choice for choice in choices if len(choice.starts)]
        if not choices:
            continue
        picks = assign_disjoint(choices)
        assert picks == best_windows(choices)


def test_more_than_twelve_competing_spans_share_what_there_is():
    # 14 spans want the same 15 tokens.
    choices = choices_of(*[(1, {start: start for start in range(15)})] * 14)
    picks = assign_disjoint(choices)
    used = tokens_of(picks, choices)
    assert len(used) == len(set(used))
    assert value(picks) == (0, 91)
    # One too many: 13 windows for 14 spans.
    choices = choices_of(*[(1, {start: start for start in range(13)})] * 14)
    assert value(assign_disjoint(choices)) == (1, 78)


def test_crowds_of_spans_share_no_token():
    """Beyond twelve no optimum is promised, but nearly all windows that there are."""
    rng = np.random.default_rng(17)
    choices = random_choices(rng, spans=30, tokens=60, windows=40, largest=10**6)
    picks = assign_disjoint(choices)

    used = tokens_of(picks, choices)
    assert len(used) == len(set(used))
    assert len(used) > 40
    for window, choice in zip(picks, choices, strict=True):
        admissible = [*zip(choice.starts, choice.costs, strict=True)]
        assert window is None or window in admissible
