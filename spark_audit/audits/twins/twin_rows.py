"""Rows of the twins audit: exposures, their rise since the base, and beyond others'.

Frames hold one row a checkpoint and identifier with ``mid``, ``exposure`` and ``top1``
(ties count as on average over random orders), ``side`` and, where the base was scored,
``rise``: exposure minus that on the base, bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context, missing_rows
from spark_audit.audits.canary.rank_tests import COLLAPSED, marked, resolved
from spark_audit.audits.metric import Metric, by_name
from spark_audit.audits.ratio_rows import beside_base, ratio_figures, sums_of_frame
from spark_audit.data.occurrences import DOSES, dose_group
from spark_audit.names import BASE
from spark_audit.results import Contrast, Row
from spark_audit.stats.candidate_ranks import exposure_bits, top_k_credit
from spark_audit.stats.memory import Memory, Sides, memory

TRAINED, NEVER = "trained", "never-trained"
SIDES = (TRAINED, NEVER)
LABELS = {
    TRAINED: "identifiers of trained rows",
    NEVER: "identifiers never trained on",
}

_of_sides = partial(Metric, learned=1, variants=SIDES, missing=(TRAINED,))
METRICS = (
    _of_sides(
        "rise",
        "bits",
        null=0.0,
        panel="rises",
        counted=(TRAINED,),
        glance=(TRAINED,),
        headline=(TRAINED,),
    ),
    Metric(
        "beyond",
        "bits",
        partner="rise",
        learned=1,
        null=0.0,
        variants=("rise", "exposure"),
        panel="rises",
    ),
    _of_sides("exposure_mean", "bits", bounds=(0.0, np.inf)),
    _of_sides("top1_rate", rate=True),
)


KNOWN = {metric.name: metric for metric in METRICS}
CONTROL = 5
"""Clusters never trained on that a comparison needs; fewer show nothing."""
TIED = f"nearly all strings are tied: {COLLAPSED}"
NO_BASE = (
    "the base model was not scored: give --base, because a rise is since the base model"
)
NO_TRAINED = "no identifier of trained rows has twins"


def ranked(evidence: pd.DataFrame) -> pd.DataFrame:
    """The evidence with exposures, and rises where the base was scored."""
    rank, ties = evidence["rank"].to_numpy(), evidence["ties"].to_numpy()
    frame = evidence.assign(
        side=np.where(evidence["dose"] > 0, TRAINED, NEVER),
        exposure=exposure_bits(rank, evidence["n_candidates"].to_numpy(), ties=ties),
        top1=top_k_credit(rank, k=1, ties=ties),
    )
    base = frame[frame["checkpoint"] == BASE].set_index("twins_id")["exposure"]
    if base.empty:
        return frame
    before = base.loc[frame["twins_id"]].to_numpy()
    return frame.assign(rise=frame["exposure"].to_numpy() - before)


def groups(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Group and rows: both sides pooled, and trained ones by type and dose."""
    yield "pooled", frame
    ours = frame[frame["side"] == TRAINED]
    for kind in sorted(set(ours["type"])):
        yield f"type:{kind}", ours[ours["type"] == kind]
    for name, part in by_dose(ours):
        yield f"dose:{name}", part


def by_dose(ours: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Trained identifiers by group of doses, the lowest first."""
    names = ours["dose"].map(dose_group)
    for name in map(dose_group, DOSES):
        if (names == name).any():
            yield name, ours[names == name]


def figures(frame: pd.DataFrame, context: Context) -> tuple[list[Row], list[Contrast]]:
    """All rows and contrasts, those of a collapsed model marked."""
    most = float(np.log2(frame["n_candidates"].max()))
    metrics = by_name(
        replace(one, bounds=(0.0, most)) if one.name == "exposure_mean" else one
        for one in METRICS
    )
    columns = {"exposure_mean": "exposure", "top1_rate": "top1"}
    cells = frame.assign(of=frame["side"])
    cells = cells.sort_values("of", ascending=False, kind="stable")
    if "rise" in frame:
        columns["rise"] = "rise"
        cells["rise"] = cells["rise"].where(cells["checkpoint"] != BASE)
    rows, contrasts = ratio_figures(
        (sums_of_frame(*group, columns, context) for group in groups(cells)),
        context,
        audit="twins",
        metrics=metrics,
        # The rise against a baseline is the difference of exposures.
        alone=("rise",),
    )
    # The null of a rise is 0, that of ranks the base's figure.
    rows = [
        row if row.metric == "rise" else beside
        for row, beside in zip(rows, beside_base(rows), strict=True)
    ]
    names = list(dict.fromkeys(frame["checkpoint"]))
    if not (frame["side"] == TRAINED).any():
        rows += missing_rows("twins", names, METRICS, NO_TRAINED)
    elif "rise" not in frame:
        rows += missing_rows("twins", names, [KNOWN["rise"]], NO_BASE)
    for name in names:
        if name != BASE:
            rows += _beyond_rows(name, frame[frame["checkpoint"] == name])
    order = {name: i for i, name in enumerate(KNOWN)}
    rows.sort(key=lambda row: (names.index(row.checkpoint), order[row.metric]))
    lost = collapsed(frame)

    def tied(row: Row) -> str | None:
        sides = {row.checkpoint, getattr(row, "baseline", row.checkpoint)}
        of_base = {BASE} if row.metric in ("rise", "beyond") else set()
        return TIED if (sides | of_base) & lost else None

    rows, contrasts = (
        marked(side, "not_resolvable", tied) for side in (rows, contrasts)
    )
    return rows, contrasts


def beyond(ours: pd.DataFrame, others: pd.DataFrame) -> tuple[Memory, Sides] | None:
    """Trained minus never trained within strata, of one checkpoint; what is held so.

    Of rises, or of exposures where the base was not scored. ``None`` where too few were
    never trained on.
    """
    if others["cluster"].nunique() < CONTROL or ours.empty:
        return None
    both = pd.concat([ours, others])
    sides = Sides(
        trained=(both["side"] == TRAINED).to_numpy(),
        tokens=np.ones(len(both)),
        clusters=pd.factorize(both["cluster"])[0],
        strata=both.groupby(["type", both["stratum"].abs()])
        .ngroup()
        .to_numpy()[:, None],
    )
    return memory(both[compared(both)].to_numpy(), sides), sides


def held_out(frame: pd.DataFrame) -> pd.DataFrame:
    """Identifiers never trained on that text does not tell from trained ones."""
    return frame[(frame["side"] == NEVER) & (frame["stratum"] >= 0)]


def compared(frame: pd.DataFrame) -> str:
    """The column by which the two sides are compared."""
    return "rise" if "rise" in frame else "exposure"


def _beyond_rows(name: str, frame: pd.DataFrame) -> Iterator[Row]:
    others = held_out(frame)
    ours = frame[frame["side"] == TRAINED]
    parts = [("pooled", ours), *((f"dose:{k}", part) for k, part in by_dose(ours))]
    for group, part in parts:
        if (found := beyond(part, others)) is None:
            continue
        # What can be worked out of the smaller side is withheld as that is.
        sides = (part["cluster"].nunique(), others["cluster"].nunique())
        estimate = replace(found[0].difference, clusters=min(sides))
        yield Row.of_estimate(
            estimate,
            audit="twins",
            checkpoint=name,
            group=group,
            metric="beyond",
            of=compared(part),
            unit="bits",
            null=0.0,
        )


def collapsed(frame: pd.DataFrame) -> set[str]:
    """Checkpoints none of whose identifiers is resolved among its twins."""
    able = resolved(frame).groupby(frame["checkpoint"]).any()
    return set(able.index[~able])
