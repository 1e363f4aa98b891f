"""Changes since the reference: identifiers on either side, and low-sensitivity text."""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_audit.audits.matched.contrasts import REFERENCE
from spark_audit.audits.matched.words import (
    NO_LOW,
)
from spark_audit.results import (
    Contrast,
    Estimate,
    Row,
)
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.memory import Memory, Sides, memory

OLD = "evidence of an earlier version does not say what stands in rows never trained on"


def _occurrences(part: pd.DataFrame) -> pd.DataFrame | None:
    """Identifiers of trained rows, and those that stand in no trained row.

    ``None`` where the evidence does not tell them apart.
    """
    spans = part[part["role"].isin(["pii", "unmatched"])]
    if "trained" not in spans or spans["trained"].isna().any():
        return None
    return spans[(spans["split"] == "train") | (spans["trained"] == 0)]


def memory_of(part: pd.DataFrame) -> tuple[Memory, Estimate]:
    """Trained against never trained: changes, and NLLs on the reference."""
    spans = _occurrences(part)
    if spans is None:
        return Memory.missing(OLD), Estimate.missing(OLD)
    kinds = [pd.factorize(spans[name])[0] for name in ("type", "form", "cue")]
    sides = Sides(
        trained=(spans["split"] == "train").to_numpy(),
        tokens=spans["n_tokens"].to_numpy(),
        clusters=pd.factorize(spans["cluster"])[0],
        strata=np.stack(kinds, axis=1),
    )
    before = spans["ref_sum"].to_numpy()
    change = spans["nll_sum"].to_numpy() - before
    return memory(change, sides), memory(before, sides).difference


def unequal(before: Estimate) -> float:
    """Nats by which one side was clearly harder on the reference already; else 0."""
    if before.value is None:
        return 0.0
    if before.low is not None and before.high is not None:
        return 0.0 if before.low <= 0 <= before.high else abs(before.value)
    return abs(before.value)


def memory_rows(name: str, part: pd.DataFrame, *, reference: bool) -> list[Row]:
    """The change of identifiers on either side, and their difference.

    Sides that were unequally hard on the reference drift unequally where drift depends
    on difficulty; at most, what they differed by is lost. That is the difference's
    ``null_low`` and ``null_high``.
    """
    found, before = memory_of(part)
    if reference:
        found = Memory.missing(REFERENCE)
    reach = unequal(before)
    null = {"null": 0.0, "null_low": -reach, "null_high": reach}
    return [
        Row.of_estimate(
            estimate,
            audit="matched",
            checkpoint=name,
            metric=metric,
            of=of,
            unit="nats",
            **more,
        )
        for metric, of, estimate, more in (
            ("pii_change", "trained", found.trained, {}),
            ("pii_change", "never-trained", found.held_out, {}),
            ("memory", "", found.difference, null),
        )
    ]


def never_trained_move(part: pd.DataFrame) -> Estimate:
    """How identifiers never trained on moved against equally hard text, nats."""
    spans = _occurrences(part)
    if spans is None:
        return Estimate.missing(OLD)
    pii = spans[(spans["split"] == "test") & (spans["role"] == "pii")]
    control = part[(part["role"] == "control") & part["pair"].isin(pii["pair"])]
    moved = [
        pd.Series((side["nll_sum"] - side["ref_sum"]).to_numpy(), index=side["pair"])
        for side in (pii, control)
    ]
    apart = pii.assign(apart=(moved[0] - moved[1]).loc[pii["pair"]].to_numpy())
    sums = apart.groupby("cluster")
    return ratio_estimate(sums["apart"].sum(), sums["n_tokens"].sum())


def low_drift(part: pd.DataFrame) -> pd.DataFrame:
    """Per cluster: change of low-sensitivity text of audited rows, and its tokens."""
    low = part[(part["role"] == "low") & (part["split"] == "train")]
    low = low.assign(change=low["nll_sum"] - low["ref_sum"])
    return low.groupby("cluster")[["change", "n_tokens"]].sum()


def _low_estimate(change: pd.Series, tokens: pd.Series) -> Estimate:
    if not len(tokens):
        return Estimate.missing(NO_LOW)
    return ratio_estimate(change.to_numpy(), tokens.to_numpy())


def low_row(name: str, low: pd.DataFrame, *, reference: bool) -> Row:
    """Drift of low-sensitivity text since the reference."""
    found = _low_estimate(low["change"], low["n_tokens"])
    if reference:
        found = Estimate.missing(REFERENCE)
    row: Row = Row.of_estimate(
        found, audit="matched", checkpoint=name, metric="low_change", unit="nats"
    )
    return row


def low_contrast(name: str, baseline: str, low: dict[str, pd.DataFrame]) -> Contrast:
    """Drift of low-sensitivity text minus that of the baseline."""
    ours, theirs = low[name], low[baseline]
    found = _low_estimate(ours["change"], ours["n_tokens"][:0])
    if len(ours) and len(theirs):
        found = _low_estimate(ours["change"] - theirs["change"], ours["n_tokens"])
    row: Contrast = Contrast.of_estimate(
        found,
        audit="matched",
        checkpoint=name,
        baseline=baseline,
        metric="low_change",
        unit="nats",
    )
    return row


def own_change(spans: pd.DataFrame) -> Estimate:
    """Change of the matched identifiers' own NLL since the reference, nats a token."""
    pii = spans[(spans["split"] == "train") & (spans["role"] == "pii")]
    sums = pii.assign(change=pii["nll_sum"] - pii["ref_sum"]).groupby("cluster")
    return ratio_estimate(sums["change"].sum(), sums["n_tokens"].sum())
