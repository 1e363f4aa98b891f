"""Describe a manifest in figures: matches, their balance, and detectable effects.

``manifest show`` and ``manifest build`` print what :func:`describe` returns.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_audit.data.canaries import RANKED
from spark_audit.manifest.schema import Manifest
from spark_audit.sentences import render
from spark_audit.stats.canary_ranks import chance_mde
from spark_audit.stats.matching import NO_WINDOW
from spark_audit.stats.power import clusters_needed, mde, mde_normal

OverviewRecord = dict[str, Any]
"""A record of a table: column name -> value."""

CLUSTER_SD = 1.43
"""Nats: ``SE sqrt(51)`` over the 51 sources of SPARK's difficulty-matched evaluation,
with the SE of the interval that it prints for SPARK itself.

The reference says nothing about how checkpoints will spread, so this is an assumption.
"""

JUDGED_TABLE = "what can be judged"
"""Title of the table of what can be judged: a record per type of identifiers."""

BALANCE_TABLE = "balance"
"""Title of the table of the balance: a record per covariate."""

NO_WINDOW_OF_LENGTH = "no eligible window of its length"
"""Reason for a missing control, the same for identifiers of all lengths."""

LOW_MATCHED_SHARE = 0.5
"""Share of matched identifiers below which the summary names a type first."""

MAX_TYPES_SUMMED_UP = 3
"""Most types with a small matched share that the first sentence names."""


@dataclass(frozen=True)
class Description:
    """A manifest as plain data, for people.

    ``facts`` maps names to single figures. ``tables`` maps titles to lists of records
    with the same fields; ``None`` is a figure without a value. ``summary`` says what
    can be judged and what to change. ``advice`` says only what to change, once for all
    types. None of them contains text of an example.
    """

    facts: dict[str, str | int | float | None]
    tables: dict[str, list[OverviewRecord]]
    notes: tuple[str, ...]
    summary: tuple[str, ...]
    advice: tuple[str, ...]


def describe(manifest: Manifest) -> Description:
    """Describe a manifest; a redacted one is described without the balance."""
    spans = _spans(manifest)
    types = _types(spans)
    return Description(
        facts=_facts(manifest),
        tables={
            JUDGED_TABLE: types,
            "unmatched spans": _unmatched_spans(spans),
            BALANCE_TABLE: [row.model_dump() for row in manifest.balance],
            "effects to expect": _effects(manifest, _n_clusters(spans)),
        },
        notes=tuple(manifest.notes),
        summary=tuple(_summary(manifest, spans, types)),
        advice=tuple(_advice(manifest, spans, types)),
    )


def _facts(manifest: Manifest) -> dict[str, str | int | float | None]:
    """Return the single figures of a manifest, by name."""
    facts: dict[str, str | int | float | None] = {
        "name": manifest.name,
        "digest": manifest.digest,
        "redacted from": manifest.redacted_from,
        "reference": manifest.reference.name,
        "reference dtype": manifest.reference.dtype,
    }
    # For these settings, None is a value of its own.
    unset = {"canary_contexts": "all", "max_length": "no limit"}
    for name, value in manifest.settings.model_dump().items():
        facts[name] = unset.get(name) if value is None else value
    for name, count in manifest.counts.items():
        facts[name.replace("_", " ")] = count
    return facts


class _Span(NamedTuple):
    """An identifier with or without a control; ``reason`` says why it has none."""

    is_trained: bool
    cluster: str
    type: str
    is_matched: bool
    reason: str


def _spans(manifest: Manifest) -> list[_Span]:
    """Return the spans that are not part of a canary, matched or not."""
    spans = []
    for pair in manifest.pairs:
        example = manifest.by_id[pair.example]  # 10 KB each: not kept
        spans.append(
            _Span(
                is_trained=example.split == "train",
                cluster=example.cluster,
                type=pair.pii.type,
                is_matched=True,
                reason="",
            )
        )

    for span in manifest.unmatched:
        example = manifest.by_id[span.example]
        # The reason contains the length, which differs between spans.
        has_no_window = span.reason.startswith(NO_WINDOW.format(""))
        spans.append(
            _Span(
                is_trained=example.split == "train",
                cluster=example.cluster,
                type=span.type,
                is_matched=False,
                reason=NO_WINDOW_OF_LENGTH if has_no_window else span.reason,
            )
        )
    return spans


def _unmatched_spans(spans: Sequence[_Span]) -> list[OverviewRecord]:
    """Count the spans without a control, by type and reason."""
    counts: Counter[tuple[str, str]] = Counter()
    for span in spans:
        if not span.is_matched:
            counts[span.reason, span.type] += 1

    records: list[OverviewRecord] = []
    for (reason, type), count in sorted(counts.items()):
        records.append({"reason": reason, "type": type, "spans": count})
    return records


def _n_clusters(spans: Sequence[_Span]) -> int:
    """Count the clusters of trained identifiers that have a control."""
    return len({span.cluster for span in spans if span.is_trained and span.is_matched})


def _types(spans: Sequence[_Span]) -> list[OverviewRecord]:
    """Return for each type what can be judged of its trained identifiers."""
    spans_by_type: dict[str, list[_Span]] = defaultdict(list)
    for span in spans:
        spans_by_type[span.type].append(span)

    records = []
    for type, spans_of_type in sorted(spans_by_type.items()):
        # Audits are about trained identifiers; held-out ones are their comparison.
        trained = [span for span in spans_of_type if span.is_trained]
        n_clusters = _n_clusters(trained)
        records.append(
            {
                "type": type,
                "trained": len(trained),
                "held out": len(spans_of_type) - len(trained),
                "with control": sum(span.is_matched for span in trained),
                "clusters": n_clusters,
                "smallest effect, nats": _smallest_change(n_clusters),
            }
        )
    return records


def _smallest_change(n_clusters: int) -> float | None:
    """Return the smallest change of NLL that so many clusters can show.

    It assumes :data:`CLUSTER_SD`. Fewer than two clusters show no change.
    """
    if n_clusters < 2:
        return None
    return mde(CLUSTER_SD / math.sqrt(n_clusters), clusters=n_clusters)


def _summary(
    manifest: Manifest, spans: list[_Span], types: list[OverviewRecord]
) -> Iterator[str]:
    """Yield sentences: what can be tested and judged of each type, what to change."""
    yield _verdict(manifest, types)

    # Types with few matches are named with their shares; otherwise the total is named.
    trained_types = [row for row in types if row["trained"]]
    hardly_matched = _hardly_matched(types)
    yield _shares_with_control(manifest, trained_types, hardly_matched)
    if trained_types and not any(row["held out"] for row in types):
        yield render("overview.no_held_out")

    for row in trained_types:
        yield _type_in_words(row)
    if trained_types:
        yield render("overview.legend")

    # The advice depends on the most frequent reason for a missing control.
    caliper = f"{manifest.settings.caliper:g}"
    for row in hardly_matched:
        cause = _cause_of_unmatched(spans, row["type"])
        yield render(f"overview.{cause}", type=row["type"], caliper=caliper)

    canaries = _CanaryCounts.of(manifest)
    key = "canaries" if manifest.canaries else "no_canaries"
    yield render(
        f"overview.{key}", planted=canaries.n_planted, held_out=canaries.n_held_out
    )


class _CanaryCounts(NamedTuple):
    """The numbers of planted and of held-out canaries."""

    n_planted: int
    n_held_out: int

    @classmethod
    def of(cls, manifest: Manifest) -> _CanaryCounts:
        """Count the canaries of a manifest, whose list has one record per part."""
        planted: set[str] = set()
        held_out: set[str] = set()
        for canary in manifest.canaries:
            side = held_out if canary.held_out else planted
            side.add(canary.canary_id)
        return cls(n_planted=len(planted), n_held_out=len(held_out))


def _hardly_matched(types: list[OverviewRecord]) -> list[OverviewRecord]:
    """Return the types in which few trained identifiers have a control.

    The type with the most identifiers without a control comes first.
    """
    hardly_matched = [
        row
        for row in types
        if row["trained"] and row["with control"] < LOW_MATCHED_SHARE * row["trained"]
    ]
    return sorted(hardly_matched, key=lambda row: row["with control"] - row["trained"])


def _cause_of_unmatched(spans: list[_Span], type: str) -> str:
    """Return the most frequent reason, as a key, for missing controls of a type."""
    reasons = [
        span.reason
        for span in spans
        if span.is_trained and not span.is_matched and span.type == type
    ]
    is_short = reasons.count(NO_WINDOW_OF_LENGTH) > LOW_MATCHED_SHARE * len(reasons)
    return "window" if is_short else "caliper"


def _advice(
    manifest: Manifest, spans: list[_Span], types: list[OverviewRecord]
) -> Iterator[str]:
    """Yield advice, each sentence once for all types that it helps."""
    has_trained = any(row["trained"] for row in types)
    if not has_trained:
        yield _shares_with_control(manifest, [], [])
    elif not any(row["held out"] for row in types):
        yield render("overview.no_held_out")

    # All types with one reason share a sentence, because one option helps them all.
    types_by_cause: dict[str, list[str]] = {}
    for row in _hardly_matched(types):
        cause = _cause_of_unmatched(spans, row["type"])
        types_by_cause.setdefault(cause, []).append(row["type"])
    caliper = f"{manifest.settings.caliper:g}"
    for cause, names in types_by_cause.items():
        yield render(f"overview.{cause}_brief", types=names, caliper=caliper)

    if not manifest.canaries:
        yield render("overview.no_canaries")


def _shares_with_control(
    manifest: Manifest,
    trained_types: Sequence[OverviewRecord],
    hardly_matched: Sequence[OverviewRecord],
) -> str:
    """Return how many trained identifiers have a control, in words.

    Parameters
    ----------
    trained_types, hardly_matched
        Records of the types of trained identifiers, and of the types in which few of
        them have a control.
    """
    if not trained_types:
        has_rows = manifest.membership.members and manifest.membership.non_members
        key = "no_identifier_but_rows" if has_rows else "no_identifier"
        return render(f"overview.{key}", name=manifest.name)

    if hardly_matched:
        named = hardly_matched[:MAX_TYPES_SUMMED_UP]
        shares = [_share("overview.share", row) for row in named]
        return render("overview.trained_few", name=manifest.name, shares=shares)

    sums = {
        "type": "",
        "trained": sum(row["trained"] for row in trained_types),
        "with control": sum(row["with control"] for row in trained_types),
    }
    share = _share("overview.share_of_all", sums)
    return render("overview.trained", name=manifest.name, shares=[share])


def _share(key: str, row: OverviewRecord) -> str:
    """Return the number and share of a type's trained identifiers with a control."""
    return render(
        key,
        type=row["type"],
        trained=row["trained"],
        matched=row["with control"],
        percent=_percent_with_control(row),
    )


def _percent_with_control(row: OverviewRecord) -> int:
    """Return the share of trained identifiers with a control, in per cent."""
    return int(round(100 * row["with control"] / row["trained"]))


def _type_in_words(row: OverviewRecord) -> str:
    """Return the sizes of a type and the smallest effect that it can show, in words."""
    effect = row["smallest effect, nats"]
    return render(
        "overview.type" if effect else "overview.type_too_few",
        type=row["type"],
        trained=row["trained"],
        held_out=row["held out"],
        matched=row["with control"],
        percent=_percent_with_control(row),
        effect=effect,
    )


def _verdict(manifest: Manifest, types: list[OverviewRecord]) -> str:
    """Return the sentence on what can be tested and whether to continue."""
    tests: list[str] = []
    missing: list[str] = []

    # A test of memory needs trained identifiers and others that were not trained on.
    n_trained = sum(row["trained"] for row in types)
    n_held_out = sum(row["held out"] for row in types)
    if n_trained and n_held_out:
        tests.append(
            render("overview.of_memory", trained=n_trained, held_out=n_held_out)
        )
    else:
        missing.append(
            render("overview.no_memory", trained=n_trained, held_out=n_held_out)
        )

    n_members = len(manifest.membership.members)
    n_others = len(manifest.membership.non_members)
    if n_members and n_others:
        tests.append(
            render("overview.of_membership", members=n_members, others=n_others)
        )
    else:
        missing.append(
            render("overview.no_membership", members=n_members, others=n_others)
        )

    # Canaries are optional, so their absence is not mentioned.
    canaries = _CanaryCounts.of(manifest)
    if canaries.n_planted and canaries.n_held_out:
        tests.append(
            render(
                "overview.of_canaries",
                planted=canaries.n_planted,
                held_out=canaries.n_held_out,
            )
        )

    # If nothing can be tested, the advice is to stop.
    key = "go_on"
    if missing:
        key = "go_on_in_part" if tests else "stop"
    return render(f"overview.{key}", name=manifest.name, tests=tests, missing=missing)


def _effects(manifest: Manifest, n_clusters: int) -> list[OverviewRecord]:
    """Return the effects that a two-sided 5% test would find with 80% power.

    Each effect says what it assumes about a future checkpoint.

    Parameters
    ----------
    n_clusters
        Number of clusters of train rows with pairs.
    """
    n_for_half = clusters_needed(CLUSTER_SD, 0.5)
    n_for_fifth = clusters_needed(CLUSTER_SD, 0.2)
    effects: list[OverviewRecord] = [
        {
            "figure": "matched delta_sel, did",
            "n": n_clusters,
            "unit": "nats",
            "mde": _smallest_change(n_clusters),
            "assumes": (
                f"an SD of {CLUSTER_SD:g} nats over clusters, as SPARK's interval "
                f"implies; {n_for_half} clusters for 0.5, {n_for_fifth} clusters for "
                "0.2"
            ),
        }
    ]

    for ranked in RANKED:
        # All sets of a manifest have the same size.
        set_sizes = [
            len(canary.candidates)
            for canary in manifest.canaries
            if canary.part == ranked
            and not canary.held_out
            and canary.true_index is not None
        ]
        if not set_sizes:
            continue
        n_canaries = len(set_sizes)
        effects.append(
            {
                "figure": f"canary rank_mean {ranked}",
                "n": n_canaries,
                "unit": "ranks",
                "mde": chance_mde(n_canaries, n_candidates=set_sizes[0], of="rank"),
                "assumes": "uniform ranks",
            }
        )

    n_members = len(manifest.membership.members)
    n_others = len(manifest.membership.non_members)
    if n_members and n_others:
        # The standard error of an AUC of 0.5 is that of the rank-sum test.
        n_rows = n_members + n_others
        standard_error = math.sqrt((n_rows + 1) / (12 * n_members * n_others))
        effects.append(
            {
                "figure": "mia auc",
                "n": n_rows,
                "unit": "AUC",
                "mde": mde_normal(standard_error),
                "assumes": (
                    f"scores without a signal; {n_members} members, "
                    f"{n_others} non-members"
                ),
            }
        )
    return effects
