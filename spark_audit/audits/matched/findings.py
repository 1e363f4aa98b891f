"""What the figures of the matched audit are taken to mean."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import scipy

from spark_audit.audits.identifiers import (
    memory_claim,
)
from spark_audit.audits.matched.drift import pooled_change
from spark_audit.audits.matched.pairs import _left_out_types, contrast_of
from spark_audit.audits.matched.units import Moved, UnitScores, row_of
from spark_audit.names import (
    BASE,
    NEVER,
    RELEARN,
    RELEARNED_BASE,
    ROUNDINGS,
    TRAINED,
    CheckpointName,
    entry_of,
    original_of,
)
from spark_audit.results import Claim, Contrast, Finding, Hits, Row
from spark_audit.results.findings import Fact
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH
from spark_audit.stats import selectivity
from spark_audit.stats.estimate import Bound, Estimate, Power, side_of

RowsOfCheckpoint: TypeAlias = Mapping[tuple[str, str, str], Row]
"""Rows of a checkpoint by metric, variant and group."""


@dataclass(frozen=True)
class Comparison:
    """Trained and held-out identifiers of one group, and their difference: memory."""

    memory: Row
    trained: Row
    held_out: Row

    @classmethod
    def of_group(cls, rows: RowsOfCheckpoint, group: str) -> Comparison:
        """Return the comparison of a group from a checkpoint's rows."""
        return cls(
            memory=rows["memory", "", group],
            trained=rows["pii_change", TRAINED, group],
            held_out=rows["pii_change", NEVER, group],
        )

    @property
    def facts(self) -> dict[str, Fact]:
        """Its rows by the names that sentences know them by."""
        return {
            "memory": self.memory,
            "trained": self.trained,
            "held_out": self.held_out,
        }


def findings(
    known: UnitScores, rows: Sequence[Row], tested: Mapping[str, Mapping[str, Moved]]
) -> Iterator[Finding]:
    """Yield what is said of each method; single replicates of one have no finding.

    ``tested`` are the tests of no memory, by checkpoint and group.
    """
    pooled = known.sides[0]
    matched = known.train[known.train["role"] == "pii"]
    replicated = {entry_of(name) for name in known.nll if entry_of(name) != name}
    not_compared = _not_compared(known)

    for name, change in known.changes.items():
        # The relearned base is what others are held against.
        if entry_of(name) != name or name == RELEARNED_BASE:
            continue
        rows_of_name = {
            (row.metric, row.of, row.group): row
            for row in rows
            if row.checkpoint == name
        }
        is_reference = name in known.references
        is_replicated = name in replicated

        comparison = Comparison.of_group(rows_of_name, "pooled")
        facts: dict[str, Fact] = {
            **comparison.facts,
            "seeds": is_replicated,
            **not_compared,
        }
        if is_reference:
            pass
        elif comparison.memory.value is None:
            yield _unknown(comparison.memory, "not_tested", facts)
        elif pooled.told_apart:
            facts |= pooled.by_text(name)
            yield _said(comparison.memory, "confounded", "confounded", facts)
        else:
            yield from _memory_findings(rows_of_name, tested[name], comparison, facts)

        yield _selectivity_finding(
            rows_of_name,
            pooled_change(matched, change),
            is_reference=is_reference,
            is_replicated=is_replicated,
        )


def _not_compared(known: UnitScores) -> dict[str, Fact]:
    """Return the facts on identifiers that no comparison uses; empty if it uses all."""
    pooled = known.sides[0]
    is_trained = pooled.sides.trained  # (occurrences,), bool
    n_identifiers = int(known.train["role"].isin(["pii", "unmatched"]).sum())

    # Trained identifiers without a held-out one of their form and place.
    n_without_counterpart = int((is_trained & (pooled.sides.cells < 0)).sum())
    # Identifiers of trained rows that are not on the trained side.
    n_on_no_side = int(n_identifiers - is_trained.sum())

    facts: dict[str, Fact] = {}
    if n_without_counterpart:
        facts["without_counterpart"] = Hits(
            count=n_without_counterpart, of=n_identifiers
        )
    if n_on_no_side:
        facts["untold"] = Hits(count=n_on_no_side, of=n_identifiers)
    if facts:
        facts["left_out_types"] = _left_out_types(known.train, pooled)
    return facts


def returned(
    known: UnitScores, told: Sequence[Finding]
) -> Iterator[tuple[Contrast, Row, Finding | None]]:
    """Yield what came back to the original of each relearned checkpoint.

    What came back to the base is subtracted: nothing is yielded unless the original,
    the base and the relearned base are among the checkpoints.

    Drift by the rows of that short training moves trained identifiers and others of
    their kind alike; what it moves unequally, it does to the base too. Two tests must
    hold: memory after that training, and that it is more than before, both beyond what
    the same training does to the base. The larger p counts.

    Parameters
    ----------
    told
        All else that is said: of whom memory is shown before, nothing is claimed.

    Yields
    ------
    By how much memory after is below memory before, nats per token (below 0 trained
    identifiers became likelier again, others of their kind not), memory after, and what
    is said.
    """
    nll = known.nll
    pooled = known.sides[0]
    remembers_before = {f.checkpoint for f in told if f.alone == "memory"}
    confounded = {f.checkpoint for f in told if f.claim == "confounded"}

    for name in nll:
        original = original_of(name)
        is_relearned = CheckpointName.parse(name).derived == RELEARN
        if not is_relearned or name == RELEARNED_BASE:
            continue
        if not {BASE, RELEARNED_BASE, original} <= nll.keys():
            continue

        change_after = nll[name] - nll[RELEARNED_BASE]  # (units,), nats
        change_before = nll[original] - nll[BASE]
        back = pooled.moved(change_after - change_before, seed=known.context.seed)
        after = pooled.moved(change_after, seed=known.context.seed)
        back_row = contrast_of(
            back.own.difference,
            checkpoint=name,
            baseline=original,
            metric="returned",
            null=0.0,
            p=back.p,
        )
        after_row = row_of(
            after.own.difference,
            checkpoint=name,
            metric="returned",
            of="after",
            null=0.0,
        )

        facts: dict[str, Fact] = {
            "returned": back_row,
            "after": after_row,
            "original": original,
        }
        finding = None
        if back_row.value is None or back.p is None or after.p is None:
            finding = _unknown(back_row, "return_missing", facts)
        elif name in confounded:
            pass
        elif original in remembers_before:
            finding = _said(back_row, "nothing_shown", "return_known", facts)
        else:
            claims = {memory_claim(back_row), memory_claim(after_row)}
            is_memory = claims == {"memory"}
            finding = _said(
                back_row,
                "memory" if is_memory else "nothing_shown",
                "returned" if is_memory else "not_returned",
                facts,
                is_declared=True,
                p=max(back.p, after.p),
                power=[*back.power, *after.power],
                bounds=back.bounds,
            )
        yield back_row, after_row, finding


def _said(
    row: Row,
    claim: Claim,
    says: str,
    facts: Mapping[str, Fact],
    *,
    is_declared: bool = False,
    p: float | None = None,
    power: Sequence[Power] = (),
    bounds: Sequence[Bound] = (),
) -> Finding:
    """Return a finding of this audit on a row.

    ``is_declared`` is whether it is one of the tests that were declared beforehand.
    """
    return Finding.on(
        row,
        claim,
        f"matched.{says}",
        facts=facts,
        family="primary" if is_declared else "exploratory",
        p=p,
        power=list(power),
        bounds=list(bounds),
    )


def _unknown(row: Row, says: str, facts: Mapping[str, Fact]) -> Finding:
    """Return that nothing can be said, for the row's reason."""
    return _said(row, "not_tested", says, {**facts, "reason": row.note})


def _memory_findings(
    rows: RowsOfCheckpoint,
    tests: Mapping[str, Moved],
    pooled: Comparison,
    facts: Mapping[str, Fact],
) -> Iterator[Finding]:
    """Yield whether trained identifiers moved as others of their kind did.

    Of all of them, and of those that stand in most trained rows: these two are tests
    declared beforehand. The second one is left out where those rows are of fewer than
    :data:`MIN_CLUSTERS_TO_PUBLISH` clusters: it could see next to nothing, and would
    still count among the tests that p is corrected over.
    """
    # Doses of fewer clusters say next to nothing, and nothing that may be shared.
    doses = [group for group in tests if group.startswith("dose:")]
    shown_doses = [
        group
        for group in doses
        if rows["pii_change", TRAINED, group].clusters >= MIN_CLUSTERS_TO_PUBLISH
    ]
    power = [*tests["pooled"].power]
    bounds = [*tests["pooled"].bounds]
    for group in shown_doses:
        power += [replace(test, of=group) for test in tests[group].power]
        bounds += [replace(bound, of=group) for bound in tests[group].bounds]

    claim, says = _pooled_claim(pooled, rows["kind", "", "pooled"])
    if claim == "formats":
        facts = {**facts, "kind": rows["kind", "", "pooled"]}
    yield _said(
        pooled.memory,
        claim,
        says,
        facts,
        is_declared=True,
        p=tests["pooled"].p,
        power=power,
        bounds=bounds,
    )
    if doses and doses[-1] in shown_doses:
        yield _dose_finding(rows, doses[-1], tests[doses[-1]])


def _pooled_claim(pooled: Comparison, kind: Row) -> tuple[Claim, str]:
    """Return what the memory of all trained identifiers claims, and the key it says."""
    claim = memory_claim(pooled.memory)
    if claim != "nothing_shown":
        return claim, claim
    if pooled.memory.ends is None:
        return claim, "no_interval"
    if side_of(pooled.memory):
        return claim, "unequal"
    # Held-out ones must be likelier by themselves too: next to text that drifted up,
    # what stood still looks learned.
    if _clear(pooled.held_out) < 0 and _clear(kind) < 0:
        return "formats", "formats"
    return claim, "nothing"


def _dose_finding(rows: RowsOfCheckpoint, group: str, test: Moved) -> Finding:
    """Return what is said of the identifiers that stand in most trained rows."""
    comparison = Comparison.of_group(rows, group)
    facts: dict[str, Fact] = {
        **comparison.facts,
        "dose": group.removeprefix("dose:"),
    }
    if comparison.memory.value is None:
        facts["reason"] = comparison.memory.note
        return _said(comparison.memory, "nothing_shown", "dose_missing", facts)

    claim = memory_claim(comparison.memory)
    says = "dose_nothing" if claim == "nothing_shown" else f"dose_{claim}"
    return _said(
        comparison.memory,
        claim,
        says,
        facts,
        is_declared=True,
        p=test.p,
        power=test.power,
        bounds=test.bounds,
    )


def _selectivity_finding(
    rows: RowsOfCheckpoint, moved: Estimate, *, is_reference: bool, is_replicated: bool
) -> Finding:
    """Return how Delta_sel moved.

    What is read is the change since the reference: what matching left over there is
    no finding about a checkpoint.

    Parameters
    ----------
    moved
        Change of the identifiers' own NLL: Delta_sel grows as well when other text is
        learned faster than identifiers.
    """
    row = rows["delta_sel", "", "pooled"]
    facts: dict[str, Fact] = {"delta_sel": row, "seeds": is_replicated}
    if row.value is None:
        return _unknown(row, "no_delta_sel", facts)
    if is_reference:
        return _said(row, "nothing_shown", "reference", facts)

    change = rows["delta_sel", "change", "pooled"]
    test_rows = rows.get(("delta_sel", "change", "split:test"))
    if test_rows is not None and test_rows.value is None:
        test_rows = None
    facts["change"] = change
    facts["test_rows"] = test_rows
    facts["regression"] = rows["rtm_bias", "change", "pooled"]
    facts["own"] = row_of(moved, checkpoint=row.checkpoint, metric="own_change")

    side = _clear(change)
    says = {1: "up", 0: "still", -1: "down"}[side]
    if side < 0 < _clear(moved):
        says = "both_up"
    claim: Claim = "moved" if side else "nothing_shown"
    return _said(change, claim, f"delta_sel_{says}", facts)


def _clear(moved: Row | Estimate) -> int:
    """Return 1 or -1 for a change clearly above or below 0, else 0.

    Without an interval, where all clusters agree, the sign of the value counts.
    """
    side = side_of(moved)
    return int(np.sign(moved.value or 0.0)) if side is None else side


def contrast_findings(
    rows: Sequence[Row],
    contrasts: Sequence[Contrast],
    entries: Collection[str],
    ordinary: Collection[str],
) -> Iterator[Finding]:
    """Yield how identifiers moved against the baseline, and how other text drifted.

    Of methods, and of what rounding did to a checkpoint.

    Parameters
    ----------
    entries
        Methods that have replicates.
    ordinary
        Checkpoints whose training nobody corrected.
    """
    drifts = {row.checkpoint: row for row in rows if row.metric == "low_change"}
    by_pair = {
        (row.checkpoint, row.baseline, row.metric): row
        for row in contrasts
        if row.group == "pooled"
    }
    for (name, baseline, metric), did in by_pair.items():
        is_rounded = CheckpointName.parse(name).derived in ROUNDINGS
        is_rounding_of_baseline = is_rounded and original_of(name) == baseline
        if metric != "did" or not (did.family == "primary" or is_rounding_of_baseline):
            continue
        facts: dict[str, Fact] = {
            "did": did,
            "baseline": baseline,
            "seeds": name in entries,
        }
        if did.value is None:
            yield _unknown(did, "did_missing", facts)
            continue

        drift: Contrast | None = by_pair[name, baseline, "low_change"]
        if drift is not None and drift.value is None:
            drift = None
        own = by_pair[name, baseline, "nll_pii"]
        alike = by_pair[name, baseline, "did_alike"]
        facts["p"] = did.best_p
        facts["adjusted"] = did.p_adjusted is not None
        facts["drift"] = drift
        facts["drift_own"] = drifts.get(name)
        facts["drift_baseline"] = drifts.get(baseline)
        facts["own"] = own
        facts["alike"] = alike

        did_of_ordinary: list[float] = []  # nats per token
        if name not in ordinary:
            for run in ordinary:
                other = by_pair.get((run, baseline, "did"))
                if other is not None and other.value is not None:
                    did_of_ordinary.append(other.value)
        claim, says = _did_claim(did, drift, own, alike, did_of_ordinary)
        yield _said(did, claim, f"did_{says}", facts)


def _did_claim(
    did: Contrast,
    drift: Contrast | None,
    own: Contrast,
    alike: Contrast,
    did_of_ordinary: Sequence[float],
) -> tuple[Claim, str]:
    """Return what a DiD claims, next to the DiD of ordinary runs, and what it says.

    Suppressed is said of identifiers that are less likely by themselves, than equally
    hard text, and than text that looks like them, where other text drifted alike.

    Parameters
    ----------
    drift
        Change of low-sensitivity text; ``None``: not known.
    own
        Change of the identifiers by themselves.
    alike
        Change of the identifiers beyond text that looks like them.
    """
    if did.best_p is None or did.best_p >= 1 - did.level:
        return "nothing_shown", "still"
    if did_of_ordinary:
        if _within(did, did_of_ordinary):
            return "nothing_shown", "ordinary"
    elif drift is None or drift.value is None:
        return "nothing_shown", "drift_unknown"
    elif selectivity.unlike_drift(did.value or 0.0, drift.value, drift.low, drift.high):
        return "nothing_shown", "drift_unequal"

    side = _clear(did)
    is_less_likely_by_itself = _clear(own) > 0
    is_less_likely_than_alike = _clear(alike) > 0
    if side < 0:
        return "moved", "likelier"
    if not is_less_likely_by_itself:
        says = "not_own" if is_less_likely_than_alike else "only"
        return "moved", f"less_likely_{says}"
    if not is_less_likely_than_alike or not side:
        return "moved", "less_likely_not_alike"
    return "suppressed_kind", "suppressed"


def _within(row: Contrast, ordinary: Sequence[float]) -> bool:
    """Whether a DiD may be that of one more ordinary run: its interval must clear it.

    The prediction interval of one more run, by Student's t; of a single one, twice its
    own distance from 0.
    """
    values = np.asarray(ordinary, dtype=np.float64)
    reach = float(np.abs(values).max()) * (2.0 if len(values) == 1 else 1.0)
    if len(values) > 1:
        spread = float(values.std(ddof=1)) * math.sqrt(1 + 1 / len(values))
        t = float(scipy.special.stdtrit(len(values) - 1, 0.975))
        reach = max(reach, abs(float(values.mean())) + t * spread)
    ends = [end for end in (row.value, row.low, row.high) if end is not None]
    return not (min(ends) > reach or max(ends) < -reach)
