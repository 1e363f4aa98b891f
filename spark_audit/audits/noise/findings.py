"""Findings of the audit of noise: probabilities under noise, gaps, and changes of gaps.

None claims more than that figures moved. A gap is above 0 where identifiers lose more
of their probability than other text. The scale of the noise (sigma) is the variant
of a row. Keys of sentences are those of ``spark_audit/sentences/en/``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spark_audit.names import BASE
from spark_audit.results import Contrast, Finding, Row, grouped
from spark_audit.results.findings import Fact


def noise_findings(
    names: Sequence[str], rows: Sequence[Row], contrasts: Sequence[Contrast]
) -> Iterator[Finding]:
    """Yield findings on probabilities under noise, their gaps, and changes of gaps.

    Parameters
    ----------
    names
        Checkpoints. Without the untrained model one more finding says that gaps have
        nothing to be compared with.
    """
    for name in names:
        pooled = [
            row for row in rows if row.checkpoint == name and row.group == "pooled"
        ]
        with_value = [row for row in pooled if row.value is not None]
        rows_by_metric = grouped(with_value, lambda row: row.metric)
        yield _probability_finding(name, pooled, rows_by_metric)

        gaps = rows_by_metric.get("gap")
        if gaps:
            yield _gap_finding(gaps, is_trained=name != BASE)

    pooled_contrasts = [row for row in contrasts if row.group == "pooled"]
    changes = grouped(pooled_contrasts, lambda row: (row.checkpoint, row.baseline))
    for (name, baseline), changes_of_pair in changes.items():
        yield _change_finding(name, baseline, changes_of_pair)

    if BASE not in names:
        yield Finding.not_tested("noise", "noise.no_null")


def _probability_finding(
    name: str, pooled: Sequence[Row], rows_by_metric: Mapping[str, Sequence[Row]]
) -> Finding:
    """Return the finding on probabilities of both kinds of text under noise.

    The sentence is on the first scale, the remarks on the others.

    Parameters
    ----------
    pooled
        All pooled rows of a checkpoint, also those without a value; at least one.
    rows_by_metric
        Metric -> rows with a value, one for each scale.
    """
    identifiers = rows_by_metric.get("dp_pii", [])
    other_text = rows_by_metric.get("dp_nonpii", [])
    if not identifiers and not other_text:
        return Finding.not_tested(
            "noise", "noise.missing", checkpoint=name, reason=pooled[0].note
        )

    further = []
    if len(identifiers) > 1:
        further.append("noise.identifiers_further")
    if identifiers and other_text:
        further.append("noise.other")
    elif len(other_text) > 1:
        further.append("noise.other_further")

    facts: dict[str, Fact] = {
        "pii": identifiers,
        "other": other_text,
        "sigmas": list(dict.fromkeys(row.variant for row in pooled)),
    }
    says = "noise.probabilities" if identifiers else "noise.probabilities_of_other"
    return Finding.on(pooled[0], "moved", says, facts=facts, further=further)


def _gap_finding(gaps: Sequence[Row], *, is_trained: bool) -> Finding:
    """Return the finding on the gaps of one checkpoint, one gap for each scale.

    If the untrained model has a gap, the gap of a trained one is compared with it
    instead of 0.

    Parameters
    ----------
    is_trained
        Whether the checkpoint is another than the untrained model.
    """
    sigmas = _sigmas_by_outcome(gaps)
    facts: dict[str, Fact] = {
        "gaps": gaps,
        "trained": is_trained,
        **_facts_of_outcomes(sigmas),
    }

    further = []
    if len(gaps) > 1:
        further.append("noise.gaps_further")

    # The null of a trained checkpoint's gap is the untrained model's gap.
    beside_untrained = [gap for gap in gaps if gap.no_effect is not None]
    if is_trained and beside_untrained:
        facts["untrained_gaps"] = beside_untrained
        further.append("noise.untrained")
    else:
        for outcome in ("more", "less", "alike"):
            if sigmas[outcome]:
                further.append(f"noise.lose_{outcome}")
    if sigmas["unknown"]:
        further.append("noise.not_estimable")
    if sigmas["insensitive"]:
        further.append("noise.insensitive")
    return Finding.on(gaps[0], "moved", "noise.gaps", facts=facts, further=further)


def _change_finding(name: str, baseline: str, changes: Sequence[Contrast]) -> Finding:
    """Return the finding on the changes of the gap, one change for each scale."""
    sigmas = _sigmas_by_outcome(changes)
    facts: dict[str, Fact] = {
        "baseline": baseline,
        "changes": changes,
        **_facts_of_outcomes(sigmas),
    }

    # The sentence is on the first scale, the remarks on the others.
    says = "noise.changes"
    if changes[0].value is None:
        says = "noise.changes_missing"
    further = []
    further_changes = [change for change in changes[1:] if change.value is not None]
    if further_changes:
        facts["further_changes"] = further_changes
        further.append("noise.changes_further")
    if sigmas["alike"]:
        further.append("noise.not_detected")
    if sigmas["unknown"]:
        further.append("noise.not_estimable")
    if sigmas["insensitive"]:
        further.append("noise.insensitive")
    return Finding(
        audit="noise",
        checkpoint=name,
        claim="moved",
        says=says,
        further=further,
        facts=facts,
    )


def _facts_of_outcomes(sigmas: Mapping[str, list[str]]) -> dict[str, Fact]:
    """Return the scales of each outcome as facts: ``more_at``, ``less_at`` ..."""
    return {f"{outcome}_at": scales for outcome, scales in sigmas.items()}


def _sigmas_by_outcome(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the scales of rows by the position of their intervals.

    ===========  ===========================================================
    outcome      condition, first match wins
    ===========  ===========================================================
    insensitive  both kinds of text lose nearly all probability
    unknown      there is no value, or no interval
    alike        the interval contains 0
    more, less   it lies above 0, below 0: identifiers lose more, less
    ===========  ===========================================================

    Parameters
    ----------
    rows
        Gaps, or changes of the gap, one for each scale.
    """
    sigmas: dict[str, list[str]] = {
        "insensitive": [],
        "unknown": [],
        "alike": [],
        "more": [],
        "less": [],
    }
    for row in rows:
        if row.status == "insensitive":
            outcome = "insensitive"
        elif row.value is None or row.low is None or row.high is None:
            outcome = "unknown"
        elif row.low <= 0 <= row.high:
            outcome = "alike"
        else:
            outcome = "more" if row.value > 0 else "less"
        sigmas[outcome].append(row.variant)
    return sigmas
