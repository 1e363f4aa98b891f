"""Guards of the matched audit: conditions under which its figures can be read.

A guard passes, fails (which voids its figures), or warns (``passed=None``). One with
``passed=... or None`` never fails. Sentences: ``[guard]`` in
``sentences/en/matched.toml``.

A new guard is yielded by :func:`matching_guards`, its limit stands at the top of this
file, and its sentence there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from spark_audit.audits.identifiers import sides_of
from spark_audit.audits.matched.report_rows import guard_row, row_of
from spark_audit.audits.matched.units import Occurrences, UnitScores
from spark_audit.names import BASE
from spark_audit.results import Guard
from spark_audit.results.findings import Fact
from spark_audit.results.guards import guard
from spark_audit.stats import balance

FEWEST_REPLICATES = 100
"""Least number of bootstrap replicates for a percentile interval."""

UNBALANCED = 0.25
"""Standardised mean difference that draws a warning (Stuart, 2010)."""

NORMAL_QUANTILE = 1.96
"""A difference of two normal means rarely exceeds this many standard errors."""

MIN_IDENTIFIERS_OF_TYPE = 10
"""Least number of identifiers of a type for judging its share with a control."""

MIN_SHARE_WITH_CONTROL = 0.5
"""Share of all identifiers, and of each type, that must have a control."""

MAX_RESIDUAL = 0.05
"""Delta_sel on the reference above which there is a warning, nats per token."""

MIN_EFFECTIVE_CLUSTERS = 10
"""Number of effective clusters below which there is a warning."""

QUANTILE_OF_DISTANCE = 0.95
"""Quantile of the distances of pairs that readers are told."""

N_TYPES_SHOWN = 4
"""Types with the largest shares without a control that readers are told."""

BALANCE_GUARD = "balance of annotated identifiers"


def matching_guards(scores: UnitScores) -> Iterator[Guard]:
    """Yield the guards that need only the reference and the base.

    If chance dealt identifiers to the sides, they were equally hard before training by
    design. For annotated identifiers that is an assumption, which their text, NLL,
    length and place can refute.
    """
    if BASE in scores.nll:
        yield _reproduction_guard(scores)

    yield from _pair_guards(scores.train)

    pooled = scores.pooled
    if pooled.difference_before.value is None:
        return

    # Both sides exist, so check that they were equally hard. Form 0 is an annotated
    # identifier, any other an injected one.
    yield _difficulty_guard(pooled)

    is_annotated = pooled.spans["form"] == 0
    if is_annotated.any():
        yield _text_guard(pooled)
        annotated = pooled.spans[is_annotated]
        # Balance needs annotated identifiers that can be compared.
        if (sides_of(annotated).cells >= 0).any():
            yield _balance_guard(annotated)


def _reproduction_guard(scores: UnitScores) -> Guard:
    """Return the guard that the base reproduces the scores of the manifest."""
    n_clusters = scores.units["cluster"].nunique()
    worst = guard_row("reproduced", scores.largest_changes[BASE], n_clusters)
    is_reproduced = BASE in scores.references
    return guard(
        "reference reproduced",
        "reproduced",
        {"worst": worst, "reproduced": is_reproduced},
        passed=is_reproduced,
        checkpoint=BASE,
        further=[] if is_reproduced else ["not_reproduced"],
    )


def _difficulty_guard(pooled: Occurrences) -> Guard:
    """Return the guard that warns if one side was harder before training."""
    is_unequal = pooled.gap_before > 0
    before = row_of(pooled.difference_before, checkpoint=BASE, metric="before")
    return guard(
        "never-trained identifiers",
        "before",
        {"before": before, "unequal": is_unequal},
        passed=None if is_unequal else True,
        further=["before_unequal"] if is_unequal else [],
    )


def _text_guard(pooled: Occurrences) -> Guard:
    """Return the guard on the text of annotated identifiers.

    It fails if the text distinguishes the sides, warns if too few identifiers can be
    compared, and else passes.
    """
    is_told = pooled.is_told_by_text
    facts: dict[str, Fact] = {**pooled.text_facts(BASE), "apart": is_told}
    are_too_few = "fewest" in facts

    passed: bool | None = not is_told
    if are_too_few and is_told:
        # A missing test is a warning, not a failure.
        passed = None

    if are_too_few:
        says = "by_text_few"
    elif is_told:
        says = "by_text_apart"
    else:
        says = "by_text_alike"
    return guard(
        "text of annotated identifiers",
        says,
        facts,
        passed=passed,
        further=["by_text_confounds"] if is_told else [],
    )


def _balance_guard(spans: pd.DataFrame) -> Guard:
    """Return the guard on covariates that can move the likelihood of identifiers.

    The covariates are the NLL on the reference, the length and the place in the row.
    Their means are compared within strata, in standard deviations.

    Parameters
    ----------
    spans
        Occurrences of trained and of held-out annotated identifiers.
    """
    sides = sides_of(spans)
    is_used = sides.cells >= 0  # (occurrences,), bool
    used = spans[is_used]
    cells = sides.cells[is_used]  # (used,)
    is_trained = sides.trained[is_used]  # (used,), bool

    # With few clusters, larger differences arise by chance, so raise the limit: a
    # standardised difference has about this variance.
    n_trained = used["cluster"][is_trained].nunique()
    n_held_out = used["cluster"][~is_trained].nunique()
    variance = 1 / max(n_trained, 1) + 1 / max(n_held_out, 1)
    limit = max(UNBALANCED, NORMAL_QUANTILE * np.sqrt(variance))

    # Identifiers of different strata are never compared, so centre within strata.
    covariates = pd.DataFrame(
        {
            "nll": used["ref_sum"] / used["n_tokens"],
            "length": used["n_tokens"],
            "place": used["start"],
        }
    )
    centred = covariates.groupby(cells).transform(lambda column: column - column.mean())

    # A covariate that is the same for all cannot differ and is left out.
    differences: dict[str, float] = {}  # covariate -> standard deviations
    for name, sd in centred.std(ddof=0).items():
        values = centred[name].to_numpy()  # (used,)
        if sd > 0:
            differences[str(name)] = balance.smd(
                values[is_trained], values[~is_trained], sd=sd
            )

    worst = [name for name, value in differences.items() if abs(value) > limit]
    facts: dict[str, Fact] = {**differences, "least": float(limit), "worst": worst}
    further = [f"balance_of_{name}" for name in differences]
    if worst:
        further.append("unbalanced_result")
    return guard(
        BALANCE_GUARD,
        "unbalanced" if worst else "balance",
        facts,
        passed=not worst,
        further=further,
    )


def _pair_guards(train: pd.DataFrame) -> Iterator[Guard]:
    """Yield guards on the share of identifiers with a control, and on its difficulty.

    Parameters
    ----------
    train
        Units of train rows.
    """
    pii = train[train["role"] == "pii"]
    control = train[train["role"] == "control"]
    identifiers = train[train["role"].isin(["pii", "unmatched"])]
    if identifiers.empty:
        return
    yield _share_guard(identifiers)
    if pii.empty:
        return

    n_tokens = pii["n_tokens"].to_numpy(float)  # (pairs,)
    n_clusters = pii["cluster"].nunique()

    # Difference of difficulty between identifiers and controls on the reference. Both
    # frames are in the order of their pairs.
    gaps = pii["ref_sum"].to_numpy() - control["ref_sum"].to_numpy()  # (pairs,), nats
    residual = gaps.sum() / n_tokens.sum()  # nats per token
    distance = float(np.quantile(np.abs(gaps) / n_tokens, QUANTILE_OF_DISTANCE))
    is_residual_small = bool(abs(residual) <= MAX_RESIDUAL)
    yield guard(
        "match quality",
        "match_quality",
        {
            "residual": guard_row("residual", residual, n_clusters),
            "distance": guard_row("distance", distance, n_clusters),
        },
        passed=is_residual_small or None,
    )

    # A few large clusters could dominate all figures.
    effective = balance.effective_clusters(
        pii.groupby("cluster")["n_tokens"].sum().to_numpy()
    )
    yield guard(
        "clusters",
        "clusters",
        {"clusters": n_clusters, "effective": effective},
        passed=effective >= MIN_EFFECTIVE_CLUSTERS or None,
    )


def _share_guard(identifiers: pd.DataFrame) -> Guard:
    """Return the guard that warns if few identifiers of trained rows have a control.

    Parameters
    ----------
    identifiers
        Units of train rows, with and without a control: ``role``, ``type``.
    """
    is_unmatched = identifiers["role"].eq("unmatched")
    n_matched = int((~is_unmatched).sum())

    # The least matched types come first. Columns by type: the identifiers without a
    # control, all identifiers, and the share of the former.
    types = is_unmatched.groupby(identifiers["type"]).agg(["sum", "size", "mean"])
    types = types.sort_values("mean", ascending=False)

    without = [
        f"{name} {n_unmatched}/{n_of_type}"
        for name, n_unmatched, n_of_type, _ in types[:N_TYPES_SHOWN].itertuples()
        if n_unmatched
    ]

    # The share of a type with few identifiers says nothing.
    unmatched_shares = types.loc[types["size"] >= MIN_IDENTIFIERS_OF_TYPE, "mean"]
    is_each_matched = bool((unmatched_shares <= 1 - MIN_SHARE_WITH_CONTROL).all())
    is_matched = n_matched / len(identifiers) >= MIN_SHARE_WITH_CONTROL

    further = ["matched_share_without"] if without else []
    return guard(
        "matched share",
        "matched_share",
        {
            "matched": n_matched,
            "identifiers": len(identifiers),
            "without": without,
        },
        passed=(is_matched and is_each_matched) or None,
        further=[*further, "matched_share_used"],
    )
