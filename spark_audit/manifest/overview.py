"""A manifest in figures: what was matched, how well, and what could be detected."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_audit.errors import NotEstimableError
from spark_audit.manifest.schema import Manifest, ManifestExample, ManifestPair
from spark_audit.stats.balance import effective_clusters
from spark_audit.stats.matching import NO_WINDOW, non_overlapping_windows
from spark_audit.stats.power import clusters_needed, mde, mde_normal

Record = dict[str, Any]

CLUSTER_SD = 1.43
"""Nats: ``SE sqrt(51)`` over the 51 sources of SPARK's difficulty-matched evaluation,
with the SE of the interval that it prints for SPARK itself.

The reference says nothing about how checkpoints will spread, so this is an assumption.
"""

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
    fields, by title; ``None`` is a figure that has no value. No text of an example is
    in it.
    """

    facts: dict[str, str | int | float | None]
    tables: dict[str, list[Record]]
    notes: tuple[str, ...]


def describe(manifest: Manifest) -> Description:
    """Describe a manifest; a redacted one too, less the figures from its scores.

    Figures of pairs and spans are over train rows, which are what is audited; the
    tables by type and by task count both splits.
    """
    train = [p for p in manifest.pairs if manifest.by_id[p.example].split == "train"]
    facts: dict[str, str | int | float | None] = {
        "name": manifest.name,
        "digest": manifest.digest,
        "redacted from": manifest.redacted_from,
        "reference": manifest.reference.name,
        "reference dtype": manifest.reference.dtype,
        **_settings(manifest),
        **_counts(manifest),
        **_cluster_facts(manifest, train),
        **_distance_facts(manifest, train),
        **_gap_facts(manifest),
    }
    return Description(
        facts=facts,
        tables={
            "spans by type": _by(manifest, lambda example, kind: kind),
            "spans by task": _by(manifest, lambda example, kind: example.task),
            "spans by split": _by(manifest, lambda example, kind: example.split),
            "unmatched spans": _reasons(manifest),
            "balance": [row.model_dump() for row in manifest.balance],
            "effects to expect": _effects(manifest, train),
            "canaries": _canaries(manifest),
        },
        notes=tuple(manifest.notes),
    )


def _counts(manifest: Manifest) -> dict[str, int]:
    """Counts in reading order; a file has them by the alphabet."""
    given = manifest.counts
    names = [name for name in COUNTS if name in given]
    names += [name for name in given if name not in COUNTS]
    return {name.replace("_", " "): given[name] for name in names}


def _settings(manifest: Manifest) -> dict[str, Any]:
    found = manifest.settings.model_dump()
    # None is no missing figure here.
    if found["canary_contexts"] is None:
        found["canary_contexts"] = "all"
    if found["max_length"] is None:
        found["max_length"] = "no limit"
    return found


def _by(
    manifest: Manifest, group: Callable[[ManifestExample, str], str]
) -> list[Record]:
    """Matched and unmatched spans and PII tokens by group."""
    of = manifest.by_id
    matched = Counter(group(of[p.example], p.pii.type) for p in manifest.pairs)
    tokens = Counter[str]()
    for pair in manifest.pairs:
        length = pair.pii.token_end - pair.pii.token_start
        tokens[group(of[pair.example], pair.pii.type)] += length
    missed = Counter(group(of[u.example], u.type) for u in manifest.unmatched)
    return [
        {
            "group": name,
            "spans": matched[name] + missed[name],
            "matched": matched[name],
            "share": matched[name] / (matched[name] + missed[name]),
            "tokens_matched": tokens[name],
        }
        for name in sorted({*matched, *missed})
    ]


def _reasons(manifest: Manifest) -> list[Record]:
    """Unmatched spans by reason and type."""
    count = Counter((_general(u.reason), u.type) for u in manifest.unmatched)
    return [
        {"reason": reason, "type": kind, "spans": n}
        for (reason, kind), n in sorted(count.items())
    ]


def _general(reason: str) -> str:
    of_a_length = reason.startswith(NO_WINDOW.format(""))
    return "no eligible window of its length" if of_a_length else reason


def _cluster_facts(
    manifest: Manifest, pairs: Sequence[ManifestPair]
) -> dict[str, int | float | None]:
    tokens = Counter[str]()
    for pair in pairs:
        cluster = manifest.by_id[pair.example].cluster
        tokens[cluster] += pair.pii.token_end - pair.pii.token_start
    return {
        "pairs in train rows": len(pairs),
        "tokens in them": sum(tokens.values()),
        "clusters in them": len(tokens),
        "effective clusters": _or_none(
            lambda: effective_clusters(list(tokens.values()))
        ),
    }


def _distance_facts(
    manifest: Manifest, pairs: Sequence[ManifestPair]
) -> dict[str, int | float | None]:
    """Distances of the pairs, and the Delta_sel of the reference: match quality."""
    pairs = [] if manifest.redacted_from else pairs
    found = np.array([pair.distance for pair in pairs], dtype=float)
    lengths = np.array([p.pii.token_end - p.pii.token_start for p in pairs])
    signed = np.array([p.pii.nll for p in pairs], dtype=float)
    signed -= np.array([p.control.nll for p in pairs], dtype=float)
    edge = EDGE * manifest.settings.caliper

    def figure(compute: Callable[[], Any]) -> float | None:
        return float(compute()) if len(found) else None

    return {
        "distance mean": figure(found.mean),
        "distance median": figure(lambda: np.median(found)),
        "distance p90": figure(lambda: np.quantile(found, 0.9)),
        "distance p95": figure(lambda: np.quantile(found, 0.95)),
        "distance max": figure(found.max),
        f"share of pairs farther than {EDGE:g} calipers": figure(
            lambda: (found > edge).mean()
        ),
        "Delta_sel on the reference": figure(
            lambda: (signed * lengths).sum() / lengths.sum()
        ),
    }


def _gap_facts(manifest: Manifest) -> dict[str, int | float | None]:
    """How much harder PII is than other text: regression to the mean grows with it."""
    pii = np.zeros(2)
    other = np.zeros(2)
    inside = np.zeros(2)
    for example, spans in () if manifest.redacted_from else _compared(manifest):
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


def _compared(
    manifest: Manifest,
) -> Iterator[tuple[ManifestExample, list[tuple[int, int]]]]:
    """Train rows with their fully scored spans, canaries left out."""
    for example in manifest.examples:
        spans = [tokens for span, tokens in example.identifiers if span.part is None]
        if spans and example.split == "train":
            yield example, spans


def _effects(manifest: Manifest, pairs: Sequence[ManifestPair]) -> list[Record]:
    """Effects that a two-sided 5% test would find with 80% power, and under what."""
    count = len({manifest.by_id[pair.example].cluster for pair in pairs})
    found: list[Record] = [
        {
            "figure": "matched delta_sel, did",
            "n": count,
            "unit": "nats",
            "mde": _or_none(lambda: mde(CLUSTER_SD / math.sqrt(count), clusters=count))
            if count > 1
            else None,
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
    groups: dict[tuple[str, int, bool], list[Any]] = {}
    for canary in manifest.canaries:
        key = (canary.part, canary.dose, canary.held_out)
        groups.setdefault(key, []).append(canary)
    rows = []
    for (part, dose, held_out), found in sorted(groups.items()):
        lengths = [c.n_tokens for c in found if c.n_tokens is not None]
        ok = [c for c in found if c.true_index is not None]
        rows.append(
            {
                "part": part,
                "dose": dose,
                "held_out": held_out,
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
