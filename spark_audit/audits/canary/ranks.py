"""Frames of ranked canaries: their columns, and how to select and count them.

Frames of this folder have one line per checkpoint, canary and part, or per context of
these. :func:`ranked` makes them from the evidence; the others below take such frames,
or the columns that they name. Tests of these ranks are in
:mod:`~spark_audit.audits.canary.chance_tests`.

===================  ================================================================
column               meaning
===================  ================================================================
checkpoint           name of the checkpoint
canary_id, part      the canary, and ``full``, ``password`` or ``ssn`` of it
format               format that the canary was drawn in
dose                 train rows that hold the canary; 0 for a held-out one
held_out             whether no model was trained on the canary
n_candidates         candidates that the canary is ranked among, itself included
rank                 its rank, 1 is the likeliest; ties count behind
ties                 other candidates with exactly its NLL
mid_rank             mean rank over random orders of the ties
exposure             bits, ``log2(n_candidates) - log2(rank)``
lower_tail           bits, the same counted from the last rank
===================  ================================================================

Ranks near 1 have a high ``exposure`` (the model remembers the canary), ranks near the
last one a high ``lower_tail`` (the model was made to forget it).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from spark_audit.data.canaries import RANKED
from spark_audit.errors import InputError
from spark_audit.names import BASE
from spark_audit.stats import canary_ranks

CONFIDENCE = 0.95
"""Confidence of every interval and test of this audit: p is significant up to 0.05."""

BY_CONTEXT = "annotation"
"""Ends the variant ``PART/annotation`` of a figure: ranks in each context, averaged."""

MOST_TIED = 0.9
"""A canary that is tied with at least this share of the candidates has no rank."""

TIED = (
    "nearly all candidates are tied: the model collapsed, or its logits have too "
    "little precision"
)


def ranked(evidence: pd.DataFrame, kind: str = "canary") -> pd.DataFrame:
    """Return the units of one kind, with the columns that this module lists.

    Parameters
    ----------
    evidence
        One line per checkpoint and unit that was scored, with the columns of
        :meth:`~spark_audit.audits.canary.audit.CanaryRank.evidence`.
    kind
        ``canary``: one rank per canary and part. ``context``: one per context too.

    Raises
    ------
    InputError
        If canaries have different numbers of candidates.
    """
    frame = evidence[evidence["kind"] == kind]

    # One null distribution fits all canaries only if they have equally many candidates.
    n_candidates = frame["n_candidates"].to_numpy()  # (units,)
    if len(set(n_candidates.tolist())) > 1:
        raise InputError(
            "canaries have candidate sets of different sizes",
            fix="audit all checkpoints with the same manifest",
        )

    rank = frame["rank"].to_numpy()  # (units,), 1 is the likeliest
    ties = frame["ties"].to_numpy()  # (units,)
    return frame.assign(
        mid_rank=rank + ties / 2,
        exposure=canary_ranks.exposure_bits(rank, n_candidates, ties=ties),
        lower_tail=canary_ranks.lower_tail_exposure(rank, n_candidates, ties=ties),
    )


def unresolved_parts(frame: pd.DataFrame) -> set[tuple[str, str]]:
    """Return (checkpoint, part) wherever no canary is :func:`resolved`.

    A single resolved canary might be the remembered one, so a part counts as unresolved
    only if no canary is resolved.

    Parameters
    ----------
    frame
        From :func:`ranked`.
    """
    return {
        (checkpoint, part)
        for checkpoint, part, canaries in by_part(frame)
        if not resolved(canaries).any()
    }


def resolved(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return a mask of the canaries that are tied with few of the other candidates.

    Few means fewer than the share :data:`MOST_TIED`. The mask has the frame's index.

    Parameters
    ----------
    frame
        Columns ``ties`` and ``n_candidates``.
    """
    return frame["ties"] < MOST_TIED * (frame["n_candidates"] - 1)


def n_tied(frame: pd.DataFrame) -> int:
    """Return how many canaries are tied with other candidates (column ``ties``)."""
    return int(np.count_nonzero(frame["ties"]))


def trained_canaries(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of canaries in train rows, by ``dose`` and ``held_out``.

    A canary that training cut off in all of its rows has dose 0 and is neither trained
    nor held out.

    Parameters
    ----------
    frame
        Columns ``dose`` and ``held_out``.
    """
    is_held_out = frame["held_out"].astype(bool)
    return frame[(frame["dose"] > 0) & ~is_held_out]


def held_out_canaries(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of canaries that no model saw, by column ``held_out``."""
    return frame[frame["held_out"].astype(bool)]


def by_part(frame: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield checkpoint, part, and their lines: parts in the order of :data:`RANKED`.

    Parameters
    ----------
    frame
        Columns ``checkpoint`` and ``part``.
    """
    groups = dict(iter(frame.groupby(["checkpoint", "part"], sort=False)))
    for checkpoint in dict.fromkeys(frame["checkpoint"]):
        for part in RANKED:
            if (checkpoint, part) in groups:
                yield str(checkpoint), part, groups[checkpoint, part]


def n_candidates_of(frame: pd.DataFrame) -> int:
    """Return the number of candidates of each canary (column ``n_candidates``).

    All lines have the same number, since :func:`ranked` refuses different ones. The
    frame must not be empty.
    """
    return int(frame["n_candidates"].iloc[0])


def exposure_rises(canaries: pd.DataFrame, checkpoint: str) -> np.ndarray:
    """Return changes of exposure since the base model, in bits.

    The shape is ``(canaries,)``: those that were scored by both. Above 0, a canary is
    more exposed than at the base.

    Parameters
    ----------
    canaries
        Canaries of one part and all checkpoints, from :func:`ranked`.
    """
    # Pair by canary, so that its exposure at the base cancels.
    after = canaries[canaries["checkpoint"] == checkpoint]
    before = canaries[canaries["checkpoint"] == BASE]
    paired = after.merge(before, on="canary_id", suffixes=("", "_base"))
    return (paired["exposure"] - paired["exposure_base"]).to_numpy(np.float64)


def variant_by_context(part: str) -> str:
    """Return the variant of figures of a part that are averaged over contexts."""
    return f"{part}/{BY_CONTEXT}"


def part_of(variant: str) -> str:
    """Return the part of a variant, whether it is averaged over contexts or not."""
    return variant.partition("/")[0]


def is_by_context(variant: str) -> bool:
    """Return whether figures of a variant are averaged over contexts."""
    return variant != part_of(variant)


def hits_of(frame: pd.DataFrame, *, k: int) -> canary_ranks.TopK:
    """Return the number of canaries among the first k, compared with chance.

    Parameters
    ----------
    frame
        Columns ``rank``, ``ties`` and ``n_candidates``.
    """
    return canary_ranks.top_k(
        frame["rank"], k=k, n_candidates=n_candidates_of(frame), ties=frame["ties"]
    )
