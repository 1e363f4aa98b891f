"""Findings of the audit of twins: what ranks among made-up strings claim.

A checkpoint has one finding. It rests on tests of two groups of trained identifiers,
all of them and those of the highest dose, and is on the group that shows a change.
Identifiers that rise (above 0 bits) are remembered; those that fall further than
held-out ones are betrayed by it. For the tests see
:mod:`~spark_audit.audits.twins.rank_tests`.

Keys of sentences are those of ``sentences/en/twins.toml``. A new sentence is a row in
the table of :func:`_detected_verdict` or :func:`_undetected_verdict`, and a branch in
the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from spark_audit.audits.canary.ranks import TIED
from spark_audit.audits.claims import ALPHA
from spark_audit.audits.twins.figures import collapsed
from spark_audit.audits.twins.rank_tests import RankTest, hits_power, rank_tests
from spark_audit.names import BASE, TRAINED
from spark_audit.results import Claim, Finding, Row
from spark_audit.results.findings import Fact
from spark_audit.stats.estimate import Bound, side_of
from spark_audit.stats.multiple_tests import holm


class RankVerdict(NamedTuple):
    """What the ranks of a checkpoint claim: a claim, a sentence, and its remarks.

    Keys lack ``twins.`` in front.
    """

    claim: Claim
    says: str
    remarks: tuple[str, ...] = ()


def rank_findings(
    frame: pd.DataFrame, rows: Sequence[Row], *, seed: int
) -> Iterator[Finding]:
    """Yield one finding per checkpoint; the base has none.

    Parameters
    ----------
    frame
        From :func:`~spark_audit.audits.twins.figures.ranked`.
    rows
        Figures of all checkpoints.
    """
    collapsed_names = collapsed(frame)
    for name in dict.fromkeys(frame["checkpoint"]):
        if name == BASE:
            continue
        of_checkpoint = frame[frame["checkpoint"] == name]
        # Rises need resolved ranks of the base, too.
        if collapsed_names & {name, BASE}:
            yield _not_resolvable(name, is_at_base=name not in collapsed_names)
            continue

        rows_of_checkpoint = [row for row in rows if row.checkpoint == name]
        tests = list(rank_tests(of_checkpoint, rows_of_checkpoint, seed))
        # Without a base and without held-out identifiers there is no test.
        if tests:
            yield _finding(tests, of_checkpoint)
        elif (of_checkpoint["side"] == TRAINED).any():
            yield Finding.not_tested(
                "twins",
                "twins.no_control",
                checkpoint=name,
                further=["twins.needs_control"],
            )
        else:
            yield Finding.not_tested("twins", "twins.no_trained", checkpoint=name)


def _not_resolvable(name: str, *, is_at_base: bool) -> Finding:
    """Return the finding that ranks are ties, at the checkpoint or the base model."""
    says = "twins.not_resolvable"
    if is_at_base:
        says = "twins.not_resolvable_at_base"
    return Finding.not_tested(
        "twins",
        says,
        checkpoint=name,
        status="not_resolvable",
        reason=TIED,
        on_base=is_at_base,
    )


def _finding(tests: Sequence[RankTest], frame: pd.DataFrame) -> Finding:
    """Return the finding from the tests of one checkpoint, corrected by Holm.

    Parameters
    ----------
    tests
        Of all trained identifiers, and of the highest dose.
    frame
        Identifiers of the checkpoint, from
        :func:`~spark_audit.audits.twins.figures.ranked`.
    """
    # The group with the smallest p decides, corrected over both groups.
    ps = holm([test.p for test in tests]).tolist()
    p = min(ps)
    pooled = tests[0]
    clearest = tests[ps.index(p)]

    # A change is detected where its interval agrees with its tests. The finding is on
    # its group, and on all identifiers where none is.
    has_direction = clearest.direction != 0
    is_interval_on_its_side = side_of(clearest.row) == clearest.direction
    if p <= ALPHA and has_direction and is_interval_on_its_side:
        shown = clearest
        verdict = _detected_verdict(clearest)
    else:
        shown = pooled
        verdict = _undetected_verdict(pooled)

    # `trained`, `never` and `left_out` count clusters.
    is_trained = frame["side"] == TRAINED
    is_left_out = ~is_trained & (frame["stratum"] < 0)
    n_left_out = frame[is_left_out]["cluster"].nunique()
    facts: dict[str, Fact] = {
        "ahead": shown.row,
        "ahead_all": pooled.row,
        "trained": shown.n_trained,
        "never": shown.n_held_out,
        "left_out": n_left_out,
    }
    if verdict.claim == "memory":
        facts |= _facts_beyond(shown)

    control_remarks = []
    if not shown.n_held_out:
        control_remarks.append(_why_no_control(n_left_out))

    # A mean rise of 0 may also be two that cancel: look at each of them.
    n_groups = len(tests)
    has_rise = pooled.row.metric == "rise"
    if has_rise and not frame.loc[is_trained, "rise"].any():
        # Ranks are those at the base: where all are the first, none could rise.
        if (frame.loc[is_trained, "top1"] == 1.0).all():
            return _at_ceiling(pooled)
        return _finding_of_copy(pooled, facts, control_remarks, p=p, n_groups=n_groups)

    # Both groups could have claimed, so smallest effect and limit include the
    # correction.
    remarks = [_relation(shown.row), *verdict.remarks, *control_remarks]
    return Finding.on(
        shown.row,
        verdict.claim,
        f"twins.{verdict.says}",
        further=[f"twins.{key}" for key in remarks],
        facts=facts,
        power=[
            replace(inputs, n_tests=inputs.n_tests * n_groups) for inputs in shown.power
        ],
        bounds=[replace(inputs, n_tests=n_groups) for inputs in shown.bounds],
        p=p,
    )


def _at_ceiling(pooled: RankTest) -> Finding:
    """Return the finding that the base ranks all trained identifiers first already.

    Parameters
    ----------
    pooled
        Tests of all trained identifiers.
    """
    return Finding.not_tested(
        "twins",
        "twins.at_ceiling",
        checkpoint=pooled.row.checkpoint,
        clusters=pooled.n_trained,
    )


def _finding_of_copy(
    pooled: RankTest,
    facts: Mapping[str, Fact],
    remarks: Sequence[str],
    *,
    p: float,
    n_groups: int,
) -> Finding:
    """Return the finding that no rank has changed at all, as in a copy of the base.

    Its effects count clusters that moved, since rises have no spread.

    Parameters
    ----------
    pooled
        Tests of all trained identifiers.
    remarks
        Keys of the remarks that follow the sentence, without ``twins.`` in front.
    p
        p of the finding, corrected over the groups.
    n_groups
        Groups that were tested.
    """
    return Finding.on(
        pooled.row,
        "nothing_shown",
        "twins.still",
        further=[f"twins.{key}" for key in remarks],
        facts={**facts, "clusters": pooled.n_trained},
        unit="clusters",
        power=[hits_power(pooled.n_trained, pooled.n_held_out, n_tests=n_groups)],
        bounds=[_bound_of_moved(pooled.n_trained, n_groups=n_groups)],
        p=p,
    )


def _bound_of_moved(n_clusters: int, *, n_groups: int) -> Bound:
    """Return the inputs of how many clusters could have moved where none did.

    Parameters
    ----------
    n_clusters
        Clusters of trained identifiers.
    n_groups
        Groups that were tested, over which p is corrected.
    """
    return Bound(
        test="hits", value=0.0, n=n_clusters, worst_value=n_clusters, n_tests=n_groups
    )


def _why_no_control(n_left_out: int) -> str:
    """Return the key of the remark on why no held-out identifier can be compared.

    Parameters
    ----------
    n_left_out
        Held-out clusters that are not comparable.
    """
    if n_left_out == 0:
        return "none_held_out"
    if n_left_out == 1:
        return "none_comparable_of_one"
    return "none_comparable"


def _detected_verdict(test: RankTest) -> RankVerdict:
    """Return the verdict on a detected change of ranks; the first match wins.

    ========  =======  =====================================================
    sentence  claim    condition
    ========  =======  =====================================================
    memory    memory   the identifiers rose
    betrays   betrays  they fell, also relative to held-out ones
    fell      moved    they fell, and there are no held-out ones
    ========  =======  =====================================================

    The sentence of a dose has ``dose_`` in front.
    """
    # A finding on a dose names it.
    prefix = "" if test.row.group == "pooled" else "dose_"

    # In the order of the table.
    if test.direction > 0:
        facts = _facts_beyond(test)
        if facts["beyond"] is None:
            return RankVerdict("memory", f"{prefix}memory")
        remark = "beyond" if facts["beyond_clear"] else "also_beyond"
        return RankVerdict("memory", f"{prefix}memory", (remark,))

    if "beyond" in test.ps:
        return RankVerdict("betrays", f"{prefix}betrays")
    return RankVerdict("moved", f"{prefix}fell")


def _undetected_verdict(pooled: RankTest) -> RankVerdict:
    """Return the verdict on ranks without a detected change; the first match wins.

    ==========  ==============  =====================================================
    sentence    claim           condition
    ==========  ==============  =====================================================
    confounded  confounded      ranks changed since the base, and no held-out
                                identifier tells whether a learned format explains it
    kind        formats         they rose since the base, and not beyond held-out ones
    kind        moved           they fell since the base, and not beyond held-out ones
    nothing     nothing_shown   otherwise
    ==========  ==============  =====================================================
    """
    # Without a base there is no p of a rise.
    is_changed = pooled.ps.get("rise", 1.0) <= ALPHA
    if is_changed and "format" in pooled.ps:
        return RankVerdict("confounded", "confounded", ("why_confounded",))
    if is_changed and "beyond" in pooled.ps:
        claim: Claim = "formats" if (pooled.row.value or 0.0) > 0 else "moved"
        return RankVerdict(claim, "kind", ("format_changed",))
    return RankVerdict("nothing_shown", "nothing")


def _facts_beyond(test: RankTest) -> Mapping[str, Fact]:
    """Return the rise beyond held-out identifiers, and whether its interval is clear.

    Only this part of a rise cannot be a learned format. With few clusters its interval
    may contain 0 where its test, by permutations, shows a difference. ``beyond`` is
    ``None`` where it was not tested, or where it is the row of the finding already.
    """
    beyond = test.beyond_row
    is_further_row = "beyond" in test.ps and test.row is not beyond
    is_clear = beyond is not None and side_of(beyond) == test.direction
    return {
        "beyond": beyond if is_further_row else None,
        "beyond_clear": is_clear,
    }


def _relation(row: Row) -> str:
    """Return the key of the remark on what a figure is relative to."""
    if row.metric == "rise":
        return "since_base"
    return "beside_held_out"
