"""Describe a manifest in figures: matches and their balance.

``manifest show`` and ``manifest build`` print what :func:`describe` returns. The
sentences stand in ``spark_audit/sentences/en/manifest.toml`` under ``overview``.

What an audit could detect is planned elsewhere (:mod:`spark_audit.planning`). A further
column of the table :data:`JUDGED_TABLE` is a field or property of
:class:`_TypeOverview` and an entry of its :meth:`~_TypeOverview.record`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_audit.manifest.schema import Manifest
from spark_audit.sentences import render
from spark_audit.stats.matching import NO_WINDOW
from spark_audit.stats.power import mde

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
    can be judged and what to change. ``advice`` says only what helps controls, once for
    all types. None of them contains text of an example.
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
            JUDGED_TABLE: [overview.record() for overview in types],
            "unmatched spans": _unmatched_spans(spans),
            BALANCE_TABLE: [row.model_dump() for row in manifest.balance],
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
    """An annotated identifier, with or without a control.

    Attributes
    ----------
    is_trained
        Whether its row is of the split train.
    cluster
        Cluster of its row, the unit of all intervals (``manifest/clusters.py``).
    reason
        The reason why it has no control; empty if it has one.
    """

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


class _TypeOverview(NamedTuple):
    """The numbers of one type of identifiers, and what follows from them.

    Attributes
    ----------
    n_trained, n_held_out
        Identifiers in rows of the splits train and test.
    n_matched
        Trained identifiers with a control.
    n_clusters
        Clusters of rows with such an identifier: the units of an audit's interval.
    """

    type: str
    n_trained: int
    n_held_out: int
    n_matched: int
    n_clusters: int

    @property
    def n_unmatched(self) -> int:
        """Return the number of trained identifiers without a control."""
        return self.n_trained - self.n_matched

    @property
    def is_hardly_matched(self) -> bool:
        """Return whether few of its trained identifiers have a control.

        A type without trained identifiers is not: 0 is not below 0.
        """
        return self.n_matched < LOW_MATCHED_SHARE * self.n_trained

    @property
    def smallest_effect(self) -> float | None:
        """Return the smallest change of NLL that an audit would show, in nats."""
        return _smallest_change(self.n_clusters)

    def record(self) -> OverviewRecord:
        """Return its line of the table :data:`JUDGED_TABLE`."""
        return {
            "type": self.type,
            "trained": self.n_trained,
            "held out": self.n_held_out,
            "with control": self.n_matched,
            "clusters": self.n_clusters,
            "smallest effect, nats": self.smallest_effect,
        }


def _types(spans: Sequence[_Span]) -> list[_TypeOverview]:
    """Return for each type, sorted, what can be judged of its trained identifiers."""
    spans_by_type: dict[str, list[_Span]] = defaultdict(list)
    for span in spans:
        spans_by_type[span.type].append(span)

    types = []
    for type, spans_of_type in sorted(spans_by_type.items()):
        # Audits are about trained identifiers; held-out ones are their comparison.
        trained = [span for span in spans_of_type if span.is_trained]
        types.append(
            _TypeOverview(
                type=type,
                n_trained=len(trained),
                n_held_out=len(spans_of_type) - len(trained),
                n_matched=sum(span.is_matched for span in trained),
                n_clusters=_n_clusters_of_matched(trained),
            )
        )
    return types


def _n_clusters_of_matched(spans: Sequence[_Span]) -> int:
    """Count the clusters of trained identifiers that have a control."""
    return len({span.cluster for span in spans if span.is_trained and span.is_matched})


def _smallest_change(n_clusters: int) -> float | None:
    """Return the smallest change of NLL that so many clusters can show, in nats.

    It assumes :data:`CLUSTER_SD`, and 80% power of a two-sided 5% test (see
    ``stats/power.py``). ``None``: fewer than two clusters show no change.
    """
    if n_clusters < 2:
        return None
    return mde(CLUSTER_SD / math.sqrt(n_clusters), clusters=n_clusters)


def _summary(
    manifest: Manifest, spans: Sequence[_Span], types: Sequence[_TypeOverview]
) -> Iterator[str]:
    """Yield sentences: what can be tested and judged of each type, what to change."""
    yield _verdict(manifest, types)

    # Types with few matches are named with their shares; otherwise the total is named.
    trained_types = [overview for overview in types if overview.n_trained]
    hardly_matched = _hardly_matched(types)
    yield _shares_with_control(manifest, trained_types, hardly_matched)
    if trained_types and not any(overview.n_held_out for overview in types):
        yield render("overview.no_held_out")

    for overview in trained_types:
        yield _type_in_words(overview)
    if trained_types:
        yield render("overview.legend")

    # The advice depends on the most frequent reason for a missing control.
    caliper = f"{manifest.settings.caliper:g}"
    for overview in hardly_matched:
        cause = _cause_of_unmatched(spans, overview.type)
        yield render(f"overview.{cause}", type=overview.type, caliper=caliper)

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


def _hardly_matched(types: Sequence[_TypeOverview]) -> list[_TypeOverview]:
    """Return the types in which few trained identifiers have a control.

    The type with the most identifiers without a control comes first.
    """
    hardly_matched = [overview for overview in types if overview.is_hardly_matched]
    return sorted(hardly_matched, key=lambda overview: -overview.n_unmatched)


def _cause_of_unmatched(spans: Sequence[_Span], type: str) -> str:
    """Return the main reason for missing controls of a type, as the key of a sentence.

    ``window``: most of these identifiers found no stretch of text of their length.
    ``caliper``: otherwise; a wider caliper may help.
    """
    reasons = [
        span.reason
        for span in spans
        if span.is_trained and not span.is_matched and span.type == type
    ]
    is_short = reasons.count(NO_WINDOW_OF_LENGTH) > LOW_MATCHED_SHARE * len(reasons)
    return "window" if is_short else "caliper"


def _advice(
    manifest: Manifest, spans: Sequence[_Span], types: Sequence[_TypeOverview]
) -> Iterator[str]:
    """Yield advice on controls, each sentence once for all types that it helps."""
    # All types with one reason share a sentence, because one option helps them all.
    types_by_cause: dict[str, list[str]] = {}
    for overview in _hardly_matched(types):
        cause = _cause_of_unmatched(spans, overview.type)
        types_by_cause.setdefault(cause, []).append(overview.type)
    caliper = f"{manifest.settings.caliper:g}"
    for cause, names in types_by_cause.items():
        yield render(f"overview.{cause}_brief", types=names, caliper=caliper)


def _shares_with_control(
    manifest: Manifest,
    trained_types: Sequence[_TypeOverview],
    hardly_matched: Sequence[_TypeOverview],
) -> str:
    """Return how many trained identifiers have a control, in words.

    Parameters
    ----------
    trained_types, hardly_matched
        The types of trained identifiers, and the types in which few of them have a
        control.
    """
    if not trained_types:
        has_rows = manifest.membership.members and manifest.membership.non_members
        key = "no_identifier_but_rows" if has_rows else "no_identifier"
        return render(f"overview.{key}", name=manifest.name)

    if hardly_matched:
        shares = [
            _share(
                "overview.share",
                type=overview.type,
                n_trained=overview.n_trained,
                n_matched=overview.n_matched,
            )
            for overview in hardly_matched[:MAX_TYPES_SUMMED_UP]
        ]
        return render("overview.trained_few", name=manifest.name, shares=shares)

    share = _share(
        "overview.share_of_all",
        type="",
        n_trained=sum(overview.n_trained for overview in trained_types),
        n_matched=sum(overview.n_matched for overview in trained_types),
    )
    return render("overview.trained", name=manifest.name, shares=[share])


def _share(key: str, *, type: str, n_trained: int, n_matched: int) -> str:
    """Return the number and share of trained identifiers with a control, in words."""
    return render(
        key,
        type=type,
        trained=n_trained,
        matched=n_matched,
        percent=_percent(n_matched, n_trained),
    )


def _percent(count: int, total: int) -> int:
    """Return the share of a count in a total, in whole per cent."""
    return int(round(100 * count / total))


def _type_in_words(overview: _TypeOverview) -> str:
    """Return the sizes of a type and the smallest effect that it can show, in words."""
    effect = overview.smallest_effect
    return render(
        "overview.type" if effect else "overview.type_too_few",
        type=overview.type,
        trained=overview.n_trained,
        held_out=overview.n_held_out,
        matched=overview.n_matched,
        percent=_percent(overview.n_matched, overview.n_trained),
        effect=effect,
    )


def _verdict(manifest: Manifest, types: Sequence[_TypeOverview]) -> str:
    """Return the sentence on what can be tested and whether to continue."""
    # Parts of the sentence: each test that is possible, and each that is not.
    tests: list[str] = []
    missing: list[str] = []

    # A test of memory needs trained identifiers and others that were not trained on.
    n_trained = sum(overview.n_trained for overview in types)
    n_held_out = sum(overview.n_held_out for overview in types)
    if n_trained and n_held_out:
        tests.append(
            render("overview.of_memory", trained=n_trained, held_out=n_held_out)
        )
    else:
        missing.append(
            render("overview.no_memory", trained=n_trained, held_out=n_held_out)
        )

    # Membership inference needs rows of both splits, with or without identifiers.
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
