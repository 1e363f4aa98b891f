"""A manifest in figures: what was matched, how well, and what could be detected."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_audit.data.canaries import RANKED
from spark_audit.manifest.schema import Manifest
from spark_audit.sentences import render
from spark_audit.stats.canary_ranks import chance_mde
from spark_audit.stats.matching import NO_WINDOW
from spark_audit.stats.power import clusters_needed, mde, mde_normal

Record = dict[str, Any]

CLUSTER_SD = 1.43
"""Nats: ``SE sqrt(51)`` over the 51 sources of SPARK's difficulty-matched evaluation,
with the SE of the interval that it prints for SPARK itself.

The reference says nothing about how checkpoints will spread, so this is an assumption.
"""

TOO_SHORT = "no eligible window of its length"
LOW_MATCHED_SHARE = 0.5
"""A type with a smaller matched share is named first, with the reason."""

MAX_TYPES_SUMMED_UP = 3
"""Types with a small matched share that the first sentence names."""


@dataclass(frozen=True)
class Description:
    """A manifest as plain data, for people.

    ``facts`` are single figures by name; ``tables`` lists of records of the same
    fields, by title; ``None`` is a figure that has no value. ``summary`` says what can
    be judged, and what to change; ``advice`` only what to change, once for all types.
    No text of an example is in it.
    """

    facts: dict[str, str | int | float | None]
    tables: dict[str, list[Record]]
    notes: tuple[str, ...]
    summary: tuple[str, ...]
    advice: tuple[str, ...]


def describe(manifest: Manifest) -> Description:
    """Describe a manifest; of a redacted one all but the balance."""
    spans = _spans(manifest)
    reasons = Counter((one.reason, one.type) for one in spans if not one.matched)
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
        },
        tables={
            "what can be judged": judged,
            "unmatched spans": [
                {"reason": reason, "type": kind, "spans": count}
                for (reason, kind), count in sorted(reasons.items())
            ],
            "balance": [row.model_dump() for row in manifest.balance],
            "effects to expect": [*_effects(manifest, _groups(spans))],
        },
        notes=tuple(manifest.notes),
        summary=tuple(_summary(manifest, spans, judged)),
        advice=tuple(_advice(manifest, spans, judged)),
    )


class _Span(NamedTuple):
    trained: bool
    cluster: str
    type: str
    matched: bool
    reason: str


def _spans(manifest: Manifest) -> list[_Span]:
    """Spans that are no part of a canary, matched or not."""

    def one(key: str, *facts: Any) -> _Span:
        example = manifest.by_id[key]  # takes 10 KB: it is not kept
        return _Span(example.split == "train", example.cluster, *facts)

    found = [one(pair.example, pair.pii.type, True, "") for pair in manifest.pairs]
    for span in manifest.unmatched:
        short = span.reason.startswith(NO_WINDOW.format(""))
        reason = TOO_SHORT if short else span.reason
        found.append(one(span.example, span.type, False, reason))
    return found


def _groups(spans: list[_Span]) -> int:
    """Clusters of trained identifiers with a control."""
    return len({one.cluster for one in spans if one.trained and one.matched})


def _judged(spans: list[_Span]) -> list[Record]:
    """By type, what can be judged of trained identifiers."""
    found = []
    for kind in sorted({one.type for one in spans}):
        of = [one for one in spans if one.type == kind]
        found.append(
            {
                "type": kind,
                "trained": sum(one.trained for one in of),
                "held out": sum(not one.trained for one in of),
                "with control": sum(one.trained and one.matched for one in of),
                "clusters": _groups(of),
                "smallest effect, nats": _change(_groups(of)),
            }
        )
    return found


def _change(clusters: int) -> float | None:
    """Smallest change of NLL that so many clusters show, under :data:`CLUSTER_SD`."""
    if clusters < 2:
        return None
    return mde(CLUSTER_SD / math.sqrt(clusters), clusters=clusters)


def _summary(
    manifest: Manifest, spans: list[_Span], judged: list[Record]
) -> Iterator[str]:
    """What can be tested, what can be judged of each type, then what to change."""
    yield _verdict(manifest, judged)
    types = [row for row in judged if row["trained"]]
    few = _hardly_matched(judged)
    yield _shares_with_control(manifest, types, few)
    if types and not any(row["held out"] for row in judged):
        yield render("overview.no_held_out")
    for row in types:
        yield _type_in_words(row)
    if types:
        yield render("overview.legend")
    caliper = f"{manifest.settings.caliper:g}"
    for row in few:
        why = _why_unmatched(spans, row["type"])
        yield render(f"overview.{why}", type=row["type"], caliper=caliper)
    held_out = {c.canary_id: c.held_out for c in manifest.canaries}
    out = sum(held_out.values())
    said = "canaries" if held_out else "no_canaries"
    yield render(f"overview.{said}", planted=len(held_out) - out, held_out=out)


def _hardly_matched(judged: list[Record]) -> list[Record]:
    """Return the types of which few trained identifiers have a control."""
    few = [
        row
        for row in judged
        if row["trained"] and row["with control"] < LOW_MATCHED_SHARE * row["trained"]
    ]
    return sorted(few, key=lambda row: row["with control"] - row["trained"])


def _why_unmatched(spans: list[_Span], kind: str) -> str:
    """Return the key of what keeps most identifiers of a type from a control."""
    reasons = [
        span.reason
        for span in spans
        if span.trained and not span.matched and span.type == kind
    ]
    is_short = reasons.count(TOO_SHORT) > LOW_MATCHED_SHARE * len(reasons)
    return "window" if is_short else "caliper"


def _advice(
    manifest: Manifest, spans: list[_Span], judged: list[Record]
) -> Iterator[str]:
    """Yield what would help, each once for all types that it helps."""
    has_types = any(row["trained"] for row in judged)
    if not has_types:
        yield _shares_with_control(manifest, [], [])
    elif not any(row["held out"] for row in judged):
        yield render("overview.no_held_out")

    types_by_why: dict[str, list[str]] = {}
    for row in _hardly_matched(judged):
        why = _why_unmatched(spans, row["type"])
        types_by_why.setdefault(why, []).append(row["type"])
    caliper = f"{manifest.settings.caliper:g}"
    for why, types in types_by_why.items():
        yield render(f"overview.{why}_brief", types=types, caliper=caliper)

    if not manifest.canaries:
        yield render("overview.no_canaries")


def _shares_with_control(
    manifest: Manifest, types: Sequence[Record], few: Sequence[Record]
) -> str:
    """Return how many trained identifiers have a control, or that there are none.

    Parameters
    ----------
    types, few
        Records of the types of trained identifiers, and of those of which few have a
        control.
    """
    if not types:
        has_rows = all(manifest.membership.model_dump().values())
        key = "no_identifier_but_rows" if has_rows else "no_identifier"
        return render(f"overview.{key}", name=manifest.name)

    if few:
        shares = [_share("overview.share", row) for row in few[:MAX_TYPES_SUMMED_UP]]
        return render("overview.trained_few", name=manifest.name, shares=shares)

    counts = {n: sum(row[n] for row in types) for n in ("trained", "with control")}
    share = _share("overview.share_of_all", {"type": "", **counts})
    return render("overview.trained", name=manifest.name, shares=[share])


def _share(key: str, row: Record) -> str:
    """Return how many trained identifiers of a type have a control, and which share."""
    return render(
        key,
        type=row["type"],
        trained=row["trained"],
        matched=row["with control"],
        percent=_percent_with_control(row),
    )


def _percent_with_control(row: Record) -> int:
    """Return the share of trained identifiers with a control, in per cent."""
    return int(round(100 * row["with control"] / row["trained"]))


def _type_in_words(row: Record) -> str:
    """Return the sizes of a type of identifiers, and the smallest effect to be seen."""
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


def _verdict(manifest: Manifest, judged: list[Record]) -> str:
    """Return the sentence that says what can be tested and whether to go on."""
    tests, missing = list[str](), list[str]()
    trained = sum(row["trained"] for row in judged)
    held_out = sum(row["held out"] for row in judged)
    found = tests if trained and held_out else missing
    key = "of_memory" if trained and held_out else "no_memory"
    found.append(render(f"overview.{key}", trained=trained, held_out=held_out))

    members = len(manifest.membership.members)
    others = len(manifest.membership.non_members)
    found = tests if members and others else missing
    key = "of_membership" if members and others else "no_membership"
    found.append(render(f"overview.{key}", members=members, others=others))

    is_held_out = {c.canary_id: c.held_out for c in manifest.canaries}
    n_out = sum(is_held_out.values())
    n_planted = len(is_held_out) - n_out
    if n_planted and n_out:
        tests.append(render("overview.of_canaries", planted=n_planted, held_out=n_out))

    key = "go_on_in_part" if tests else "stop"
    if not missing:
        key = "go_on"
    name = manifest.name
    return render(f"overview.{key}", name=name, tests=tests, missing=missing)


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

    half, fifth = (clusters_needed(CLUSTER_SD, least) for least in (0.5, 0.2))
    assumed = f"an SD of {CLUSTER_SD:g} nats over clusters, as SPARK's interval implies"
    assumed += f"; {half} clusters for 0.5, {fifth} clusters for 0.2"
    yield effect("matched delta_sel, did", count, "nats", _change(count), assumed)
    for part in RANKED:
        planted = [
            len(c.candidates)
            for c in manifest.canaries
            if c.part == part and not c.held_out and c.true_index is not None
        ]
        if planted:
            least = chance_mde(len(planted), n_candidates=planted[0], of="rank")
            figure = f"canary rank_mean {part}"
            yield effect(figure, len(planted), "ranks", least, "uniform ranks")
    members = len(manifest.membership.members)
    others = len(manifest.membership.non_members)
    if members and others:
        se = math.sqrt((members + others + 1) / (12 * members * others))
        rows = f"scores without a signal; {members} members, {others} non-members"
        yield effect("mia auc", members + others, "AUC", mde_normal(se), rows)
