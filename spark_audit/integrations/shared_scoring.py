"""Score a model by all processes of a training together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from accelerate import PartialState

from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.integrations.processes import results_of_all
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass, TokenTable

PassScores = dict[Pass, TokenTable]
"""The scores of one checkpoint by each pass."""

ScoredItem = tuple[str, np.ndarray, Mapping[str, np.ndarray]]
"""Key, positions and columns of one item; the arrays have shape ``(tokens,)``."""


class ScoredBase(NamedTuple):
    """The base with which looks are compared, and its scores."""

    checkpoint: Checkpoint
    tables: PassScores


def score_together(
    loaded: Checkpoint, items_by_pass: Mapping[Pass, Sequence[Any]]
) -> PassScores:
    """Return the tables of all passes; each process scores a part of the items.

    Parameters
    ----------
    items_by_pass
        The same in all processes.
    """
    state = PartialState()
    # Of three processes, the first scores items 0, 3, 6 ...
    every_nth = slice(state.process_index, None, state.num_processes)

    def score_share() -> list[list[ScoredItem]]:
        """Return what this process has scored, a list for each pass."""
        share: list[list[ScoredItem]] = []
        for scoring_pass, items in items_by_pass.items():
            tables = score(loaded, items[every_nth], passes=[scoring_pass])
            share.append([*tables[scoring_pass].items()])
        return share

    share_by_process = results_of_all(score_share)

    # Every process puts the shares of all together, pass by pass.
    tables: PassScores = {}
    for index, scoring_pass in enumerate(items_by_pass):
        scored_items: list[ScoredItem] = []
        for share in share_by_process:
            scored_items += share[index]
        tables[scoring_pass] = TokenTable.from_items(
            scored_items, kind=scoring_pass.kind
        )
    return tables
