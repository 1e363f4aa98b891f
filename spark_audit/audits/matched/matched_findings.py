"""The findings of the matched audit, a sentence each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from spark_audit.audits.contract import BASE
from spark_audit.audits.identifier_facts import Moved, sides_of
from spark_audit.audits.matched.changes import (
    confounded,
    left_out,
    occurrences,
    own_change,
    sides_before,
    unequal,
)
from spark_audit.audits.matched.contrasts import has_sentence
from spark_audit.audits.matched.matched_sentences import (
    contrast_finding,
    memory_findings,
    selectivity_finding,
)
from spark_audit.audits.spans import REPRODUCED
from spark_audit.audits.stored_evidence import Evidence, part_of
from spark_audit.audits.wording import figure
from spark_audit.names import entry_of
from spark_audit.results import Contrast, Finding, Guard, Row, number
from spark_audit.stats.balance import effective_clusters, smd
from spark_audit.stats.memory import cells_of


def findings(
    rows: Sequence[Row],
    scored: Mapping[str, pd.DataFrame],
    references: Collection[str],
    tested: Mapping[str, Mapping[str, Moved]],
) -> list[Finding]:
    """What is said of each method.

    Parameters
    ----------
    scored
        Evidence by checkpoint; single replicates of a method are not told of.
    references
        Checkpoints that score as the matching reference does.
    tested
        The tests of no memory, by checkpoint and group.
    """
    entries = {entry_of(name) for name in scored if entry_of(name) != name}
    by_key = {(r.checkpoint, r.metric, r.of, r.group): r for r in rows}
    found = []
    for name, part in scored.items():
        if entry_of(name) != name:
            continue
        of_name = {key[1:]: row for key, row in by_key.items() if key[0] == name}
        entry, reference = name in entries, name in references
        if not reference:
            doubt, lost = confounded(part), left_out(part)
            found += memory_findings(
                name, of_name, tested[name], entry=entry, doubt=doubt, lost=lost
            )
        found.append(
            selectivity_finding(
                name, of_name, own_change(part), reference=reference, entry=entry
            )
        )
    return found


def contrast_findings(
    rows: Sequence[Row],
    contrasts: Sequence[Contrast],
    entries: Collection[str],
    ordinary: Collection[str],
) -> list[Finding]:
    """What is said of each contrast that has a sentence.

    Parameters
    ----------
    entries
        Methods that have replicates.
    ordinary
        Checkpoints whose training nobody corrected.
    """
    by_key = {(r.checkpoint, r.metric, r.of, r.group): r for r in rows}
    found = []
    told = [row for row in contrasts if row.group == "pooled"]
    for row in contrasts:
        if not has_sentence(row):
            continue
        who = (row.checkpoint, row.baseline)
        beside = {
            one.metric: one for one in told if (one.checkpoint, one.baseline) == who
        }
        drift = [by_key.get((n, "low_change", "", "pooled")) for n in who]
        spread = [
            one.value
            for one in told
            if (one.metric, one.baseline) == ("did", row.baseline)
            and one.checkpoint in ordinary
            and one.value is not None
        ]
        found.append(
            contrast_finding(
                row,
                beside,
                (drift[0], drift[1]),
                spread if row.checkpoint not in ordinary else (),
                entry=row.checkpoint in entries,
            )
        )
    return found


UNBALANCED = 0.25
"""Standardised mean difference from which readers are told (Stuart, 2010)."""
BALANCE = "balance of annotated identifiers"


def alike_guard(part: pd.DataFrame) -> list[Guard]:
    """Whether identifiers on both sides were equally hard before training, and alike.

    Where chance dealt identifiers to the sides, they are alike by design; of annotated
    ones that is an assumption, which their NLL, length and place can refute.
    """
    before = sides_before(part)
    if before.value is None:
        return []
    apart = unequal(before)
    found = [
        Guard(
            name="never-trained identifiers",
            passed=None if apart else True,
            detail="on the reference, identifiers of trained rows differ from those of "
            f"rows never trained on by {figure(before)} nats a token"
            + (": a difference of their changes must clear that" if apart else ""),
        )
    ]
    spans = occurrences(part)
    if (spans["form"] > 0).all():
        return found
    return [*found, _balance(spans[spans["form"] == 0])]


def _balance(spans: pd.DataFrame) -> Guard:
    """Whether compared identifiers differ in what can move their likelihood."""
    sides = sides_of(spans)
    cells = cells_of(sides)
    used, trained = cells >= 0, sides.trained[cells >= 0]
    facts = {
        "NLL on the reference": spans["ref_sum"] / spans["n_tokens"],
        "length in tokens": spans["n_tokens"],
        "place in the row": spans["start"],
    }
    counts = [len(set(sides.clusters[used][side])) for side in (trained, ~trained)]
    # So many standard deviations are no chance, of so few clusters.
    least = max(UNBALANCED, 1.96 * np.sqrt(sum(1 / max(n, 1) for n in counts)))
    apart = {}
    for name, values in facts.items():
        values = values[used]
        centred = (values - values.groupby(cells[used]).transform("mean")).to_numpy()
        sd = float(centred.std()) if len(centred) else 0.0
        if sd > 0:
            apart[name] = smd(centred[trained], centred[~trained], sd=sd)
    worst = [name for name, value in apart.items() if abs(value) > least]
    said = ", ".join(f"{name} {number(value, 2)}" for name, value in apart.items())
    return Guard(
        name=BALANCE,
        passed=not worst,
        detail="trained and held-out identifiers of one form and place differ, in "
        f"standard deviations, by: {said or 'nothing'}"
        + (
            f". More than {number(least, 2)} apart: {' and '.join(worst)}. What is "
            "said of memory can come from that, and not from training"
            if worst
            else ""
        ),
    )


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


def reproduced_guard(spans: Evidence) -> list[Guard]:
    """Whether the base still scores as the manifest says it did."""
    base = part_of(spans, BASE)
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
