"""What can void the matched figures."""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_audit.audits.contract import BASE
from spark_audit.audits.matched.changes import sides_before, unequal
from spark_audit.audits.spans import (
    REPRODUCED,
    Sums,
)
from spark_audit.audits.wording import figure
from spark_audit.manifest.schema import Manifest
from spark_audit.results import (
    Guard,
)
from spark_audit.stats.balance import effective_clusters


def alike_guard(part: pd.DataFrame) -> list[Guard]:
    """Whether identifiers on both sides were equally hard before training."""
    before = sides_before(part)
    if before.value is None:
        return []
    apart = unequal(before)
    return [
        Guard(
            name="never-trained identifiers",
            passed=None if apart else True,
            detail="on the reference, identifiers of trained rows differ from those of "
            f"rows never trained on by {figure(before)} nats a token"
            + (": a difference of their changes must clear that" if apart else ""),
        )
    ]


def pair_guards(train: pd.DataFrame) -> list[Guard]:
    """What can void the matched figures, from the reference alone."""
    pii, control = (train[train["role"] == r] for r in ("pii", "control"))
    unmatched = int((train["role"] == "unmatched").sum())
    total = len(pii) + unmatched
    if not total:
        return []
    share = len(pii) / total
    missing = train[train["role"] == "unmatched"]["type"].value_counts()
    worst = ", ".join(f"{count} {kind}" for kind, count in missing.head(4).items())
    found = [
        Guard(
            name="matched share",
            passed=True if share >= 0.5 else None,
            detail=f"{len(pii)} of {total} spans of train rows have a control"
            + (f"; without: {worst}" if unmatched else "")
            + ". Figures are over matched spans only.",
        )
    ]
    if not len(pii):
        return found
    tokens = pii["n_tokens"].to_numpy(float)
    gaps = pii["ref_sum"].to_numpy() - control["ref_sum"].to_numpy()
    residual = gaps.sum() / tokens.sum()
    distance = np.quantile(np.abs(gaps) / tokens, 0.95)
    found.append(
        Guard(
            name="match quality",
            passed=True if abs(residual) <= 0.05 else None,
            detail=f"Delta_sel on the reference is {residual:.4f} nats; 95% of pairs "
            f"differ by at most {distance:.3f}",
        )
    )
    effective = effective_clusters(pii.groupby("cluster")["n_tokens"].sum().to_numpy())
    found.append(
        Guard(
            name="clusters",
            passed=True if effective >= 10 else None,
            detail=f"{pii['cluster'].nunique()} clusters, worth {effective:.1f} of "
            "equal size by tokens",
        )
    )
    return found


def reproduced_guard(
    manifest: Manifest, sums: dict[str, Sums], spans: pd.DataFrame
) -> list[Guard]:
    """Whether the base still scores as the manifest says it did."""
    base = spans[spans["checkpoint"] == BASE]
    if not len(base):
        return []
    change = (base["nll_sum"] - base["ref_sum"]).abs() / base["n_tokens"]
    worst = float(change.max())
    return [
        Guard(
            name="reference reproduced",
            checkpoint=BASE,
            passed=worst <= REPRODUCED,
            detail=f"scored again, span means differ from the manifest's by at most "
            f"{worst:.2g} nats"
            + ("" if worst <= REPRODUCED else ": other weights, dtype or libraries"),
        )
    ]
