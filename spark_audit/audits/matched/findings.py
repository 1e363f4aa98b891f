"""What the figures of the matched audit are taken to mean."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

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
from spark_audit.results.findings import MIN_CLUSTERS_TO_PUBLISH, Fact
from spark_audit.stats import selectivity
from spark_audit.stats.estimate import Estimate, side_of

Told: TypeAlias = Mapping[tuple[str, str, str], Row]
"""Rows of a checkpoint by metric, variant and group."""

_tested = partial(Finding.on, family="primary")
"""One of the tests that were declared beforehand."""


def findings(
    known: UnitScores, rows: Sequence[Row], tested: Mapping[str, Mapping[str, Moved]]
) -> Iterator[Finding]:
    """What is said of each method; single replicates of one have no finding.

    ``tested`` are the tests of no memory, by checkpoint and group.
    """
    whole, ours = known.sides[0], known.train
    entries = {entry_of(name) for name in known.nll if entry_of(name) != name}
    trained, total = whole.sides.trained, ours["role"].isin(["pii", "unmatched"]).sum()
    # Trained identifiers that have nothing to be compared with.
    lost = dict[str, Fact]()
    if count := int((trained & (whole.sides.cells < 0)).sum()):
        lost["without_counterpart"] = Hits(count=count, of=int(total))
    if count := int(total - trained.sum()):
        lost["untold"] = Hits(count=count, of=int(total))
    if lost:
        lost["left_out_types"] = _left_out_types(ours, whole)
    for name, change in known.changes.items():
        # The relearned base is what others are held against.
        if entry_of(name) != name or name == RELEARNED_BASE:
            continue
        told = {(r.metric, r.of, r.group): r for r in rows if r.checkpoint == name}
        seeds, reference = name in entries, name in known.references
        row, facts = _compared(told, "pooled", seeds=seeds, **lost)
        if not reference and row.value is None:
            yield _unknown(row, "not_tested", facts)
        elif not reference and whole.told_apart:
            yield _said(
                row, "confounded", "confounded", {**facts, **whole.by_text(name)}
            )
        elif not reference:
            yield from _memory_findings(told, tested[name], facts)
        moved = pooled_change(ours[ours["role"] == "pii"], change)
        yield _selectivity_finding(told, moved, reference=reference, seeds=seeds)


def returned(
    known: UnitScores, told: Sequence[Finding]
) -> Iterator[tuple[Contrast, Row, Finding | None]]:
    """What came back to the original of each relearned checkpoint, beside the base.

    The base and the relearned base are among the checkpoints, or nothing is yielded.

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
    shown = {f.checkpoint for f in told if f.alone == "memory"}
    unclear = {f.checkpoint for f in told if f.claim == "confounded"}
    nll, whole, seed = known.nll, known.sides[0], known.context.seed
    for name in nll:
        original = original_of(name)
        relearned = (
            CheckpointName.parse(name).derived == RELEARN and name != RELEARNED_BASE
        )
        if not relearned or not {BASE, original} <= nll.keys():
            continue
        moved = nll[name] - nll[RELEARNED_BASE]
        change = moved - (nll[original] - nll[BASE])
        back, then = (whole.moved(values, seed=seed) for values in (change, moved))
        own = {"checkpoint": name, "metric": "returned", "null": 0.0}
        row = contrast_of(back.own.difference, baseline=original, p=back.p, **own)
        after = row_of(then.own.difference, of="after", **own)
        facts = {"returned": row, "after": after, "original": original}
        finding = None
        if row.value is None or back.p is None or then.p is None:
            finding = _unknown(row, "return_missing", facts)
        elif name not in unclear and original in shown:
            finding = _said(row, "nothing_shown", "return_known", facts)
        elif name not in unclear:
            both = {memory_claim(each) for each in (row, after)}
            claim: Claim = "memory" if both == {"memory"} else "nothing_shown"
            says = "returned" if claim == "memory" else "not_returned"
            told_by = {"p": max(back.p, then.p), "power": [*back.power, *then.power]}
            finding = _said(row, claim, says, facts, family="primary", **told_by)
        yield row, after, finding


def _said(
    row: Row, claim: Claim, says: str, facts: Mapping[str, Any], **more: Any
) -> Finding:
    return Finding.on(row, claim, f"matched.{says}", facts=facts, **more)


def _unknown(row: Row, says: str, facts: Mapping[str, Any]) -> Finding:
    """That nothing can be said, for the row's reason."""
    return _said(row, "not_tested", says, {**facts, "reason": row.note})


def _compared(rows: Told, group: str, **more: Fact) -> tuple[Row, dict[str, Any]]:
    """The figure of a comparison, and the facts: itself, its sides, and more."""
    facts: dict[str, Any] = {"memory": rows["memory", "", group]}
    facts["trained"] = rows["pii_change", TRAINED, group]
    facts["held_out"] = rows["pii_change", NEVER, group]
    return facts["memory"], facts | more


def _memory_findings(
    rows: Told, tests: Mapping[str, Moved], facts: dict[str, Any]
) -> Iterator[Finding]:
    """Whether identifiers that were trained on moved as others of their kind did.

    Of all of them, and of those that stand in most trained rows: these two are tests
    declared beforehand. The second one is left out where those rows are of fewer than
    :data:`FEWEST` clusters: it could see next to nothing, and would still count among
    the tests that p is corrected over.
    """
    doses = [group for group in tests if group.startswith("dose:")]
    highest = doses[-1:]
    if (
        highest
        and rows["pii_change", TRAINED, highest[0]].clusters < MIN_CLUSTERS_TO_PUBLISH
    ):
        highest = []
    row, test, kind = facts["memory"], tests["pooled"], rows["kind", "", "pooled"]
    power = [*test.power]
    for group in doses:
        # Of fewer it says next to nothing, and nothing that may be shared.
        if rows["pii_change", TRAINED, group].clusters >= MIN_CLUSTERS_TO_PUBLISH:
            own = tests[group].power
            power += [replace(each, of=group) for each in own]
    claim = memory_claim(row)
    says: str = claim
    if claim == "nothing_shown":
        # By themselves too: next to text that drifted up, what stood still looks
        # learned.
        learned = _clear(facts["held_out"]) < 0 and _clear(kind) < 0
        if row.ends is None:
            says = "no_interval"
        elif side_of(row):
            says = "unequal"
        elif learned:
            claim, says, facts = "formats", "formats", {**facts, "kind": kind}
        else:
            says = "nothing"
    yield _said(row, claim, says, facts, family="primary", p=test.p, power=power)
    for group in highest:
        row, facts = _compared(rows, group, dose=group.removeprefix("dose:"))
        claim, test = memory_claim(row), tests[group]
        if row.value is None:
            missing = {**facts, "reason": row.note}
            yield _said(row, "nothing_shown", "dose_missing", missing)
            continue
        says = "dose_nothing" if claim == "nothing_shown" else f"dose_{claim}"
        told = {"p": test.p, "power": [*test.power]}
        yield _said(row, claim, says, facts, family="primary", **told)


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
        return _said(row, "nothing_shown", "reference", facts)
    change = rows["delta_sel", "change", "pooled"]
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
    return _said(
        change, "moved" if side else "nothing_shown", f"delta_sel_{says}", facts
    )


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

    Of methods, and of what rounding did to a checkpoint.

    Parameters
    ----------
    entries
        Methods that have replicates.
    ordinary
        Checkpoints whose training nobody corrected.
    """
    drifts = {row.checkpoint: row for row in rows if row.metric == "low_change"}
    place = attrgetter("checkpoint", "baseline", "metric")
    by_pair = {place(row): row for row in contrasts if row.group == "pooled"}
    for (who, base, metric), row in by_pair.items():
        rounded = CheckpointName.parse(who).derived in ROUNDINGS
        wanted = row.family == "primary" or (rounded and original_of(who) == base)
        if metric != "did" or not wanted:
            continue
        facts: dict[str, Any] = {"did": row, "baseline": base, "seeds": who in entries}
        if row.value is None:
            yield _unknown(row, "did_missing", facts)
            continue
        drift = by_pair[who, base, "low_change"]
        facts |= {
            "p": row.best_p,
            "adjusted": row.p_adjusted is not None,
            "drift": None if drift.value is None else drift,
            "drift_own": drifts.get(who),
            "drift_baseline": drifts.get(base),
            "own": by_pair[who, base, "nll_pii"],
            "alike": by_pair[who, base, "did_alike"],
        }
        spread = list[float]()
        for run in () if who in ordinary else ordinary:
            one = by_pair.get((run, base, "did"))
            if one is not None and one.value is not None:
                spread.append(one.value)
        claim, says = _against(facts, spread)
        yield _said(row, claim, f"did_{says}", facts)


def _against(facts: Mapping[str, Any], ordinary: Sequence[float]) -> tuple[Claim, str]:
    """What a DiD says that differs from 0, next to the DiD of ordinary runs.

    Suppressed is said of identifiers that are less likely by themselves, than equally
    hard text, and than text that looks like them, where other text drifted alike.
    """
    row, drift = facts["did"], facts["drift"]
    if facts["p"] is None or facts["p"] >= 1 - row.level:
        return "nothing_shown", "still"
    if ordinary:
        if _within(row, ordinary):
            return "nothing_shown", "ordinary"
    elif drift is None:
        return "nothing_shown", "drift_unknown"
    elif selectivity.unlike_drift(row.value, drift.value, drift.low, drift.high):
        return "nothing_shown", "drift_unequal"
    side = _clear(row)
    if side < 0:
        return "moved", "likelier"
    by_itself, beyond = (_clear(facts[name]) > 0 for name in ("own", "alike"))
    if not by_itself:
        return "moved", f"less_likely_{'not_own' if beyond else 'only'}"
    if not beyond or not side:
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
