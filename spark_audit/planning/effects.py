"""What each audit could detect, from the numbers of rows, groups and identifiers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median_high

from spark_audit.audits.claims import ALPHA
from spark_audit.audits.known import all_audits
from spark_audit.audits.planned_effects import AuditSizes, PlannedEffect, RankedSizes
from spark_audit.data.occurrences import string_of
from spark_audit.manifest.schema import Manifest, ManifestCanary
from spark_audit.planning.canaries import candidates_of, ranked_canaries
from spark_audit.planning.rows import PlannedRow
from spark_audit.stats.clustered_roc import Design


def planned_effects(sizes: AuditSizes) -> list[PlannedEffect]:
    """Return what each audit could detect, in the order of reports.

    The significance is that of a claim in a report of one checkpoint: the 5% are
    divided among the audits that can be planned (Holm's first step).
    """
    audits = all_audits().values()
    n_claims = 0
    for audit in audits:
        n_claims += bool(audit.planned_effects(sizes, significance=ALPHA))

    effects: list[PlannedEffect] = []
    for audit in audits:
        effects += audit.planned_effects(sizes, significance=ALPHA / max(1, n_claims))
    return effects


def audit_sizes(
    manifest: Manifest, rows: Sequence[PlannedRow], dose_of: Mapping[str, int]
) -> AuditSizes:
    """Return the numbers of independent units of a manifest.

    Parameters
    ----------
    rows
        The manifest's rows.
    dose_of
        Identifier -> trained rows that hold it.
    """
    row_by_id = {row.id: row for row in rows}
    trained_groups: set[str] = set()
    held_out_groups: set[str] = set()
    for row in rows:
        if row.canary_id is not None:
            continue
        for span in row.personal_spans:
            # An identifier that was cut off has no score.
            if span.tokens is None:
                continue
            if row.is_trained:
                trained_groups.add(row.cluster)
            elif not dose_of.get(string_of(row, span), 0):
                held_out_groups.add(row.cluster)

    groups_with_control: set[str] = set()
    for pair in manifest.pairs:
        row = row_by_id[pair.example]
        if row.is_trained:
            groups_with_control.add(row.cluster)

    ranked = ranked_canaries(manifest)
    n_candidates = candidates_of(manifest, ranked)
    return AuditSizes(
        n_trained=len(trained_groups),
        n_held_out=len(held_out_groups),
        n_with_control=len(groups_with_control),
        rows=_membership_design(manifest, row_by_id),
        n_candidates=n_candidates,
        canaries=_canary_sizes(ranked, n_candidates),
        twins=_twin_sizes(manifest, row_by_id),
    )


def _membership_design(
    manifest: Manifest, row_by_id: Mapping[str, PlannedRow]
) -> Design:
    """Return the rows of membership inference with their clusters and tasks."""
    members = [row_by_id[id] for id in manifest.membership.members]
    others = [row_by_id[id] for id in manifest.membership.non_members]
    both = [*members, *others]
    return Design.of(
        [row.is_trained for row in both],
        [row.cluster for row in both],
        [row.task for row in both],
    )


def _canary_sizes(
    ranked: Sequence[ManifestCanary], n_candidates: int
) -> dict[str, RankedSizes]:
    """Return how many canaries can be ranked by each part, on both sides."""
    n_trained: Counter[str] = Counter()
    n_held_out: Counter[str] = Counter()
    for canary in ranked:
        side = n_held_out if canary.held_out else n_trained
        side[canary.part] += 1

    sizes = {}
    for part in sorted({*n_trained, *n_held_out}):
        sizes[part] = RankedSizes(
            n_trained=n_trained[part],
            n_held_out=n_held_out[part],
            n_candidates=n_candidates,
        )
    return sizes


def _twin_sizes(
    manifest: Manifest, row_by_id: Mapping[str, PlannedRow]
) -> RankedSizes | None:
    """Return the groups with an identifier that has twins; ``None``: none has."""
    trained_groups: set[str] = set()
    held_out_groups: set[str] = set()
    n_candidates = []
    for twins in manifest.twins:
        groups = trained_groups if twins.dose else held_out_groups
        # A string that stands in several rows joins them into one group.
        groups.add(row_by_id[twins.contexts[0].example].cluster)
        n_candidates.append(len(twins.candidates))

    if not n_candidates:
        return None
    return RankedSizes(
        n_trained=len(trained_groups),
        n_held_out=len(held_out_groups),
        n_candidates=median_high(n_candidates),
    )
