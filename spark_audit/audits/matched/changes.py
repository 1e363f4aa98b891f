"""Changes since the reference: identifiers on either side, and low-sensitivity text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from spark_audit.audits.identifier_facts import Moved, comparable, sides_of
from spark_audit.audits.matched.contrasts import REFERENCE
from spark_audit.audits.matched.matched_claims import NO_LOW
from spark_audit.audits.strata import ENOUGH
from spark_audit.data.occurrences import dose_group
from spark_audit.results import Contrast, Estimate, Hits, Row
from spark_audit.results.findings import Fact, Power
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.memory import (
    Memory,
    dose_trend,
    least_p,
    memory,
    permutation_p,
)

PERMUTATIONS = 9999


def occurrences(part: pd.DataFrame) -> pd.DataFrame:
    """Identifiers of trained rows, and those that stand in no trained row."""
    spans = part[part["role"].isin(["pii", "unmatched"])]
    spans = spans[(spans["split"] == "train") | (spans["dose"] == 0)]
    return comparable(spans)[0]


def left_out(part: pd.DataFrame) -> dict[str, Hits]:
    """How many trained identifiers have no control, as facts, if there are any."""
    spans = part[part["role"].isin(["pii", "unmatched"]) & (part["split"] == "train")]
    used = occurrences(part)
    untold = len(spans) - int((used["split"] == "train").sum())
    sides = sides_of(used)
    alone = int((sides.trained & (sides.cells < 0)).sum())
    counts = {"without_counterpart": alone, "untold": untold}
    return {
        name: Hits(count=count, of=len(spans))
        for name, count in counts.items()
        if count
    }


def confounded(name: str, part: pd.DataFrame) -> dict[str, Fact]:
    """Why no difference of the sides can be called memory; empty: nothing is known."""
    spans = occurrences(part)
    if not (spans["stratum"] < 0).any():
        return {}
    auc = spans["text_auc"].max()
    if np.isnan(auc):
        return {"fewest": ENOUGH}
    told = Row(
        audit="matched",
        checkpoint=name,
        metric="text_auc",
        value=auc,
        clusters=spans["cluster"].nunique(),
    )
    return {"text_auc": told}


def _change(spans: pd.DataFrame) -> np.ndarray:
    return np.asarray(spans["nll_sum"] - spans["ref_sum"], dtype=np.float64)


def moved_of(spans: pd.DataFrame, controls: pd.Series, *, seed: int | None) -> Moved:
    """What :class:`Moved` says of some occurrences.

    Parameters
    ----------
    controls
        Change of the control, nats, by pair.
    seed
        Of the permutations; ``None`` for none: no claim rests on these occurrences.
    """
    sides, change = sides_of(spans), _change(spans)
    own = memory(change, sides)
    reach = unequal(memory(spans["ref_sum"].to_numpy(), sides).difference)
    p, least = own.t_p(null=reach), 0.0
    if seed is not None and p is not None and (spans["form"] > 0).all():
        # Chance dealt them to the sides: what it could have dealt is known.
        dealt = permutation_p(change, sides, seed=seed, replicates=PERMUTATIONS)
        if dealt is not None:
            p, least = max(p, dealt), least_p(sides, replicates=PERMUTATIONS)
    se = own.difference.se
    test = Power(test="t", se=se, df=own.freedom, beyond=reach, least_p=least)
    paired = (spans["role"] == "pii").to_numpy()
    matched = spans[paired]
    apart = change[paired] - controls.reindex(matched["pair"]).to_numpy()
    return Moved(own, memory(apart, sides[paired]), reach, p, (test,) if se else ())


def unequal(before: Estimate) -> float:
    """Nats by which one side was clearly harder on the reference already; else 0."""
    if before.value is None:
        return 0.0
    if before.low is not None and before.high is not None:
        return 0.0 if before.low <= 0 <= before.high else abs(before.value)
    return abs(before.value)


def sides_before(part: pd.DataFrame) -> Estimate:
    """Trained minus never trained on the reference, nats per token."""
    spans = occurrences(part)
    return memory(spans["ref_sum"].to_numpy(), sides_of(spans)).difference


def groups_of(spans: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """All identifiers, those of each type, and those of each dose with all held out.

    A type or dose that is the only one has no group of its own.
    """
    yield "pooled", spans
    trained = spans["split"] == "train"
    lowest = spans[trained].sort_values("dose", kind="stable")
    doses = spans["dose"].clip(lower=1).map(dose_group).where(trained, "")
    for name, values in (("type", spans["type"]), ("dose", doses)):
        known = sorted(set(values[trained]))
        if name == "dose":
            known = list(dict.fromkeys(doses[lowest.index]))
        for value in known if len(known) > 1 else ():
            held = ~trained if name == "dose" else False
            yield f"{name}:{value}", spans[(values == value) | held]


def memory_rows(
    name: str, part: pd.DataFrame, *, reference: bool, seed: int
) -> tuple[list[Row], dict[str, Moved]]:
    """The change of identifiers on either side, and their difference, by group.

    Sides that were unequally hard on the reference drift unequally where drift depends
    on difficulty; at most, what they differed by is lost. That is the difference's
    ``null_low`` and ``null_high``.

    Returns
    -------
    rows
        Of metrics ``pii_change``, ``memory``, ``kind`` and ``specific``.
    tests
        Of no memory, by group.
    """
    spans = occurrences(part)
    if reference:
        lost = Moved(Memory.missing(REFERENCE), Memory.missing(REFERENCE))
        missing = Estimate.missing(REFERENCE)
        return [*_rows(name, "pooled", lost), _trend_row(name, missing)], {}
    control = part[part["role"] == "control"]
    controls = pd.Series(_change(control), index=control["pair"])
    rows, tests = [], {}
    groups = list(groups_of(spans))
    # The two groups that claims rest on; doses come last, the highest at the end.
    claimed = {"pooled", groups[-1][0]}
    for group, chosen in groups:
        own = seed if group in claimed else None
        found = moved_of(chosen, controls, seed=own)
        rows += _rows(name, group, found)
        tests[group] = found
    trend = dose_trend(_change(spans), sides_of(spans), spans["dose"])
    return [*rows, _trend_row(name, trend)], tests


def _rows(name: str, group: str, found: Moved) -> list[Row]:
    band = {"null": 0.0, "null_low": -found.reach, "null_high": found.reach}
    own, beyond = found.own, found.beyond
    return [
        Row.of_estimate(
            estimate,
            audit="matched",
            checkpoint=name,
            metric=metric,
            of=of,
            group=group,
            unit="nats",
            **more,
        )
        for metric, of, estimate, more in (
            ("pii_change", "trained", own.trained, {}),
            ("pii_change", "never-trained", own.held_out, {}),
            ("memory", "", own.difference, band),
            ("kind", "", beyond.held_out, {"null": 0.0}),
            ("specific", "", beyond.difference, {"null": 0.0}),
        )
    ]


def _trend_row(name: str, trend: Estimate) -> Row:
    return Row.of_estimate(
        trend,
        audit="matched",
        checkpoint=name,
        metric="memory",
        of="trend",
        unit="nats",
        null=0.0,
    )


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
    return Row.of_estimate(
        found, audit="matched", checkpoint=name, metric="low_change", unit="nats"
    )


def low_contrast(name: str, baseline: str, low: dict[str, pd.DataFrame]) -> Contrast:
    """Drift of low-sensitivity text minus that of the baseline."""
    ours, theirs = low[name], low[baseline]
    found = _low_estimate(ours["change"], ours["n_tokens"][:0])
    if len(ours) and len(theirs):
        found = _low_estimate(ours["change"] - theirs["change"], ours["n_tokens"])
    return Contrast.of_estimate(
        found,
        audit="matched",
        checkpoint=name,
        baseline=baseline,
        metric="low_change",
        unit="nats",
    )


def own_change(spans: pd.DataFrame) -> Estimate:
    """Change of the NLL of matched identifiers since the reference, nats per token."""
    pii = spans[(spans["split"] == "train") & (spans["role"] == "pii")]
    sums = pii.assign(change=pii["nll_sum"] - pii["ref_sum"]).groupby("cluster")
    return ratio_estimate(sums["change"].sum(), sums["n_tokens"].sum())
