"""What accesses give away, shared, tells no score of a row to who knows all others."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from audited import conclude
from made_reports import made_report

from spark_audit.audits.base import Context
from spark_audit.audits.doors.accesses import DOOR_NAMES
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.results.evidence import Evidence


def doors_of(level: np.ndarray, luck: np.ndarray) -> dict[str, np.ndarray]:
    """What each access sees of rows whose mean log-probability is known."""
    scores = {}
    for door, noise in zip(DOOR_NAMES, luck, strict=True):
        # Rounding moves a mean a little, and other scores are another look at it.
        spread = {"0.01": 0.002, "0.1": 0.02}.get(door.partition("_")[2], 0.3)
        scores[door] = level + spread * noise * (door != "logprobs")
    return scores


def told_by(doors: dict[str, np.ndarray], units: pd.DataFrame) -> list[Any]:
    """All figures of a checkpoint's accesses as shared files hold them."""
    unknown = np.full(len(units), np.nan)
    values = [("a", {**doors, "texts": unknown})]
    result = conclude("doors", Evidence.of(units, values), Context(replicates=5))
    shared = disclosed(made_report("a", results=result.results))
    return [(row.value, row.low, row.high, row.mde) for row in shared.results]


@pytest.mark.parametrize(
    "sides",
    [
        [(60, 50), (45, 50), (80, 50)],
        # A row of the smaller side moves an AUC more.
        [(22, 200), (22, 200), (25, 400)],
    ],
    ids=["alike", "unequal"],
)
def test_all_accesses_together_do_not_tell_the_score_of_a_row(sides):
    """To whoever knows all other rows: a tenth of its guesses still fit, or more.

    ``sides``: numbers of members, of which one row is guessed, and of others.
    """
    guesses = 25
    shares = []
    for seed, (members, others) in enumerate(sides):
        rng = np.random.default_rng(seed)
        n = members + others
        units = pd.DataFrame(
            {
                "example": [f"r{i}" for i in range(n)],
                "task": "t",
                "cluster": [f"c{i}" for i in range(n)],
                "member": np.arange(n) < members,
                "dose": np.nan,
            }
        )
        level = rng.normal(-3, 0.7, n)
        luck = rng.normal(size=(len(DOOR_NAMES), n))
        told = told_by(doors_of(level, luck), units)
        fits = 0
        for guess in np.quantile(level, np.linspace(0.02, 0.98, guesses)):
            guessed = np.where(np.arange(n) == 0, guess, level)
            fits += told_by(doors_of(guessed, luck), units) == told
        shares.append(fits / guesses)
    assert np.mean(shares) > 0.1
