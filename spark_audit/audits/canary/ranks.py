"""Canaries with their ranks, and which of them are resolved.

Frames here hold one row a canary of one checkpoint and part, with the columns ``rank``
(ties counted behind), ``ties``, ``mid`` (mid-rank), ``exposure`` and ``lower_tail``
(bits), ``nll``, ``dose``, ``held_out``, ``n_candidates``. Figures and p values give a
tie what it would get on average if it were broken at random; bounds of epsilon count it
against the attacker.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from spark_audit.data.canaries import RANKED
from spark_audit.errors import InputError
from spark_audit.stats.chance_ranks import TopK, top_k
from spark_audit.stats.exposure import exposure_bits, lower_tail_exposure

MOST_TIED = 0.9
COLLAPSED = "a collapsed model or logits of too little precision"
IN_EXPECTATION = "they count as on average over random orders"


def ranked(evidence: pd.DataFrame, kind: str = "canary") -> pd.DataFrame:
    """The evidence's ranks of one kind with their exposures."""
    frame = evidence[evidence["kind"] == kind]
    size = frame["n_candidates"].to_numpy()
    if len(set(size.tolist())) > 1:
        raise InputError(
            "canaries have candidate sets of different sizes",
            fix="audit them against one manifest",
        )
    rank, ties = frame["rank"].to_numpy(), frame["ties"].to_numpy()
    if not len(frame):
        return frame.assign(mid=0.0, exposure=0.0, lower_tail=0.0)
    return frame.assign(
        mid=rank + ties / 2,
        exposure=exposure_bits(rank, size, ties=ties),
        lower_tail=lower_tail_exposure(rank, size, ties=ties),
    )


def unresolved(frame: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Checkpoint and part of which nothing can be ranked -> why.

    So it is where none of the canaries is :func:`resolved`: one that is might be the
    one that was remembered.
    """
    found = {}
    for name, part, chosen in by_part(frame):
        if not resolved(chosen).any():
            whole = (chosen["ties"] == chosen["n_candidates"] - 1).all()
            which = "all" if whole else "nearly all"
            found[name, part] = f"{which} candidates are tied: {COLLAPSED}"
    return found


def resolved(frame: pd.DataFrame) -> pd.Series[bool]:
    """Whether a canary is tied with fewer than :data:`MOST_TIED` of its candidates."""
    return frame["ties"] < MOST_TIED * (frame["n_candidates"] - 1)


def tied_note(frame: pd.DataFrame) -> str:
    """What is said where ties are broken; empty where there is none."""
    tied = int(np.count_nonzero(frame["ties"]))
    if not tied:
        return ""
    return f"{tied} of {len(frame)} are tied with other candidates: {IN_EXPECTATION}"


def trained(frame: pd.DataFrame) -> pd.DataFrame:
    """Canaries that stand in train rows."""
    return frame[(frame["dose"] > 0) & ~frame["held_out"].astype(bool)]


def held_out(frame: pd.DataFrame) -> pd.DataFrame:
    """Canaries that no model was trained on."""
    return frame[frame["held_out"].astype(bool)]


def by_part(frame: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Checkpoint, part and rows, in the order of the evidence."""
    for name in dict.fromkeys(frame["checkpoint"]):
        of_name = frame[frame["checkpoint"] == name]
        for part in RANKED:
            chosen = of_name[of_name["part"] == part]
            if len(chosen):
                yield str(name), part, chosen


def changes(
    frame: pd.DataFrame, base: pd.DataFrame, column: str
) -> tuple[np.ndarray, list[str]]:
    """Per-canary difference of a column, of canaries that both have."""
    ours, theirs = (f.set_index("canary_id")[column] for f in (frame, base))
    both = [name for name in ours.index if name in theirs.index]
    return (ours[both] - theirs[both]).to_numpy(np.float64), both


def hits_of(frame: pd.DataFrame, *, k: int) -> TopK:
    """Canaries among the first k, held against chance."""
    return top_k(
        frame["rank"].to_numpy(),
        k=k,
        n_candidates=int(frame["n_candidates"].iloc[0]),
        ties=frame["ties"].to_numpy(),
    )
