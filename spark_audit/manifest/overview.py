"""A manifest in figures: what was matched, how well, and what could be detected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.errors import NotEstimableError
from spark_audit.manifest.schema import Manifest, ManifestCanary
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

GROUPS = ("type", "task", "split")
"""What spans are counted by."""
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
    train = spans[spans["matched"] & (spans["split"] == "train")]
    reasons: Any = spans[~spans["matched"]].groupby(["reason", "type"]).size()
    return Description(
        facts={
            "name": manifest.name,
            "digest": manifest.digest,
            "redacted from": manifest.redacted_from,
            "reference": manifest.reference.name,
            "reference dtype": manifest.reference.dtype,
            **_settings(manifest),
            # A file has them by the alphabet.
            **{
                name.replace("_", " "): manifest.counts[name]
                for name in dict.fromkeys((*COUNTS, *manifest.counts))
                if name in manifest.counts
            },
            **_pair_facts(train, manifest),
            **_gap_facts(manifest),
        },
        tables={
            "what can be judged": _judged(spans),
            "spans by task": _by(spans, "task"),
            "unmatched spans": reasons.reset_index(name="spans").to_dict("records"),
            "balance": [row.model_dump() for row in manifest.balance],
            "effects to expect": _effects(manifest, train["cluster"].nunique()),
            "canaries": _canaries(manifest),
        },
        notes=tuple(manifest.notes),
        summary=tuple(_summary(manifest, spans)),
    )


def _judged(spans: pd.DataFrame) -> list[Record]:
    """By type, what can be judged of trained identifiers."""
    rows = []
    for kind, of in spans.groupby("type"):
        trained = of[of["split"] == "train"]
        matched = trained[trained["matched"]]
        groups = matched["cluster"].nunique()
        rows.append(
            {
                "type": kind,
                "trained": len(trained),
                "held out": len(of) - len(trained),
                "with control": len(matched),
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


def _summary(manifest: Manifest, spans: pd.DataFrame) -> Iterator[str]:
    train = spans[spans["split"] == "train"]
    held_out = len(spans) - len(train)
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


def _spans(manifest: Manifest) -> pd.DataFrame:
    """Spans that are no part of a canary, matched or not; scores NaN where redacted."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for pair in manifest.pairs:
            of, pii = manifest.by_id[pair.example], pair.pii
            length, distance, gap = pii.token_end - pii.token_start, np.nan, np.nan
            if pair.distance is not None:
                distance = pair.distance
            if pii.nll is not None and pair.control.nll is not None:
                gap = pii.nll - pair.control.nll
            place = pii.type, of.task, of.split, of.cluster
            yield *place, True, length, distance, gap, ""
        for span in manifest.unmatched:
            of, reason = manifest.by_id[span.example], span.reason
            if reason.startswith(NO_WINDOW.format("")):
                reason = TOO_SHORT
            place = span.type, of.task, of.split, of.cluster
            yield *place, False, 0, np.nan, np.nan, reason

    fields = "matched tokens distance gap reason"
    columns = [*GROUPS, "cluster", *fields.split()]
    found = pd.DataFrame(rows(), columns=columns)
    return found.astype({"matched": bool, "tokens": int, "distance": float})


def _settings(manifest: Manifest) -> dict[str, Any]:
    # None is no missing figure here.
    none = {"canary_contexts": "all", "max_length": "no limit"}
    found = manifest.settings.model_dump()
    return {name: none.get(name) if v is None else v for name, v in found.items()}


def _by(spans: pd.DataFrame, group: str) -> Any:
    """Matched and unmatched spans and PII tokens by group."""
    grouped = spans.groupby(group)
    counts = {
        "spans": grouped.size(),
        "matched": grouped["matched"].sum(),
        "share": grouped["matched"].mean(),
        "tokens_matched": grouped["tokens"].sum(),
    }
    return pd.DataFrame(counts).rename_axis("group").reset_index().to_dict("records")


def _pair_facts(
    train: pd.DataFrame, manifest: Manifest
) -> dict[str, int | float | None]:
    """Pairs of train rows: their clusters, and how well they match.

    Their Delta_sel on the reference is what matching has left of difficulty.
    """
    tokens = train.groupby("cluster")["tokens"].sum().tolist()
    distance = train["distance"].dropna()
    edge = EDGE * manifest.settings.caliper

    def figure(compute: Callable[[], Any]) -> float | None:
        return float(compute()) if len(distance) else None

    return {
        "pairs in train rows": len(train),
        "tokens in them": sum(tokens),
        "clusters in them": len(tokens),
        "effective clusters": _or_none(lambda: effective_clusters(tokens)),
        "distance mean": figure(distance.mean),
        "distance median": figure(distance.median),
        "distance p90": figure(lambda: distance.quantile(0.9)),
        "distance p95": figure(lambda: distance.quantile(0.95)),
        "distance max": figure(distance.max),
        f"share of pairs farther than {EDGE:g} calipers": figure(
            lambda: (distance > edge).mean()
        ),
        "Delta_sel on the reference": figure(
            lambda: np.average(train["gap"], weights=train["tokens"])
        ),
    }


def _gap_facts(manifest: Manifest) -> dict[str, int | float | None]:
    """How much harder PII is than other text: regression to the mean grows with it."""
    pii = np.zeros(2)
    other = np.zeros(2)
    inside = np.zeros(2)
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
    means = [
        None if not count else float(total / count / 1e6)
        for total, count in (pii, other, inside)
    ]
    gap = None if means[0] is None or means[1] is None else means[0] - means[1]
    return {
        "reference NLL of PII": means[0],
        "reference NLL of other text": means[1],
        "gap": gap,
        "gap to windows of the same example and length": means[2],
    }


def _effects(manifest: Manifest, count: int) -> list[Record]:
    """Effects that a two-sided 5% test would find with 80% power, and under what.

    Parameters
    ----------
    count
        Clusters of train rows with pairs.
    """
    found: list[Record] = [
        {
            "figure": "matched delta_sel, did",
            "n": count,
            "unit": "nats",
            "mde": _change(count),
            "assumes": f"an SD of {CLUSTER_SD:g} nats over clusters, as SPARK's "
            "interval implies; "
            + ", ".join(
                f"{clusters_needed(CLUSTER_SD, effect)} clusters for {effect:g}"
                for effect in (0.5, 0.2)
            ),
        }
    ]
    for part in ("full", "password", "ssn"):
        planted = [
            c
            for c in manifest.canaries
            if c.part == part and not c.held_out and c.true_index is not None
        ]
        if not planted:
            continue
        sd = math.sqrt((len(planted[0].candidates) ** 2 - 1) / 12)
        found.append(
            {
                "figure": f"canary rank_mean {part}",
                "n": len(planted),
                "unit": "ranks",
                "mde": mde_normal(sd / math.sqrt(len(planted))),
                "assumes": "uniform ranks",
            }
        )
    members = len(manifest.membership.members)
    others = len(manifest.membership.non_members)
    if members and others:
        se = math.sqrt((members + others + 1) / (12 * members * others))
        found.append(
            {
                "figure": "mia auc",
                "n": members + others,
                "unit": "AUC",
                "mde": mde_normal(se),
                "assumes": f"scores without a signal; {members} members, {others} "
                "non-members",
            }
        )
    return found


def _canaries(manifest: Manifest) -> list[Record]:
    """Canaries by part, dose and whether they were held out."""
    groups: dict[tuple[str, int, bool], list[ManifestCanary]] = {}
    for canary in manifest.canaries:
        key = (canary.part, canary.dose, canary.held_out)
        groups.setdefault(key, []).append(canary)
    rows = []
    for group, found in sorted(groups.items()):
        lengths = [c.n_tokens for c in found if c.n_tokens is not None]
        ok = [c for c in found if c.true_index is not None]
        rows.append(
            {
                **dict(zip(("part", "dose", "held_out"), group, strict=True)),
                "canaries": len(found),
                "rankable": len(ok),
                "contexts": sum(len(c.contexts) for c in ok),
                "tokens_min": min(lengths, default=None),
                "tokens_median": float(np.median(lengths)) if lengths else None,
                "tokens_max": max(lengths, default=None),
                "reasons": "; ".join(sorted({c.reason for c in found if c.reason})),
            }
        )
    return rows


def _or_none(compute: Callable[[], float]) -> float | None:
    try:
        return compute()
    except NotEstimableError:
        return None
