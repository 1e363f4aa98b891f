"""A manifest in figures: what was matched, how well, and what could be detected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.data.canaries import RANKED
from spark_audit.errors import NotEstimableError
from spark_audit.manifest.schema import Manifest
from spark_audit.sentences import render
from spark_audit.stats.balance import effective_clusters
from spark_audit.stats.matching import NO_WINDOW, non_overlapping_windows
from spark_audit.stats.power import clusters_needed, mde, mde_normal

Record = dict[str, Any]

CLUSTER_SD = 1.43
"""Nats: ``SE sqrt(51)`` over the 51 sources of SPARK's difficulty-matched evaluation,
with the SE of the interval that it prints for SPARK itself.

The reference says nothing about how checkpoints will spread, so this is an assumption.
"""

TOO_SHORT = "no eligible window of its length"
HALF = 0.5
"""Of a type with a smaller matched share is said why."""
EDGE = 0.9
"""Pairs farther apart than this share of the caliper stand at its edge."""


COUNTS = tuple(
    """examples tasks train test sources clusters largest_cluster rows_joined
    joined_by_source joined_by_canary joined_by_string joined_by_near_duplicate
    tokens tokens_scored texts_cut spans spans_of_canaries spans_partial spans_cut
    pairs unmatched canaries canary_parts canary_parts_rankable canary_rows_cut
    twins twins_lost members non_members rows_near_duplicate""".split()
)
"""The counts of a manifest in reading order."""


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
            # A file has them by the alphabet.
            **{
                name.replace("_", " "): manifest.counts[name]
                for name in dict.fromkeys((*COUNTS, *manifest.counts))
                if name in manifest.counts
            },
            **_pair_facts(pairs, edge=EDGE * manifest.settings.caliper),
            **_gap_facts(manifest),
        },
        tables={
            "what can be judged": _judged(spans),
            "spans by task": _by_task(spans),
            "unmatched spans": reasons.reset_index(name="spans").to_dict("records"),
            "balance": [row.model_dump() for row in manifest.balance],
            "effects to expect": [
                dict(zip(("figure", "n", "unit", "mde", "assumes"), row, strict=True))
                for row in _effects(manifest, pairs["cluster"].nunique())
            ],
            "canaries": _canaries(manifest),
        },
        notes=tuple(manifest.notes),
        summary=tuple(_summary(manifest, train, len(spans) - len(train))),
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
                "groups of rows": groups,
                "effect to expect, nats": _change(groups),
            }
        )
    return rows


def _change(clusters: int) -> float | None:
    """Smallest change of NLL that so many clusters show, under :data:`CLUSTER_SD`."""
    if clusters < 2:
        return None
    return _or_none(lambda: mde(CLUSTER_SD / math.sqrt(clusters), clusters=clusters))


def _summary(manifest: Manifest, train: pd.DataFrame, held_out: int) -> Iterator[str]:
    yield render(
        "overview.trained" if len(train) else "overview.no_identifier",
        name=manifest.name,
        trained=len(train),
        held_out=held_out,
        matched=int(train["matched"].sum()),
        share=train["matched"].mean(),
    )
    if len(train) and not held_out:
        yield render("overview.no_held_out")
    few: dict[str, list[str]] = {}
    for kind, of in train.groupby("type"):
        if of["matched"].mean() < HALF:
            short = of["reason"] == TOO_SHORT
            why = "window" if 2 * short.sum() > (~of["matched"]).sum() else "caliper"
            few.setdefault(why, []).append(str(kind))
    for why, types in few.items():
        caliper = f"{manifest.settings.caliper:g}"
        yield render(f"overview.{why}", types=types, caliper=caliper)
    planted = {c.canary_id: c.held_out for c in manifest.canaries}
    out = sum(planted.values())
    said = "canaries" if planted else "no_canaries"
    yield render(f"overview.{said}", planted=len(planted) - out, held_out=out)


def _by_task(spans: pd.DataFrame) -> Any:
    """Matched and unmatched spans and PII tokens by task."""
    counts = spans.groupby("task").agg(
        spans=("matched", "size"),
        matched=("matched", "sum"),
        share=("matched", "mean"),
        tokens_matched=("tokens", "sum"),
    )
    return counts.rename_axis("group").reset_index().to_dict("records")


def _pair_facts(pairs: pd.DataFrame, *, edge: float) -> dict[str, int | float | None]:
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
        "distance median": apart.median(),
        "distance p90": apart.quantile(0.9),
        "distance p95": apart.quantile(0.95),
        "distance max": apart.max(),
        f"share of pairs farther than {EDGE:g} calipers": (apart > edge).mean(),
        "Delta_sel on the reference": gap,
    }
    return {
        "pairs in train rows": len(pairs),
        "tokens in them": sum(tokens),
        "clusters in them": len(tokens),
        "effective clusters": _or_none(lambda: effective_clusters(tokens)),
        **{k: None if pd.isna(v) else float(v) for k, v in figures.items()},
    }


def _gap_facts(manifest: Manifest) -> dict[str, float | None]:
    """How much harder PII is than other text: regression to the mean grows with it."""
    # Micro-nats and tokens: of PII, of other text, of PII less that of its windows.
    pii, other, inside = sums = np.zeros((3, 2))
    for example in () if manifest.redacted_from else manifest.examples:
        spans = [tokens for span, tokens in example.identifiers if span.part is None]
        if not spans or example.split != "train":
            continue
        eligible = example.unll[example.eligible]
        other += eligible.sum(), len(eligible)
        for start, end in spans:
            length, total = end - start, example.unll[start:end].sum()
            pii += total, length
            windows = non_overlapping_windows(example.eligible, length)
            if len(windows):
                at = windows[:, None] + np.arange(length)
                inside += total - length * example.unll[at].mean(), length
    means = [total / count / 1e6 if count else None for total, count in sums.tolist()]
    of_pii, of_other, of_inside = means
    return {
        "reference NLL of PII": of_pii,
        "reference NLL of other text": of_other,
        "gap": None if of_pii is None or of_other is None else of_pii - of_other,
        "gap to windows of the same example and length": of_inside,
    }


def _effects(manifest: Manifest, count: int) -> Iterator[tuple[object, ...]]:
    """Effects that a two-sided 5% test would find with 80% power, and under what.

    Figure, number of units, unit, effect and assumption.

    Parameters
    ----------
    count
        Clusters of train rows with pairs.
    """
    enough = ", ".join(
        f"{clusters_needed(CLUSTER_SD, effect)} clusters for {effect:g}"
        for effect in (0.5, 0.2)
    )
    spread = f"an SD of {CLUSTER_SD:g} nats over clusters, as SPARK's interval implies"
    yield "matched delta_sel, did", count, "nats", _change(count), f"{spread}; {enough}"
    for part in RANKED:
        planted = [
            len(c.candidates)
            for c in manifest.canaries
            if c.part == part and not c.held_out and c.true_index is not None
        ]
        if planted:
            se = math.sqrt((planted[0] ** 2 - 1) / 12) / math.sqrt(len(planted))
            figure = f"canary rank_mean {part}"
            yield figure, len(planted), "ranks", mde_normal(se), "uniform ranks"
    members = len(manifest.membership.members)
    others = len(manifest.membership.non_members)
    if members and others:
        se = math.sqrt((members + others + 1) / (12 * members * others))
        rows = f"scores without a signal; {members} members, {others} non-members"
        yield "mia auc", members + others, "AUC", mde_normal(se), rows


def _canaries(manifest: Manifest) -> Any:
    """Canaries by part, dose and whether they were held out."""
    fields = "part dose held_out true_index n_tokens reason".split()
    rows = [[getattr(c, name) for name in fields] for c in manifest.canaries]
    canaries = pd.DataFrame(rows, columns=fields).astype({"n_tokens": "Int64"})
    canaries["ok"] = canaries["true_index"].notna()
    canaries["contexts"] = [len(c.contexts) for c in manifest.canaries]
    canaries["contexts"] *= canaries["ok"]
    table = canaries.groupby(["part", "dose", "held_out"], as_index=False).agg(
        canaries=("ok", "size"),
        rankable=("ok", "sum"),
        contexts=("contexts", "sum"),
        tokens_min=("n_tokens", "min"),
        tokens_median=("n_tokens", "median"),
        tokens_max=("n_tokens", "max"),
        reasons=("reason", lambda held: "; ".join(sorted(held.dropna().unique()))),
    )
    return table.astype(object).where(table.notna(), None).to_dict("records")


def _or_none(compute: Callable[[], float]) -> float | None:
    try:
        return compute()
    except NotEstimableError:
        return None
