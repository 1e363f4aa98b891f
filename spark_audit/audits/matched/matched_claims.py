"""What the matched audit claims of its rows: a key and facts per finding."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.identifier_facts import Moved
from spark_audit.audits.matched.changes import (
    Occurrences,
    Return,
    has_sentence,
    pooled_change,
    row_of,
)
from spark_audit.names import CONTROL, entry_of
from spark_audit.results import Claim, Contrast, Estimate, Finding, Row, side_of
from spark_audit.results.findings import Power
from spark_audit.stats.matching import unlike_drift
from spark_audit.stats.memory_contrast import claim_of

Told: TypeAlias = Mapping[tuple[str, str, str], Row]
"""Rows of a checkpoint by metric, variant and group."""
FEWEST = 5
"""Clusters of trained identifiers of a dose whose smallest effect is told."""


def findings(
    rows: Sequence[Row],
    units: pd.DataFrame,
    whole: Occurrences,
    changes: Mapping[str, np.ndarray],
    references: Collection[str],
    tested: Mapping[str, Mapping[str, Moved]],
) -> Iterator[Finding]:
    """What is said of each method.

    Parameters
    ----------
    whole
        All identifiers that are compared.
    changes
        Change of the units' NLL since the reference, nats, by checkpoint; single
        replicates of a method have no finding.
    references
        Checkpoints that score as the matching reference does.
    tested
        The tests of no memory, by checkpoint and group.
    """
    entries = {entry_of(name) for name in changes if entry_of(name) != name}
    lost = whole.left_out(units)
    pii = units[(units["split"] == "train") & (units["role"] == "pii")]
    for name, change in changes.items():
        # The relearned base is what others are held against.
        if entry_of(name) != name or name == CONTROL:
            continue
        of_name = {(r.metric, r.of, r.group): r for r in rows if r.checkpoint == name}
        seeds, reference = name in entries, name in references
        if not reference:
            facts = {**_compared(of_name, "pooled"), "seeds": seeds, **lost}
            doubt = whole.by_text(name) if whole.told_apart else {}
            yield from _memory_findings(of_name, tested[name], facts, doubt)
        moved = pooled_change(pii, change)
        yield _selectivity_finding(of_name, moved, reference=reference, seeds=seeds)


def _memory_findings(
    rows: Told,
    tests: Mapping[str, Moved],
    facts: dict[str, Any],
    doubt: Mapping[str, Any],
) -> Iterator[Finding]:
    """Whether identifiers that were trained on moved as others of their kind did.

    Of all of them, and of those that stand in most trained rows: these two are tests
    declared beforehand. ``doubt`` are facts on why a difference is no memory.
    """
    row = rows["memory", "", "pooled"]
    if row.value is None:
        yield _unknown(row, "not_tested", facts)
        return
    if doubt:
        facts |= doubt
        yield Finding.on(row, "confounded", "matched.confounded", facts=facts)
        return
    doses = [key[2] for key in rows if key[0] == "memory" and key[2][:5] == "dose:"]
    yield _memory(rows, tests, doses, facts)
    if doses:
        yield _highest(rows, tests, doses[-1])


def return_findings(
    found: Iterable[Return], told: Sequence[Finding]
) -> Iterator[Finding]:
    """Whether what a checkpoint did not show came back after a short training.

    Two tests must hold: memory after that training, and that it is more than before,
    both beyond what the same training does to the base. The larger p counts.

    Parameters
    ----------
    told
        All else that is said: of whom memory is shown before, nothing is claimed.
    """
    shown = {f.checkpoint for f in told if f.alone == "memory"}
    unclear = {f.checkpoint for f in told if f.claim == "confounded"}
    for one in found:
        row, after = one.row, one.after
        facts: dict[str, Any] = {"returned": row, "after": after}
        facts["original"] = row.baseline
        ps = [moved.p for moved in one.moved if moved.p is not None]
        if row.value is None or len(ps) < len(one.moved):
            yield _unknown(row, "return_missing", facts)
        elif row.checkpoint in unclear:
            continue
        elif row.baseline in shown:
            says = "matched.return_known"
            yield Finding.on(row, "nothing_shown", says, facts=facts)
        else:
            both = all(claim_of(each) == "memory" for each in (row, after))
            says = "returned" if both else "not_returned"
            power = [each for moved in one.moved for each in moved.power]
            claim: Claim = "memory" if both else "nothing_shown"
            yield _tested(row, claim, says, facts, max(ps), power)


def _unknown(row: Row, says: str, facts: Mapping[str, Any]) -> Finding:
    """That nothing can be said, for the row's reason."""
    facts = {**facts, "reason": row.note}
    return Finding.on(row, "not_tested", f"matched.{says}", facts=facts)


def _tested(
    row: Row,
    claim: Claim,
    says: str,
    facts: Mapping[str, Any],
    p: float | None,
    power: Iterable[Power],
) -> Finding:
    """One of the tests that were declared beforehand."""
    told: dict[str, Any] = {"facts": facts, "p": p, "power": list(power)}
    return Finding.on(row, claim, f"matched.{says}", family="primary", **told)


def _compared(rows: Told, group: str) -> dict[str, Any]:
    """The figure of a comparison, and both of its sides."""
    return {
        "memory": rows["memory", "", group],
        "trained": rows["pii_change", "trained", group],
        "held_out": rows["pii_change", "never-trained", group],
    }


def _memory(
    rows: Told, tests: Mapping[str, Moved], doses: Sequence[str], facts: dict[str, Any]
) -> Finding:
    row, kind = rows["memory", "", "pooled"], rows["kind", "", "pooled"]
    test = tests["pooled"]
    # By themselves too: next to text that drifted up, what stood still looks learned.
    never = rows["pii_change", "never-trained", "pooled"]
    claim = claim_of(row)
    power = [
        each.model_copy(update={"of": group})
        for group in doses
        # Of fewer it says next to nothing, and nothing that may be shared.
        if rows["pii_change", "trained", group].clusters >= FEWEST
        for each in tests[group].power
    ]
    says: str = claim
    if claim not in ("memory", "betrays"):
        says = "nothing"
        if row.ends is None:
            says = "no_interval"
        elif side_of(row):
            says = "unequal"
        elif _clear(never) < 0 and _clear(kind) < 0:
            claim, says, facts["kind"] = "formats", "formats", kind
    return _tested(row, claim, says, facts, test.p, [*test.power, *power])


def _highest(rows: Told, tests: Mapping[str, Moved], group: str) -> Finding:
    """Of the identifiers that stand in most trained rows."""
    row = rows["memory", "", group]
    facts = {**_compared(rows, group), "dose": row.grouping[1]}
    if row.value is None:
        facts["reason"] = row.note
        return Finding.on(row, "nothing_shown", "matched.dose_missing", facts=facts)
    claim, test = claim_of(row), tests[row.group]
    says = claim if claim in ("memory", "betrays") else "nothing"
    return _tested(row, claim, f"dose_{says}", facts, test.p, test.power)


def _selectivity_finding(
    rows: Told, moved: Estimate, *, reference: bool, seeds: bool
) -> Finding:
    """How Delta_sel moved.

    What is read is the change since the reference: what matching left over there is
    no finding about a checkpoint.

    Parameters
    ----------
    moved
        Change of the identifiers' own NLL: Delta_sel grows as well when other text is
        learned faster than identifiers.
    """
    row = rows["delta_sel", "", "pooled"]
    facts: dict[str, Any] = {"delta_sel": row, "seeds": seeds}
    if row.value is None:
        return _unknown(row, "no_delta_sel", facts)
    if reference:
        return Finding.on(row, "nothing_shown", "matched.reference", facts=facts)
    change = rows["delta_sel", "change", "pooled"]
    if change.value is None:
        facts["reason"] = change.note
        return Finding.on(row, "not_tested", "matched.no_change", facts=facts)
    other = rows.get(("delta_sel", "change", "split:test"))
    facts |= {
        "change": change,
        "test_rows": None if other is None or other.value is None else other,
        "regression": rows["rtm_bias", "change", "pooled"],
        "own": row_of(moved, checkpoint=row.checkpoint, metric="own_change"),
    }
    side = _clear(change)
    says = {1: "up", 0: "still", -1: "down"}[side]
    if side < 0 < _clear(moved):
        says = "both_up"
    claim: Claim = "moved" if side else "nothing_shown"
    return Finding.on(change, claim, f"matched.delta_sel_{says}", facts=facts)


def _clear(moved: Row | Estimate) -> int:
    """1, -1: a change is clearly above, below 0; where all clusters agree it is."""
    side = side_of(moved)
    return int(np.sign(moved.value or 0.0)) if side is None else side


def contrast_findings(
    rows: Sequence[Row],
    contrasts: Sequence[Contrast],
    entries: Collection[str],
    ordinary: Collection[str],
) -> Iterator[Finding]:
    """How identifiers moved against the baseline, and what the drift of both was.

    Parameters
    ----------
    entries
        Methods that have replicates.
    ordinary
        Checkpoints whose training nobody corrected.
    """
    drifts = {row.checkpoint: row for row in rows if row.metric == "low_change"}
    pooled = [row for row in contrasts if row.group == "pooled"]
    by_pair = {(row.checkpoint, row.baseline, row.metric): row for row in pooled}
    for row in filter(has_sentence, contrasts):
        who, base = row.checkpoint, row.baseline
        facts: dict[str, Any] = {"did": row, "baseline": base, "seeds": who in entries}
        if row.value is None:
            yield _unknown(row, "did_missing", facts)
            continue
        drift, own, alike = (
            by_pair[who, base, metric]
            for metric in ("low_change", "nll_pii", "did_alike")
        )
        facts |= {
            "p": row.p if row.p_adjusted is None else row.p_adjusted,
            "adjusted": row.p_adjusted is not None,
            "drift": None if drift.value is None else drift,
            "drift_own": drifts.get(who),
            "drift_baseline": drifts.get(base),
            "own": own,
            "alike": alike,
        }
        claim: Claim = "nothing_shown"
        if facts["p"] is None or facts["p"] >= 1 - row.level:
            says = "still"
        else:
            spread = [
                one.value
                for one in pooled
                if (one.metric, one.baseline) == ("did", base)
                and one.checkpoint in ordinary
                and who not in ordinary
                and one.value is not None
            ]
            claim, says = _against(row, drift, own, alike, spread)
        yield Finding.on(row, claim, f"matched.did_{says}", facts=facts)


def _against(
    row: Contrast,
    drift: Contrast,
    own: Contrast,
    alike: Contrast,
    ordinary: Sequence[float],
) -> tuple[Claim, str]:
    """What a DiD that differs from 0 says, next to the DiD of ordinary runs.

    Suppressed is said of identifiers that are less likely by themselves, than equally
    hard text, and than text that looks like them, where other text drifted alike.
    """
    if ordinary:
        if within(row, ordinary):
            return "nothing_shown", "ordinary"
    elif drift.value is None:
        return "nothing_shown", "drift_unknown"
    elif unlike_drift(row.value or 0.0, drift.value, drift.low, drift.high):
        return "nothing_shown", "drift_unequal"
    side = _clear(row)
    if side < 0:
        return "moved", "likelier"
    by_itself, beyond = _clear(own) > 0, _clear(alike) > 0
    if not by_itself:
        return "moved", f"less_likely_{'not_own' if beyond else 'only'}"
    if not beyond or not side:
        return "moved", "less_likely_not_alike"
    return "suppressed_kind", "suppressed"


def within(row: Contrast, ordinary: Sequence[float]) -> bool:
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
