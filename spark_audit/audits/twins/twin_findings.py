"""What the twins audit claims: one finding a checkpoint, and the tests it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.canary.rank_tests import COLLAPSED, resolved
from spark_audit.data.occurrences import DOSES, dose_group
from spark_audit.data.twins import WORDED
from spark_audit.names import BASE, NEVER, TRAINED
from spark_audit.results import Claim, Finding, Row, Status, side_of
from spark_audit.results.findings import Power
from spark_audit.stats.bootstrap import EXACT_UP_TO, holm, sign_flip
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.memory_contrast import (
    Memory,
    Sides,
    least_p,
    memory,
    permutation_p,
)

CONTROL = 5
"""Clusters never trained on that a comparison needs; fewer show nothing."""
TIED = f"nearly all strings are tied: {COLLAPSED}"
LEVEL = 0.05
FINEST = 1e-4
"""The smallest p of a test by 9,999 random draws."""


@dataclass(frozen=True)
class Test:
    """A group of trained identifiers, compared with the base and never-trained ones.

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
    groups
        Clusters of trained identifiers, and of those never trained on.
    """

    row: Row
    p_rise: float | None
    p_beyond: float | None
    way: int
    p_kind: float | None = None
    apart: Row | None = None
    power: tuple[Power, ...] = ()
    p: float = 1.0
    groups: tuple[int, int] = (0, 0)

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
        absent = partial(Finding.not_tested, "twins", checkpoint=name)
        if lost & {name, BASE}:
            why: dict[str, Any] = {"reason": TIED, "on_base": name not in lost}
            says: Status = "not_resolvable"
            found.append(absent(f"twins.{says}", status=says, **why))
            continue
        tests = list(_tests(own, [row for row in rows if row.checkpoint == name], seed))
        if not tests:
            trained = (own["side"] == TRAINED).any()
            found.append(absent(f"twins.no_{'control' if trained else 'trained'}"))
            continue
        ps = holm([test.both for test in tests]).tolist()
        tests = [replace(test, p=p) for test, p in zip(tests, ps, strict=True)]
        found.append(_verdict(tests, _still(tests[0].row, own, len(tests))))
    return found


def by_dose(ours: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Trained identifiers by group of doses, the lowest first."""
    names = ours["dose"].map(dose_group)
    for name in map(dose_group, DOSES):
        if (names == name).any():
            yield name, ours[names == name]


def beyond(ours: pd.DataFrame, others: pd.DataFrame) -> tuple[Memory, Sides] | None:
    """Trained minus never trained within strata, of one checkpoint; what is held so.

    Of rises, or of exposures where the base was not scored. ``None`` where too few were
    never trained on.
    """
    if others["cluster"].nunique() < CONTROL or ours.empty:
        return None
    both = pd.concat([ours, others])
    strata = both.groupby(["type", both["stratum"].abs()]).ngroup()
    sides = Sides.of(both["side"] == TRAINED, both["cluster"], [strata])
    return memory(both[compared(both)].to_numpy(), sides), sides


def held_out(frame: pd.DataFrame) -> pd.DataFrame:
    """Identifiers never trained on that text does not tell from trained ones."""
    return frame[(frame["side"] == NEVER) & (frame["stratum"] >= 0)]


def compared(frame: pd.DataFrame) -> str:
    """The column by which the two sides are compared."""
    return "rise" if "rise" in frame else "exposure"


def collapsed(frame: pd.DataFrame) -> set[str]:
    """Checkpoints none of whose identifiers is resolved among its twins."""
    able = resolved(frame).groupby(frame["checkpoint"]).any()
    return set(able.index[~able])


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
        sizes = (part["cluster"].nunique(), others["cluster"].nunique())
        test = Test(row, p_rise, p_beyond, way, p_kind, apart, tuple(power))
        yield replace(test, groups=sizes)


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
            why="clusters" if exact else "draws",
        )
    ]


def _dealt(held: tuple[Memory, Sides], *, exact: bool) -> list[Power]:
    """Of a difference whose p is that of permutations, or of Student's t."""
    if not (se := held[0].difference.se):
        return []
    least = least_p(held[1]) if exact else 0.0
    df = held[0].freedom
    why: Literal["draws", "clusters"] = "draws" if least == FINEST else "clusters"
    return [Power(test="t", se=se, df=df, least_p=least, why=why)]


def _beyond_the_kind(
    part: pd.DataFrame, lowest: pd.DataFrame | None, *, seed: int
) -> tuple[float, list[Power]]:
    """P that a rise is no more than that of a kind whose look was learned.

    Names and addresses of real data are not the lists that their twins are drawn from:
    without any that were held out, their rise can be that of all such words, and that
    of numbers what they begin with, such as one country's code. Injected numbers are
    exchangeable with their twins, and identifiers of the highest dose are compared with
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
        return 1.0, [Power(test="t", least_p=1.0, why="nobody")]
    told = [one.model_copy(update={"over": float(len(ps))}) for one in power[:1]]
    return min(1.0, len(ps) * min(ps)), told


def _verdict(tests: Sequence[Test], still: dict[str, Any]) -> Finding:
    best, whole = min(tests, key=lambda test: test.p), tests[0]
    detected = best.p <= LEVEL and best.way and side_of(best.row) == best.way
    clearest = best if detected else whole
    facts: dict[str, Any] = {"ahead": clearest.row, "ahead_all": whole.row}
    facts["trained"], facts["never"] = clearest.groups
    claim: Claim = "nothing_shown"
    says = "still" if still else "nothing"
    if detected and best.way > 0:
        claim = says = "memory"
        # Of a rise only this part is no kind that was learned. Of few clusters
        # its interval may hold 0 where the test, by permutations, does not.
        held = best.p_beyond is not None and best.row is not best.apart
        facts["beyond"] = best.apart if held else None
        facts["beyond_clear"] = bool(best.apart and side_of(best.apart) == best.way)
    elif detected:
        claim, says = "moved", "fell"
        if best.p_beyond is not None:
            claim = says = "betrays"
    elif (whole.p_rise or 1.0) <= LEVEL and whole.p_kind is not None:
        claim = says = "confounded"
    elif (whole.p_rise or 1.0) <= LEVEL and whole.p_beyond is not None:
        claim, says = "formats" if (whole.row.value or 0.0) > 0 else "moved", "kind"
    power = [
        each.model_copy(update={"over": each.over * len(tests)})
        for each in clearest.power
    ]
    options: dict[str, Any] = {"power": power, "facts": facts}
    if still:
        facts["clusters"] = still["power"][0].n
        options |= still
    options |= {"p": best.p, "family": "primary"}
    return Finding.on(clearest.row, claim, f"twins.{says}", **options)


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
