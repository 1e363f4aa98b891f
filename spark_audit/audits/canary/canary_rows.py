"""Rows and contrasts of the canary audit, with their values by chance."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd

from spark_audit import sentences
from spark_audit.audits.base import Context
from spark_audit.audits.canary.rank_tests import hits_of, resolved, tied
from spark_audit.audits.metric import Metric
from spark_audit.audits.ratio_rows import ratio_figures, sums_of_frame
from spark_audit.data.canaries import RANKED
from spark_audit.results import Contrast, Row
from spark_audit.stats.candidate_ranks import top_k_credit
from spark_audit.stats.chance_ranks import (
    chance_mde,
    null_mean,
    null_moments,
    top_k_mde,
)

OFS = (*RANKED, *(f"{part}/annotation" for part in RANKED))

_ranked = partial(Metric, variants=OFS, missing=RANKED)
METRICS = (
    _ranked("nll", "nats", bounds=(0.0, np.inf), learned=-1),
    _ranked("rank_mean", "ranks", bounds=(1.0, np.inf), learned=-1),
    _ranked(
        "exposure_mean",
        "bits",
        bounds=(0.0, np.inf),
        learned=1,
        glance=("full",),
        headline=("full",),
    ),
    *(_ranked(f"top{k}_rate", rate=True, learned=1) for k in (1, 10)),
)
"""Ranks and exposures are bounded by the number of candidates, once it is known."""


TOP = {"top1_rate": 1, "top10_rate": 10}


def canary_figures(
    once: pd.DataFrame, often: pd.DataFrame, context: Context
) -> tuple[list[Row], list[Contrast]]:
    """Rows with their values by chance, and contrasts.

    ``once`` holds a rank a canary, ``often`` one a context. Top-1 has no contrast: so
    few canaries cannot show its change.
    """
    size = int(once["n_candidates"].iloc[0])
    tops = {"rank_mean": (1.0, float(size)), "exposure_mean": (0.0, np.log2(size))}
    metrics = {
        each.name: replace(each, bounds=tops.get(each.name, each.bounds))
        for each in METRICS
    }
    ofs = [once["part"], often["part"] + "/annotation"]
    frame = pd.concat([once, often], ignore_index=True)
    credits = {
        metric: top_k_credit(frame["rank"], k=k, ties=frame["ties"])
        for metric, k in TOP.items()
    }
    frame = frame.assign(
        of=pd.concat(ofs, ignore_index=True), cluster=frame["canary_id"], **credits
    )
    columns = {"nll": "nll_mean", "exposure_mean": "exposure"}
    columns |= {metric: metric for metric in TOP} | {"rank_mean": "mid"}
    rows, contrasts = ratio_figures(
        [sums_of_frame("pooled", frame, columns, context)],
        context,
        audit="canary",
        metrics=metrics,
        # A percentile interval of a mean rank covers far too rarely: never a decision.
        heavy=("rank_mean",),
        alone=("top1_rate",),
    )
    order = {metric: i for i, metric in enumerate(metrics)}
    # Cut once for the rows of all metrics.
    first, each = (cache(partial(_of_part, ranks)) for ranks in (once, often))
    rows = [
        _beside_chance(row, first(*place), each(*place))
        for row in rows
        for place in [(row.checkpoint, row.of.partition("/")[0])]
    ]
    names = list(dict.fromkeys(once["checkpoint"]))
    rows.sort(key=lambda r: (names.index(r.checkpoint), r.of, order[r.metric]))
    return rows, contrasts


def _of_part(frame: pd.DataFrame, checkpoint: str, part: str) -> pd.DataFrame:
    """The ranks of a checkpoint's part."""
    return frame[(frame["checkpoint"] == checkpoint) & (frame["part"] == part)]


def _beside_chance(row: Row, once: pd.DataFrame, often: pd.DataFrame) -> Row:
    """The row with its chance value, band, and the smallest effect it could show.

    ``once`` holds a rank a canary, ``often`` one a context.
    """
    if row.metric == "nll" or row.value is None:
        return row
    n, size = len(once), int(once["n_candidates"].iloc[0])
    change = dict[str, Any]()
    annotation = "/" in row.of
    # Others show nothing, however large the effect.
    able = max(1, int(resolved(once).sum()))
    note = "the chance band assumes that all rows of a canary have the same rank"
    if row.metric in TOP:
        if (k := TOP[row.metric]) >= size:
            return row
        hits = hits_of(once, k=k)
        least = top_k_mde(able, k=k, n_candidates=size)
        change = {
            "null": hits.null,
            "null_low": hits.null_low / n,
            "null_high": hits.null_high / n,
            "mde": least and least.rate - hits.null,
        }
        if not annotation:
            change |= {
                "low": hits.low,
                "high": hits.high,
                "interval": "clopper-pearson",
                "note": "",
            }
    else:
        of, moments = row.metric.removesuffix("_mean"), null_moments(size)
        null = null_mean([size] * n, of="rank" if of == "rank" else "exposure")
        least_shift = chance_mde(able, n_candidates=size)
        low, high = null.band(row.level)
        change = {
            "null": moments.rank_mean if of == "rank" else moments.exposure_mean,
            "null_low": low,
            "null_high": high,
            "mde": least_shift.ranks if of == "rank" else least_shift.bits,
        }
    if annotation:
        change["note"] = "; ".join(text for text in (row.note, note) if text)
    ranks = often if annotation else once
    if count := tied(ranks):
        facts = {"tied": count, "canaries": len(ranks)}
        remark = sentences.render("canary.ties", **facts)
        before = change.get("note", row.note)
        change["note"] = f"{before}; {remark}" if before else remark
    return row.model_copy(update=change)
