"""Which cases of a bulk run always, where all of them go through the same code."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def fast_and_slow(cases: Iterable[Any], *, fast: Collection[Any]) -> list[Any]:
    """Return all cases as parameters; those that are not in ``fast`` are slow.

    ``pytest -m slow`` runs the slow ones.
    """
    parameters = []
    n_fast = 0
    for case in cases:
        is_fast = case in fast
        n_fast += is_fast
        values = case if isinstance(case, tuple) else (case,)
        marks = () if is_fast else (pytest.mark.slow,)
        parameters.append(pytest.param(*values, marks=marks))
    assert n_fast == len(fast), "a case that is to run always is not among the cases"
    return parameters
