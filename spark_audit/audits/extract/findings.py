"""What the identifiers that came back are taken to mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from spark_audit.audits.base import guard
from spark_audit.audits.extract.guessing import (
    MAX_GUESS_RATE,
    beyond_guessing,
    counted,
    guess_rates,
    without_read,
)
from spark_audit.audits.extract.rates import (
    CONFIDENCE,
    SPLITS,
    Facts,
    against_base,
    base_apart,
    base_bound,
    by_checkpoint,
    comparable,
    exact_p,
    has_base,
    hits_power,
    limits_p,
    minus,
    rates_bound,
    row_of,
    splits_apart,
)
from spark_audit.audits.identifiers import MIN_CLUSTERS_FOR_CLASSIFIER
from spark_audit.manifest.clusters import BARE
from spark_audit.names import BASE
from spark_audit.results import Claim, Contrast, Finding, Guard, Hits, Row
from spark_audit.results.findings import EXCESS
from spark_audit.stats.estimate import Bound, Estimate, Power, side_of
from spark_audit.stats.memory_contrast import Sides, permutation_p

NO_TRAINED_IDENTIFIER = "no identifier of a trained row was scored"

TIES_MATTER = 0.005
"""Difference of the greedy rate by tie rule above which readers are told."""


def findings(pii: pd.DataFrame, rows: Sequence[Row], *, seed: int) -> Iterator[Finding]:
    """Findings on every checkpoint: what came back, and what that is compared with.

    Parameters
    ----------
    pii
        Identifiers behind their true prefix, of all checkpoints, a row each.
    rows
        Rows of the report, for its pooled rates and numbers of tries.
    """
    pooled = {(r.checkpoint, r.metric, r.of): r for r in rows if r.group == "pooled"}
    for name, spans in by_checkpoint(pii).items():
        row = pooled.get((name, "greedy_rate", ""))
        back = returned(spans)
        if row is None or (row.value is None and not back.count + back.tied):
            reason = NO_TRAINED_IDENTIFIER if row is None else row.note
            yield Finding.not_tested(
                "extract", "extract.missing", checkpoint=name, reason=reason
            )
            continue

        facts: Facts = {"rate": row, "back": back}
        facts |= {of: pooled[name, "n50_median", of] for of in ("t1", "top40")}
        if back.tied and not back.count:
            yield Finding.on(
                row,
                "not_tested",
                "extract.counts_tied",
                facts=facts,
                status="not_resolvable",
            )
        else:
            compared = _compared(spans, row, seed=seed)
            # What the comparison detects is claimed once, by its own sentence.
            lost_alone = compared.claim == "not_tested" and not back.count
            nothing = compared.claim == "nothing_shown" or lost_alone
            claim: Claim = "nothing_shown" if nothing else "moved"
            yield Finding.on(row, claim, "extract.counts", status="ok", facts=facts)
            yield compared
        if (apart := back.tied / back.of) > TIES_MATTER:
            share = Estimate(apart, clusters=row.clusters)
            yield Finding.not_tested(
                "extract",
                "extract.ties",
                checkpoint=name,
                ties=row_of(share, checkpoint=name, metric="ties"),
            )


def returned(spans: pd.DataFrame) -> Hits:
    """How many identifiers of train rows come back, of how many."""
    train = spans[spans["split"] == "train"]
    won, sure = int(train["greedy"].sum()), int(train["greedy_sure"].sum())
    return Hits(count=sure, of=len(train), tied=won - sure)


def _share(
    of: str, metric: str, spans: pd.DataFrame, hits: str = "greedy_sure"
) -> Facts:
    """The share of some spans that come back at a checkpoint, by its name."""
    known = spans.dropna(subset=hits)
    if known.empty:
        return {}
    value = np.average(known[hits].astype(float), weights=known.get("weight"))
    share = Estimate(float(value), n=len(known), clusters=known["cluster"].nunique())
    return {metric: row_of(share, checkpoint=of, metric=metric)}


def _finding(
    row: Row,
    claim: Claim,
    says: str,
    facts: Facts,
    apart: Estimate,
    *,
    p: float | None = None,
    power: Sequence[Power] = (),
    bounds: Sequence[Bound] = (),
) -> Finding:
    """Return what a comparison claims: with a p, it is one of the primary ones.

    Parameters
    ----------
    row
        The rate of trained identifiers that come back.
    apart
        Its difference from what it is compared with.
    """
    key = f"extract.{says}"
    if apart.value is None:
        return Finding.on(row, claim, key, facts=facts, p=p, power=power)

    # What is claimed is the difference, not the rate that it is one of.
    apart_in_clusters = replace(apart, clusters=row.clusters)
    shown = row_of(apart_in_clusters, checkpoint=row.checkpoint, metric="apart")
    return Finding.on(
        row,
        claim,
        key,
        facts={**facts, "apart": shown},
        metric=f"{row.metric}{EXCESS}",
        value=_points(apart.value),
        low=_points(apart.low),
        high=_points(apart.high),
        mde=_points(apart.mde),
        unit="points",
        null=0.0,
        p=p,
        power=power,
        bounds=bounds,
    )


def _points(share: float | None) -> float | None:
    """Return a share in points; a limit that there is not stays missing."""
    return None if share is None else 100 * share


def _compared(spans: pd.DataFrame, row: Row, *, seed: int) -> Finding:
    """Train rows against rows never trained on: whether it is more than guessing.

    Where the base was scored, beyond what it gives on the same rows: it shows how far
    the two splits differ by themselves. Without test rows, against the base alone.
    """
    name, (chosen, alike) = row.checkpoint, comparable(spans)
    train, past_base = spans[spans["split"] == "train"], has_base(spans)
    base = base_apart(chosen)
    apart = minus(splits_apart(chosen), base)
    # Of what came back, more than a bound can be said.
    facts: Facts = {"rate": row, "none_back": not train["greedy"].any()}
    facts |= {**_whose(train), "past_base": past_base, "back": returned(train)}
    held_out = len(train) < len(spans)
    if apart.value is None and past_base:
        before = _share(BASE, "before", train, "base_sure")
        facts |= {**before, "few_held_out": held_out}
        if held_out:
            facts["lacking"] = _not_compared_because(spans)
        return _against_base(spans, row, facts, seed=seed)
    if not held_out:
        return _finding(row, "not_tested", "no_control", facts, apart)
    facts["against"] = "injected" if alike else "natural"
    if apart.value is None:
        return _finding(row, "not_tested", "no_comparison", facts, apart)
    ours, theirs = (chosen[chosen["split"] == split] for split in SPLITS)
    # Whose they are is counted among those that are compared, as what came back is.
    for key in ("sure", "shared", "cued"):
        facts.pop(key, None)
    facts |= {**_whose(ours), "back": returned(ours)}
    facts |= _share(name, "unseen", theirs)
    facts |= _share(BASE, "before", ours, "base_sure")
    side, p, power, bounds = side_of(apart), None, list[Power](), list[Bound]()
    if name != BASE:
        p, power = max(limits_p(apart), exact_p(chosen)), [hits_power(chosen, base)]
        bounds = rates_bound(chosen)
        guess_p, guess = beyond_guessing(spans) if side == 1 else (1.0, {})
        if 2 * guess_p < p:
            p = 2 * guess_p
            facts |= guess
    claim: Claim = "verbatim" if side == 1 else "betrays"
    says: str = claim
    if side == 0 or (p is not None and p > 1 - CONFIDENCE):
        claim, says = "nothing_shown", "not_apart"
    elif name == BASE or not (alike or past_base):
        claim, says = "confounded", "splits_differ" if name == BASE else "kinds_differ"
        power = []
    return _finding(row, claim, says, facts, apart, p=p, power=power, bounds=bounds)


def _not_compared_because(spans: pd.DataFrame) -> str:
    """Return why held-out identifiers are no control of trained ones.

    ``form``: none has the form and the place of trained ones; ``few``: too few have,
    to test whether their texts differ; ``text``: their texts differ.
    """
    alike = spans[spans["stratum"] < 0]
    if alike.empty:
        return "form"
    n_clusters = alike.groupby("split")["cluster"].nunique().reindex(SPLITS)
    return "text" if n_clusters.min() >= MIN_CLUSTERS_FOR_CLASSIFIER else "few"


def _against_base(spans: pd.DataFrame, row: Row, facts: Facts, *, seed: int) -> Finding:
    """Train rows against the base on the same rows, and against guessing.

    Where no held-out identifiers tell memory, what comes back beyond the base is memory
    if it is more than guessing gives, or if it grows with dose.
    """
    facts |= {"against": "base", "past_base": False}
    apart, p = against_base(spans, seed=seed)
    side = side_of(apart)
    claim: Claim
    if side == 1 or (side is None and counted(spans)["hit"].any()):
        guess_p, guess = beyond_guessing(spans)
        grows = dose_p(spans, seed=seed)
        p = min(1.0, 2 * min(guess_p, grows))
        facts |= {"grows": grows if grows < guess_p else None, **guess}
        claim, says = "verbatim", "beyond_guessing"
        if p > 1 - CONFIDENCE:
            claim, says = "confounded", "maybe_guessed"
    elif side is None:
        claim, says = "not_tested", "no_comparison"
    elif side == 0 or (p or 0.0) > 1 - CONFIDENCE:
        claim, says = "nothing_shown", "not_apart"
    else:
        claim, says = "moved", "fewer_than_base"
    bounds = base_bound(spans, apart)
    return _finding(row, claim, says, facts, apart, p=p, bounds=bounds)


def _whose(train: pd.DataFrame) -> Facts:
    """Whether other rows hold what comes back, and whether the cue brings it back."""
    sure = train[train["greedy_sure"].astype(bool)]
    shared, n = int(sure["elsewhere"].sum()), len(sure)
    cued = int((sure["cue"] & ~sure["base"]).sum())
    hits = {"sure": n, "shared": shared, "cued": cued}
    known = {k: Hits(count=count, of=len(train)) for k, count in hits.items() if count}
    return {"all_shared": shared == n, **known}


def guards(pii: pd.DataFrame) -> list[Guard]:
    """Whether the base, which saw none of the rows, tells train from test rows."""
    chosen, alike = comparable(pii[pii["checkpoint"] == BASE])
    apart = splits_apart(chosen)
    # That no difference is seen does not show that there is none.
    if not side_of(apart):
        return []
    apart_in_clusters = replace(apart, clusters=chosen["cluster"].nunique())
    shown = row_of(apart_in_clusters, checkpoint=BASE, metric="apart")
    splits_guard = guard(
        "base reproduces both sides equally",
        "extract.splits",
        {"apart": shown, "injected": alike},
        passed=False if alike else None,
        checkpoint=BASE,
    )
    return [splits_guard]


def contrast_findings(contrasts: Sequence[Contrast]) -> Iterator[Finding]:
    """How the greedy rate changed against each baseline."""
    for row in contrasts:
        if (row.group, row.metric) != ("pooled", "greedy_rate"):
            continue
        # Where all clusters agree there is no interval, and the test decides.
        tested = row.ends is None and row.p is not None and row.p <= 1 - row.level
        claim: Claim = "nothing_shown"
        says = "none"
        if row.value is None:
            claim, says = "not_tested", "missing"
        elif row.moved or tested:
            claim, says = "moved", "up" if row.value > 0 else "down"
        yield Finding.on(row, claim, f"extract.change_{says}", facts={"change": row})


def dose_p(spans: pd.DataFrame, *, seed: int) -> float:
    """P that identifiers in several trained rows come back no more than those in one.

    Clusters are dealt anew to both within types. Frequent strings are guessed more
    often, too: types that are guessed more often than
    :data:`~spark_audit.audits.extract.guessing.MAX_GUESS_RATE`, names and addresses
    are left out, and so is what the cue gives in another row.
    """
    train, held = counted(spans), without_read(counted(spans, "test"))
    rates = guess_rates(train, held, other_rows=False)
    hard = [k for k, rate in rates.items() if rate <= MAX_GUESS_RATE and k not in BARE]
    train = train[train["cue_asked"] & train["type"].isin(hard)]
    several = (train["dose"] > 1).to_numpy()
    hit = (train["hit"] & ~train["cue"]).to_numpy(np.float64)
    if several.all() or not several.any() or not hit.any():
        return 1.0
    sides = Sides.of(several, train["cluster"], [pd.factorize(train["type"])[0]])
    p = permutation_p(hit, sides, seed=seed)
    return 1.0 if p is None or hit[several].mean() <= hit[~several].mean() else p
