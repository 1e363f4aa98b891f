"""Which claims hold: the reports of a study, read by the rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from claims.auditing import (
    TIME,
    TRAINING,
    Audited,
    loss_figure,
    over_orders,
    time_figure,
    unmet,
)
from claims.plan import Order
from claims.rules import Claim, Decision, Figure, claims, decide, figure_of
from spark_audit.results import Report


def decided(
    of_base: dict[bool, Audited], *, alone: bool, unlike: str
) -> Iterable[Decision]:
    """Every claim's decision.

    Parameters
    ----------
    of_base
        The runs of the first base (``False``) and, where given, of the second.
    alone
        Whether each run had the machine to itself.
    unlike
        Why no time is judged; may be empty.
    """
    told = claims()
    for claim in told:
        audited = of_base.get(claim.order == "second")
        if audited is None:
            yield Decision(claim, Figure(None), "not run", "no second base was given")
            continue
        lacking = [
            name
            for name in claim.systems
            if name != "base" and not audited.seeds(name, _first_order(claim))
        ]
        if lacking:
            why = f"{', '.join(lacking)} was not trained"
            yield Decision(claim, Figure(None), "not run", why)
            continue
        if claim.audit == TIME:
            figure = time_figure(audited, claim, alone=alone)
            yield (
                Decision(claim, figure, "not detectable here", unlike)
                if unlike and figure.value is not None
                else decide(claim, figure)
            )
        elif claim.audit == TRAINING:
            yield decide(claim, loss_figure(audited, claim))
        else:
            yield _decision(claim, told, audited)


def _first_order(claim: Claim) -> Order:
    return claim.order if claim.order != "average" else 1


def _decision(claim: Claim, told: Sequence[Claim], audited: Audited) -> Decision:
    orders = [claim.order] if claim.order != "average" else [1, 2, 3]
    figures, reason = [], ""
    for order in orders:
        if not audited.seeds(claim.of, order):
            continue
        report = _report(claim, told, audited, order)
        if report is None:
            continue
        figures.append(figure_of(report, claim))
        utility = audited.report("utility", order, audited.systems(order))
        reason = reason or unmet(claim, report, utility)
    if claim.order == "average":
        return decide(claim, over_orders(figures), unmet=reason)
    if not figures:
        return decide(claim, Figure(None, missing="no report"))
    return decide(claim, figures[0], unmet=reason)


def _report(
    claim: Claim, told: Sequence[Claim], audited: Audited, order: Order
) -> Report | None:
    """The report of all claims that read this audit beside this baseline."""
    if not claim.than and claim.audit in ("utility", "nll", "matched"):
        return audited.report(claim.audit, order, audited.systems(order))

    def seeds(one: Claim) -> set[int]:
        """Those that a claim's contrast has."""
        names = [name for name in one.systems if name != "base"]
        of = [{run.seed for run in audited.seeds(name, order)} for name in names]
        return set.intersection(*of) if all(of) else set()

    alike = [
        one
        for one in told
        if (one.audit, one.than) == (claim.audit, claim.than)
        and one.order in (order, "average")
        and seeds(one) == seeds(claim)
    ]
    names = [name for one in alike for name in one.systems if name != "base"]
    return audited.report(claim.audit, order, names, baseline=claim.than)
