"""Trained identifiers that the memory contrast leaves out, and why.

A trained identifier is compared only if held-out identifiers have its form and place,
and if texts do not distinguish the two sides: see
:mod:`spark_audit.audits.identifier_texts`. A finding on memory states what is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from spark_audit.audits.matched.report_rows import row_of
from spark_audit.audits.matched.units import Occurrences, UnitScores
from spark_audit.names import BASE
from spark_audit.results import Hits, Row
from spark_audit.results.findings import Fact
from spark_audit.stats.estimate import Estimate


@dataclass(frozen=True)
class LeftOut:
    """Trained identifiers that are left out of every comparison.

    Attributes
    ----------
    facts
        Their number by reason, and their shares by type; empty if there are none.
    remarks
        Keys of the sentences that say so, in the order of the facts: a remark has the
        name of its fact.
    """

    facts: Mapping[str, Fact] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def left_out_of_comparison(scores: UnitScores) -> LeftOut:
    """Return the trained identifiers that are left out of the comparison.

    They do not depend on a checkpoint, so this is called once.
    """
    pooled = scores.pooled
    is_trained = pooled.sides.trained  # (occurrences,), bool
    is_compared = pooled.sides.cells >= 0  # (occurrences,), bool
    is_identifier = scores.train["role"].isin(["pii", "unmatched"])
    n_identifiers = int(is_identifier.sum())

    # No held-out identifier has their form and place.
    n_without_counterpart = int((is_trained & ~is_compared).sum())

    # `pooled` lacks identifiers that text distinguishes, or of which too few are held
    # out to tell.
    n_on_no_side = int(n_identifiers - is_trained.sum())

    facts: dict[str, Fact] = {}
    if n_without_counterpart:
        facts["without_counterpart"] = Hits(
            count=n_without_counterpart, of=n_identifiers
        )
    if n_on_no_side:
        facts["untold"] = Hits(count=n_on_no_side, of=n_identifiers)
    if facts:
        facts["left_out_types"] = left_out_types(scores.train, pooled)
    return LeftOut(facts=facts, remarks=tuple(facts))


def left_out_types(train: pd.DataFrame, pooled: Occurrences) -> list[Row]:
    """Return the share of each type's trained identifiers that are not compared.

    The variant of a row is the reason: ``form`` (no held-out identifier has their form
    and place), ``few`` (too few do, so that texts cannot be tested) or ``text`` (the
    texts differ). A type has a row for each of its reasons, the larger shares first.

    Parameters
    ----------
    train
        Units of train rows.
    pooled
        All trained and all held-out identifiers.
    """
    identifiers = train[train["role"].isin(["pii", "unmatched"])]

    # Identifiers that are on neither side are missing from `pooled`.
    is_compared = pd.Series(pooled.sides.cells >= 0, index=pooled.spans.index)
    is_left_out = ~is_compared.reindex(identifiers.index, fill_value=False)

    # A negative stratum marks a text that distinguishes the sides, or has no AUC since
    # there are too few held-out ones.
    reasons = pd.Series("form", index=identifiers.index)
    is_refused = identifiers["stratum"] < 0
    has_no_auc = identifiers["text_auc"][is_refused].isna()
    reasons[is_refused] = np.where(has_no_auc, "few", "text")

    # One row for each type and reason.
    rows = []
    by_type_and_reason = identifiers[is_left_out].groupby(["type", reasons])
    for (type_name, reason), left_out in by_type_and_reason:
        n_of_type = int((identifiers["type"] == type_name).sum())
        share = Estimate(
            len(left_out) / n_of_type,
            n=n_of_type,
            clusters=left_out["cluster"].nunique(),
        )
        row = row_of(
            share,
            checkpoint=BASE,
            metric="left_out",
            variant=str(reason),
            group=f"type:{type_name}",
            unit="",
        )
        rows.append(row)
    return sorted(rows, key=lambda row: -(row.value or 0.0))
