"""What the twins audit says: one sentence a checkpoint, and the tests it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.contract import BASE
from spark_audit.audits.twins.twin_rows import (
    CONTROL,
    NEVER,
    TIED,
    TRAINED,
    beyond,
    by_dose,
    collapsed,
    compared,
    held_out,
)
from spark_audit.audits.wording import figure, of_rows, p_value
from spark_audit.data.twins import WORDED
from spark_audit.results import Claim, Finding, Row
from spark_audit.results.findings import Power
from spark_audit.stats.bootstrap import EXACT_UP_TO, holm, sign_flip
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.memory import Memory, Sides, least_p, permutation_p

LEVEL = 0.05
FINEST = 1e-4
"""The smallest p of a test by 9,999 random draws."""
UNSURE = "by tests of 9,999 draws"
NOBODY = "where nobody was held out and neither injected numbers nor doses can tell"


@dataclass(frozen=True)
class Test:
    """A group of trained identifiers, held against the base and those never trained on.

    Attributes
    ----------
    row
        The figure that a claim rests on.
    p_rise, p_beyond
        Two-sided: of no rise since the base, and of no difference from the rise of
        identifiers never trained on; ``None`` where there is nothing to hold against.
    way
        1, -1: both point up, down; 0: they do not agree, or there is no figure.
    p_kind
        Where nobody was held out: of what a kind that was learned could not give
        (:func:`_beyond_the_kind`); else ``None``.
    apart
        The row of what it has beyond those never trained on, where there are any.
    power
        What the smallest effect follows from that all of these tests detect.
    over
        Groups that ``p`` is corrected over.
    """

    row: Row
    p_rise: float | None
    p_beyond: float | None
    way: int
    p_kind: float | None = None
    apart: Row | None = None
    power: tuple[Power, ...] = ()
    p: float = 1.0
    over: int = 1

    @property
    def both(self) -> float:
        """P of the conjunction: each of them must hold."""
        ps = (self.p_rise, self.p_beyond, self.p_kind)
        found = [p for p in ps if p is not None]
        return max(found, default=1.0) if self.way else 1.0


def findings(frame: pd.DataFrame, rows: Sequence[Row], *, seed: int) -> list[Finding]:
    """One finding a checkpoint, base apart."""
    lost = collapsed(frame)
    found = []
    for name in dict.fromkeys(frame["checkpoint"]):
        if name == BASE:
            continue
        own = frame[frame["checkpoint"] == name]
        if lost & {name, BASE}:
            whose = "" if name in lost else " on the base"
            said = f"{name}: identifiers are not resolvable among their twins{whose}, "
            said += f"{TIED}."
            status = {"status": "not_resolvable", "checkpoint": name}
            found.append(_finding(None, "not_tested", said, **status))
            continue
        tests = list(_tests(own, [row for row in rows if row.checkpoint == name], seed))
        if not tests:
            reason = "the base was not scored, and too few identifiers stand in no "
            reason += "trained row"
            if not (own["side"] == TRAINED).any():
                reason = "no identifier of trained rows has twins"
            said = f"{name}: memory not tested by twins, {reason}."
            found.append(_finding(None, "not_tested", said, checkpoint=name))
            continue
        ps = holm([test.both for test in tests])
        tests = [
            replace(test, p=float(p), over=len(tests))
            for test, p in zip(tests, ps, strict=True)
        ]
        found.append(_verdict(name, tests, _still(tests[0].row, own, len(tests))))
    return found


def _finding(row: Row | None, claim: Claim, sentence: str, **columns: Any) -> Finding:
    return Finding.on(row, claim, sentence, **{"audit": "twins", **columns})


def _tests(own: pd.DataFrame, rows: Sequence[Row], seed: int) -> Iterator[Test]:
    """All trained identifiers, and those of the highest doses where doses differ."""
    ours, others = own[own["side"] == TRAINED], held_out(own)
    doses = list(by_dose(ours))
    parts = [("pooled", ours)]
    if len(doses) > 1:
        parts.append((f"dose:{doses[-1][0]}", doses[-1][1]))
    for group, part in parts:
        held = {(r.metric, r.of): r for r in rows if r.group == group}
        rise, apart = held.get(("rise", TRAINED)), held.get(("beyond", compared(own)))
        row = apart if rise is None or rise.value is None else rise
        if row is None or row.value is None:
            continue
        p_rise = p_beyond = None
        ways = {int(np.sign(row.value))}
        power: list[Power] = []
        if row is rise:
            sums = part.groupby("cluster")["rise"].sum()
            p_rise = sign_flip(sums.to_numpy(), seed=seed)
            power += _flip(part)
        control = beyond(part, others)
        if apart is not None and apart.value is not None and control is not None:
            change = pd.concat([part, others])[compared(own)].to_numpy()
            p = permutation_p(change, control[1], seed=seed)
            p_beyond = control[0].t_p() if p is None else p
            power += _dealt(control, exact=p is not None)
            ways.add(int(np.sign(apart.value)))
        way = ways.pop() if len(ways) == 1 else 0
        p_kind = None
        if p_beyond is None:
            lowest = doses[0][1] if group != "pooled" else None
            p_kind, kind = _beyond_the_kind(part, lowest, seed=seed)
            p_kind = p_kind if way > 0 else None
            power += kind
        yield Test(row, p_rise, p_beyond, way, p_kind, apart, tuple(power))


def _flip(part: pd.DataFrame) -> list[Power]:
    """Of a sign flip of rises, identifiers of a cluster together."""
    sums = part.groupby("cluster")["rise"].agg(["sum", "size"])
    found = ratio_estimate(sums["sum"], sums["size"])
    if not found.se and len(sums) > 5:
        return []
    exact = len(sums) <= EXACT_UP_TO
    return [
        Power(
            test="sign-flip",
            se=found.se,
            df=len(sums) - 1,
            n=len(sums),
            least_p=2.0 ** (1 - len(sums)) if exact else FINEST,
            why="with so few clusters" if exact else UNSURE,
        )
    ]


def _dealt(held: tuple[Memory, Sides], *, exact: bool) -> list[Power]:
    """Of a difference whose p is that of permutations, or of Student's t."""
    if not (se := held[0].difference.se):
        return []
    least = least_p(held[1]) if exact else 0.0
    why = UNSURE if least == FINEST else "with so few clusters"
    df = held[0].freedom
    return [Power(test="t", se=se, df=df, least_p=least, why=why)]


def _beyond_the_kind(
    part: pd.DataFrame, lowest: pd.DataFrame | None, *, seed: int
) -> tuple[float, list[Power]]:
    """P that a rise is no more than that of a kind whose look was learned.

    Names and addresses of real data are not the lists that their twins are drawn from:
    without any that were held out, their rise can be that of all such words, and that
    of numbers what they begin with, such as one country's code. Injected numbers are
    exchangeable with their twins, and identifiers of the highest dose are held against
    those of the lowest. The smaller of both, by Bonferroni; 1 where there is neither.
    And what the smallest effect of the first of them follows from.
    """
    ps: list[float] = []
    power: list[Power] = []
    drawn = part["injected"] & ~part["type"].isin(WORDED)
    numbers = part[drawn].groupby("cluster")["rise"].sum()
    if len(numbers) >= CONTROL:
        p = sign_flip(numbers.to_numpy(), seed=seed)
        ps.append(p if numbers.mean() > 0 else 1.0)
        power += _flip(part[drawn])
    held = None if lowest is None else beyond(part, lowest.assign(side=NEVER))
    if held is not None:
        assert lowest is not None
        change = pd.concat([part, lowest])["rise"].to_numpy()
        exact = permutation_p(change, held[1], seed=seed)
        found = held[0].t_p() if exact is None else exact
        risen = (held[0].difference.value or 0.0) > 0
        ps.append(found if found is not None and risen else 1.0)
        power += _dealt(held, exact=exact is not None)
    if not ps:
        return 1.0, [Power(test="t", least_p=1.0, why=NOBODY)]
    told = [one.model_copy(update={"over": float(len(ps))}) for one in power[:1]]
    return min(1.0, len(ps) * min(ps)), told


def _verdict(name: str, tests: Sequence[Test], still: dict[str, Any]) -> Finding:
    best, whole = min(tests, key=lambda test: test.p), tests[0]
    row = best.row
    whose = f"{name}: identifiers that it was trained on"
    if row.group != "pooled":
        dose = of_rows(row.group.removeprefix("dose:"))
        whose = f"{name}: identifiers that stand in {dose} trained rows"
    figures = f"{figure(whole.row, digits=2)} bits {_since(whole.row)}"
    said = f"they rank ahead by {figures} (0 without memory)"
    if still:
        said = f"in none of {still['power'][0].n} clusters has a rank changed, as in a "
        said += "copy of the base"
    nothing = (
        f"{name}: no memory of identifiers shown among fresh strings of their kind: "
        f"{said}."
    )
    options: dict[str, Any] = {"p": best.p, "family": "primary"}
    found = best.p <= LEVEL and best.way and _clear(row, best.way)
    options["power"] = [
        each.model_copy(update={"over": each.over * len(tests)})
        for each in (best if found else whole).power
    ]
    if found:
        change = figure(row, digits=2, sign=best.way)
        if best.way > 0:
            options["otherwise"] = nothing
            said = f"REMEMBERED, they rank ahead of their twins by {change} bits"
            control = ""
            if best.p_beyond is not None and best.apart and row is not best.apart:
                # Of a rise only this part is no kind that was learned. Of few clusters
                # its interval may hold 0 where the test, by permutations, does not.
                control = ", and more than those never trained on"
                if _clear(best.apart, best.way):
                    part = figure(best.apart, digits=2)
                    control = f", {part} of them beyond those never trained on"
            said = f"{whose} are {said} {_since(row)}{control} ({p_value(best.p)})."
            return _finding(row, "memory", said, **options)
        said = f"{whose} fell behind their twins by {change} bits"
        if best.p_beyond is None:
            return _finding(row, "moved", f"{said} since the base.", **options)
        options["otherwise"] = nothing
        said += f", beyond those never trained on ({p_value(best.p)})"
        said += ": that tells who was in the data."
        return _finding(row, "betrays", said, **options)
    if whole.p_kind is not None and (whole.p_rise or 1.0) <= LEVEL:
        said = (
            f"{name}: identifiers rank ahead of their twins by {figures}, but no "
            "comparable ones were held out, and neither injected numbers nor dose tell "
            "it from a kind that was learned: whether that is memory cannot be told."
        )
        return _finding(whole.row, "confounded", said, **options)
    if whole.p_beyond is not None and (whole.p_rise or 1.0) <= LEVEL:
        claim: Claim = "formats" if (whole.row.value or 0.0) > 0 else "moved"
        said = (
            f"{name}: identifiers rank ahead of their twins by {figures}, but not "
            "beyond those never trained on: the kind moved, memory is not shown."
        )
        return _finding(whole.row, claim, said, **options)
    return _finding(whole.row, "nothing_shown", nothing, **options | still)


def _still(row: Row, own: pd.DataFrame, over: float) -> dict[str, Any]:
    """The figures of a finding where no rank moved, as of a copy of the base.

    Without a spread there is no smallest effect in bits, but one in clusters: how many
    must go ahead, all others standing still, for both tests to find them. Fisher's test
    stands for the permutations.
    """
    ours, others = own[own["side"] == TRAINED], held_out(own)
    # A mean of 0 without an interval may be two that cancel.
    if row.value != 0 or row.metric != "rise" or ours["rise"].any():
        return {}
    n, m = ours["cluster"].nunique(), others["cluster"].nunique()
    few = range(1, min(n, 60) + 1)
    tables = [np.array([[k, n - k], [0, m]]) for k in few]
    apart = [float(scipy.stats.fisher_exact(one).pvalue) for one in tables]
    ps = [max(2.0 ** (1 - k), FINEST, p) for k, p in zip(few, apart, strict=True)]
    power = Power(test="hits", n=n, most=n, ps=ps, over=over)
    return {"unit": "clusters", "power": [power]}


def _since(row: Row) -> str:
    if row.metric == "rise":
        return "more than on the base"
    return "more than those never trained on, the base not being scored"


def _clear(row: Row, sign: int) -> bool:
    """Whether the interval agrees with the test."""
    if row.low is None or row.high is None:
        return False
    return row.low > 0 if sign > 0 else row.high < 0
