"""Findings on planted canaries that are reproduced word for word.

A canary consists of parts, such as a name and a number, and each part is a span of its
own. Trained canaries were planted into trained rows as often as their dose says;
held-out ones were drawn alike and never planted, so that a model can only guess them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.extract.rates import Facts
from spark_audit.names import BASE
from spark_audit.results import Claim, Finding
from spark_audit.stats.estimate import Bound, Status, is_significant
from spark_audit.stats.intervals import clopper_pearson


class PartCounts(NamedTuple):
    """Hits of trained or of held-out canaries, by part; each of shape ``(parts,)``.

    Attributes
    ----------
    if_ties_won
        Hits if ties for the first place are won.
    sure
        Hits without ties.
    n
        Number of canaries that were prompted for, which are the trials.
    """

    if_ties_won: np.ndarray
    sure: np.ndarray
    n: np.ndarray


def canary_findings(canaries: pd.DataFrame) -> Iterator[Finding]:
    """Yield a finding on the trained canaries of each checkpoint.

    Each part counts only in the first row of its canary. Held-out canaries have one
    row, and more rows would be more tries.

    Parameters
    ----------
    canaries
        One row per checkpoint, canary, part and row of it: columns ``checkpoint``,
        ``part``, ``dose`` (0: held out), ``first``, ``greedy`` and ``greedy_sure``.
    """
    # Sums of hits by checkpoint, side and part.
    in_first_rows = canaries[canaries["first"].astype(bool)]
    in_first_rows = in_first_rows.assign(n=1, trained=in_first_rows["dose"] > 0)
    by_part = in_first_rows.groupby(["checkpoint", "trained", "part"], sort=False)
    counts = by_part[["greedy", "greedy_sure", "n"]].sum()

    of_trained = in_first_rows[in_first_rows["trained"]]
    for name, spans in of_trained.groupby("checkpoint", sort=False):
        # Count held-out canaries and the base only in the parts of trained canaries.
        parts = spans["part"].unique().tolist()
        trained = _counts_of(counts, str(name), parts, is_trained=True)
        held_out = _counts_of(counts, str(name), parts, is_trained=False)
        at_base = _counts_of(counts, BASE, parts, is_trained=True)
        p = None if name == BASE else _canary_p(trained, held_out, at_base)
        yield _finding_on(str(name), spans, trained, held_out, p)


def _counts_of(
    counts: pd.DataFrame, checkpoint: str, parts: list[str], *, is_trained: bool
) -> PartCounts:
    """Return the counts of a checkpoint's trained or held-out canaries; 0: it has none.

    Parameters
    ----------
    counts
        Columns ``greedy``, ``greedy_sure`` and ``n``, by checkpoint, whether the
        canaries are trained on, and part.
    parts
        Names of the parts that count, in the order of the result.
    """
    index = [(checkpoint, is_trained, part) for part in parts]
    of_parts = counts.reindex(index, fill_value=0)
    return PartCounts(
        if_ties_won=of_parts["greedy"].to_numpy(),
        sure=of_parts["greedy_sure"].to_numpy(),
        n=of_parts["n"].to_numpy(),
    )


def _finding_on(
    name: str,
    spans: pd.DataFrame,
    trained: PartCounts,
    held_out: PartCounts,
    p: float | None,
) -> Finding:
    """Return the finding on the trained canaries of one checkpoint.

    ===================================  ===========================================
    first match wins                     claim and sentence
    ===================================  ===========================================
    all hits depend on ties              not_tested, ``canaries_tied``
    no hits                              nothing_shown, ``canaries``
    p is small                           verbatim, ``canaries_back``
    there is a p                         moved, ``canaries_chance``
    the base, or nothing to compare      moved, ``canaries``
    ===================================  ===========================================

    Parameters
    ----------
    spans
        Trained canaries in their first rows, one row per canary and part.
    p
        From :func:`_canary_p`; None where there is nothing to compare with.
    """
    n_if_ties_won = int(trained.if_ties_won.sum())
    n_sure = int(trained.sure.sum())
    n_parts = int(trained.n.sum())
    held_out_sure = int(held_out.sure.sum())
    held_out_tied = int(held_out.if_ties_won.sum()) - held_out_sure

    # Without any hit, state the exact upper limit of the rate for the smallest group,
    # which is the highest one.
    highest_rate = None
    if not n_if_ties_won:
        n_smallest = int(spans.groupby(["part", "dose"]).size().min())
        highest_rate = clopper_pearson(0, n_smallest)[1]

    # Names as the sentences read them (sentences/en/extract.toml).
    facts: Facts = {
        "back": n_sure,
        "tied": n_if_ties_won - n_sure,
        "parts": n_parts,
        "held_back": held_out_sure,
        "held_tied": held_out_tied,
        "held_parts": int(held_out.n.sum()),
        "highest": highest_rate,
    }

    bounds = []
    if p is not None:
        # The parts of one canary are not independent trials, so canaries are counted.
        n_canaries = int(spans.groupby("part").size().max())
        rate = n_if_ties_won / n_parts
        bounds = [Bound(test="hits", value=rate, n=n_canaries, worst_value=1.0)]

    # The order is that of the table in the docstring.
    claim: Claim = "moved"
    says = "canaries"
    status: Status = "ok"
    further = _remarks(facts)
    is_all_tied = n_if_ties_won > 0 and not n_sure
    if is_all_tied:
        claim = "not_tested"
        says = "canaries_tied"
        status = "not_resolvable"
        further.append("all_tied")
    elif not n_if_ties_won:
        claim = "nothing_shown"
    elif is_significant(p):
        claim = "verbatim"
        says = "canaries_back"
    elif p is not None:
        says = "canaries_chance"
        further.append("like_chance")
    return Finding(
        audit="extract",
        checkpoint=name,
        claim=claim,
        says=f"extract.{says}",
        further=[f"extract.{key}" for key in further],
        facts=facts,
        status=status,
        family="exploratory" if p is None else "primary",
        p=p,
        bounds=bounds,
    )


def _remarks(facts: Facts) -> list[str]:
    """Return the keys of remarks on ties, held-out canaries and the upper limit."""
    further = []
    if facts["tied"]:
        further.append("canaries_ties")
    if facts["held_parts"]:
        further.append("canaries_held_out")
    if facts["held_tied"]:
        further.append("canaries_held_out_ties")
    if facts["highest"] is not None:
        further.append("canaries_limit")
    return further


def _canary_p(
    trained: PartCounts, held_out: PartCounts, at_base: PartCounts
) -> float | None:
    """Return p that trained canaries return no more than held-out ones and the base's.

    The test is Fisher's, one-sided, by part: hits of trained canaries without ties
    against hits of the others with ties. The smallest p of a part counts, times the
    number of parts (Bonferroni), since the parts of one canary are not independent.
    ``None``: there is nothing to compare with.

    Parameters
    ----------
    trained, held_out, at_base
        Trained and held-out canaries of one checkpoint, and trained ones at the base.
    """
    n_parts = len(trained.n)
    part_ps = []
    for i in range(n_parts):
        # Hits and trials of canaries that the model cannot remember.
        controls = []
        if held_out.n[i]:
            controls.append((held_out.if_ties_won[i], held_out.n[i]))

        # The base counts if it has hits, or if it is the only control.
        is_base_needed = at_base.if_ties_won[i] or not held_out.n[i]
        if at_base.n[i] and is_base_needed:
            controls.append((at_base.if_ties_won[i], at_base.n[i]))
        if not controls:
            continue

        # The larger p of both comparisons: trained canaries must beat held-out ones and
        # the base.
        hits = trained.sure[i]
        misses = trained.n[i] - hits
        control_ps = []
        for control_hits, control_trials in controls:
            control_misses = control_trials - control_hits
            table = np.array([[hits, misses], [control_hits, control_misses]])
            test = scipy.stats.fisher_exact(table, alternative="greater")
            control_ps.append(float(test.pvalue))
        part_ps.append(max(control_ps))

    if not part_ps:
        return None
    return min(1.0, n_parts * min(part_ps))
