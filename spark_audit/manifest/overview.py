"""A manifest in figures: what was matched, how well, and what could be detected."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.data.canaries import RANKED
from spark_audit.manifest.schema import Manifest
from spark_audit.sentences import render
from spark_audit.stats.chance_ranks import chance_mde
from spark_audit.stats.matching import NO_WINDOW, effective_clusters
from spark_audit.stats.power import clusters_needed, mde, mde_normal

Record = dict[str, Any]

CLUSTER_SD = 1.43
"""Nats: ``SE sqrt(51)`` over the 51 sources of SPARK's difficulty-matched evaluation,
with the SE of the interval that it prints for SPARK itself.

The reference says nothing about how checkpoints will spread, so this is an assumption.
"""

TOO_SHORT = "no eligible window of its length"
HALF = 0.5
"""A type with a smaller matched share is named first, with the reason."""


@dataclass(frozen=True)
class Description:
    """A manifest as plain data, for people.

    ``facts`` are single figures by name; ``tables`` lists of records of the same
    fields, by title; ``None`` is a figure that has no value. ``summary`` says what can
    be judged, and what to change. No text of an example is in it.
    """

    facts: dict[str, str | int | float | None]
    tables: dict[str, list[Record]]
    notes: tuple[str, ...]
    summary: tuple[str, ...]


def describe(manifest: Manifest) -> Description:
    """Describe a manifest; a redacted one too, less the figures from its scores.

    Figures of pairs and spans are over train rows, which are what is audited; the
    tables by type and by task count both splits.
    """
    spans = _spans(manifest)
    train = spans[spans["split"] == "train"]
    pairs = train[train["matched"]]
    reasons: Any = spans[~spans["matched"]].groupby(["reason", "type"]).size()
    judged = _judged(spans)
    # None is no missing figure here.
    unset = {"canary_contexts": "all", "max_length": "no limit"}
    settings = manifest.settings.model_dump().items()
    return Description(
        facts={
            "name": manifest.name,
            "digest": manifest.digest,
            "redacted from": manifest.redacted_from,
            "reference": manifest.reference.name,
            "reference dtype": manifest.reference.dtype,
            **{k: unset.get(k) if v is None else v for k, v in settings},
            **{name.replace("_", " "): n for name, n in manifest.counts.items()},
            **_pair_facts(pairs),
        },
        tables={
            "what can be judged": judged,
            "unmatched spans": reasons.reset_index(name="spans").to_dict("records"),
            "balance": [row.model_dump() for row in manifest.balance],
            "effects to expect": [*_effects(manifest, pairs["cluster"].nunique())],
        },
        notes=tuple(manifest.notes),
        summary=tuple(_summary(manifest, train, judged)),
    )


def _spans(manifest: Manifest) -> pd.DataFrame:
    """Spans that are no part of a canary, matched or not; scores NaN where redacted."""

    def row(key: str, *facts: object) -> tuple[object, ...]:
        example = manifest.by_id[key]
        return example.task, example.split, example.cluster, *facts

    rows = []
    for pair in manifest.pairs:
        pii, theirs = pair.pii, pair.control.nll
        gap = None if pii.nll is None or theirs is None else pii.nll - theirs
        length = pii.token_end - pii.token_start
        rows.append(row(pair.example, pii.type, True, length, pair.distance, gap, ""))
    for span in manifest.unmatched:
        short = span.reason.startswith(NO_WINDOW.format(""))
        reason = TOO_SHORT if short else span.reason
        rows.append(row(span.example, span.type, False, 0, None, None, reason))
    columns = "task split cluster type matched tokens distance gap reason".split()
    types = {"matched": bool, "tokens": int, "distance": float, "gap": float}
    return pd.DataFrame(rows, columns=columns).astype(types)


def _judged(spans: pd.DataFrame) -> list[Record]:
    """By type, what can be judged of trained identifiers."""
    rows = []
    for kind, of in spans.groupby("type"):
        trained = of[of["split"] == "train"]
        groups = trained["cluster"][trained["matched"]].nunique()
        rows.append(
            {
                "type": kind,
                "trained": len(trained),
                "held out": len(of) - len(trained),
                "with control": int(trained["matched"].sum()),
                "clusters": groups,
                "smallest effect, nats": _change(groups),
            }
        )
    return rows


def _change(clusters: int) -> float | None:
    """Smallest change of NLL that so many clusters show, under :data:`CLUSTER_SD`."""
    if clusters < 2:
        return None
    return mde(CLUSTER_SD / math.sqrt(clusters), clusters=clusters)


def _summary(
    manifest: Manifest, train: pd.DataFrame, judged: list[Record]
) -> Iterator[str]:
    """The trouble first, then what each type allows, then what to change."""
    types = [row for row in judged if row["trained"]]

    def share(row: Record) -> float:
        return float(row["with control"] / row["trained"])

    few = sorted((row for row in types if share(row) < HALF), key=share)
    matched, held_out = train["matched"].sum(), sum(row["held out"] for row in judged)
    total = {"type": "", "trained": len(train), "with control": matched}
    yield render(
        "overview.trained" if types else "overview.no_identifier",
        name=manifest.name,
        few=bool(few),
        rows=few[:3] or [total],
    )
    if types and not held_out:
        yield render("overview.no_held_out")
    for row in types:
        yield render("overview.type", row=row, effect=row["smallest effect, nats"])
    if types:
        yield render("overview.legend")
    reasons: dict[str, list[str]] = {}
    for row in few:
        lost = train[(train["type"] == row["type"]) & ~train["matched"]]["reason"]
        why = "window" if (lost == TOO_SHORT).mean() > HALF else "caliper"
        reasons.setdefault(why, []).append(row["type"])
    for why, names in reasons.items():
        caliper = f"{manifest.settings.caliper:g}"
        yield render(f"overview.{why}", types=names, caliper=caliper)
    planted = {c.canary_id: c.held_out for c in manifest.canaries}
    out = sum(planted.values())
    said = "canaries" if planted else "no_canaries"
    yield render(f"overview.{said}", planted=len(planted) - out, held_out=out)


def _pair_facts(pairs: pd.DataFrame) -> dict[str, int | float | None]:
    """Pairs of train rows: their clusters, and how well they match.

    Their Delta_sel on the reference is what matching has left of difficulty.
    """
    tokens = pairs.groupby("cluster")["tokens"].sum().tolist()
    apart = pairs["distance"].dropna()
    gap = None
    if len(apart):
        gap = np.average(pairs["gap"], weights=pairs["tokens"])
    figures = {
        "distance mean": apart.mean(),
        "distance max": apart.max(),
        "Delta_sel on the reference": gap,
    }
    return {
        "pairs in train rows": len(pairs),
        "tokens in them": sum(tokens),
        "clusters in them": len(tokens),
        "effective clusters": effective_clusters(tokens) if tokens else None,
        **{k: None if pd.isna(v) else float(v) for k, v in figures.items()},
    }


def _effects(manifest: Manifest, count: int) -> Iterator[Record]:
    """Effects that a two-sided 5% test would find with 80% power, and under what.

    Parameters
    ----------
    count
        Clusters of train rows with pairs.
    """
    fields = ("figure", "n", "unit", "mde", "assumes")

    def effect(*values: object) -> Record:
        return dict(zip(fields, values, strict=True))

    enough = ", ".join(
        f"{clusters_needed(CLUSTER_SD, effect)} clusters for {effect:g}"
        for effect in (0.5, 0.2)
    )
    spread = f"an SD of {CLUSTER_SD:g} nats over clusters, as SPARK's interval implies"
    assumed = f"{spread}; {enough}"
    yield effect("matched delta_sel, did", count, "nats", _change(count), assumed)
    for part in RANKED:
        planted = [
            len(c.candidates)
            for c in manifest.canaries
            if c.part == part and not c.held_out and c.true_index is not None
        ]
        if planted:
            figure, n = f"canary rank_mean {part}", len(planted)
            least = chance_mde(n, n_candidates=planted[0]).ranks
            yield effect(figure, n, "ranks", least, "uniform ranks")
    members = len(manifest.membership.members)
    others = len(manifest.membership.non_members)
    if members and others:
        se = math.sqrt((members + others + 1) / (12 * members * others))
        rows = f"scores without a signal; {members} members, {others} non-members"
        yield effect("mia auc", members + others, "AUC", mde_normal(se), rows)
