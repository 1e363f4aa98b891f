"""What the ranks of canaries are taken to mean."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.base import guard
from spark_audit.audits.canary import ranks
from spark_audit.audits.canary.ranks import CanaryTest, Judged
from spark_audit.names import BASE
from spark_audit.results import Claim, Contrast, Finding, Guard, Row
from spark_audit.stats import canary_ranks
from spark_audit.stats.estimate import Power, Status
from spark_audit.stats.intervals import ratio_estimate

Record: TypeAlias = "Mapping[str, Any]"


def finding(
    name: str, claim: Claim, says: str, facts: Record | None = None, **columns: Any
) -> Finding:
    """A finding of one checkpoint; one with a p is primary."""
    columns |= {"audit": "canary", "checkpoint": name, "facts": facts or {}}
    return Finding.on(None, claim, f"canary.{says}", **columns)


def _among(one: Finding, groups: int, facts: Record) -> Finding:
    """The finding, where so many groups of tests of its checkpoint could have claimed.

    ``facts`` are further ones.
    """
    power = [replace(each, over=each.over * groups) for each in one.power]
    p = None if one.p is None else min(1.0, groups * one.p)
    update = {"p": p, "power": power, "facts": {**one.facts, **facts}}
    return one.model_copy(update=update)


def findings(
    judged: Judged, bounds: Sequence[Record], rows: Iterable[Row]
) -> Iterator[Finding]:
    """What is said of every checkpoint, with ``bounds`` of epsilon and report rows."""
    if judged.sensitive and judged.lost:
        lists = {"insensitive": judged.lost, "sensitive": sorted(judged.sensitive)}
        yield finding("", "not_tested", "partly_insensitive", lists)
    means = {
        (row.checkpoint, row.of): row
        for row in rows
        if row.metric == "exposure_mean" and row.group == "pooled"
    }
    for name in dict.fromkeys(ranks.trained(judged.frame)["checkpoint"]):
        frame = judged.frame[judged.frame["checkpoint"] == name]
        lost = {part for one, part in judged.tied if one == name}
        if lost:
            facts: Record = {"parts": sorted(lost), "reason": ranks.TIED}
            status: Status = "not_resolvable"
            yield finding(name, "not_tested", status, facts, status=status)
        kept = {*ranks.trained(frame)["part"]} - lost
        parts = kept & judged.sensitive
        of_all = {"never_inserted": ranks.held_out(frame)["canary_id"].nunique()}
        never = _against_held_out(frame[frame["part"].isin(parts)])
        control = [test for test in judged.control if test.checkpoint == name]
        if not parts:
            if kept:
                p = min((test.p for test in control), default=None)
                yield finding(name, "not_tested", "insensitive", of_all, p=p)
        elif name == BASE:
            if not judged.uniform:
                yield finding(name, "confounded", "base_knows")
        elif not judged.uniform:
            best = next(test for test in control if test.part in parts)
            yield _among(_rise(judged.frame, best, never), 1, of_all)
        else:
            # Both ends, those in most rows, bounds of epsilon, and held-out canaries.
            groups = 3 + bool(never)
            supposed = {"supposed": judged.supposed, **of_all}
            for one in _ends(frame, parts, never, judged, means):
                yield _among(one, groups, supposed)
            # The table holds canaries of our own draw only: no condition.
            for one in _epsilon(name, bounds, ranks.size_of(frame)):
                yield _among(one, groups, of_all)


def _ends(
    frame: pd.DataFrame,
    parts: Collection[str],
    never: Sequence[DosePair],
    judged: Judged,
    means: Mapping[tuple[str, str], Row],
) -> Iterator[Finding]:
    """Both ends of the ranks, against chance and against never-inserted canaries."""
    ours = ranks.trained(frame)
    best, low = ranks.two_ended(ours, parts)
    name = best.checkpoint
    made, kinds = partial(finding, name), judged.kinds[name]
    ahead, behind = (_clear(never, ahead=side) for side in (True, False))
    most = (t for t in judged.control if t.checkpoint == name and t.detected)
    shown = best if best.detected else next(most, None)
    if shown and "ahead" in kinds:
        # Chance is no null here: only the held-out canaries tell.
        if ahead is None:
            yield made("confounded", "lifted", p=never[0].p if never else shown.p)
    else:
        ours = ours[ours["part"].isin(parts)]
        yield _against_chance(ours, best, shown, means[name, best.part])
    told = []
    if low.detected and "behind" in kinds and behind is None:
        told.append(made("confounded", "sunk"))
    elif low.detected:
        null, _ = canary_ranks.null_moments(ranks.size_of(frame))
        facts = low.facts("lower_tail_exposure", null=null)
        told.append(made("betrays", "behind_chance", facts, p=low.p))
    if ahead is not None:
        told.append(made("memory", "ahead", ahead.told, p=ahead.p))
    elif behind is not None and not low.detected:
        told.append(made("confounded", "behind", behind.told))
    # Chance has told more than so few held-out canaries can.
    if not told and not best.detected:
        if never:
            power = replace(never[0].power, over=never[0].over)
            on: dict[str, Any] = {"unit": "ranks", "power": [power]}
            told.append(made("nothing_shown", "no_difference", never[0].told, **on))
        else:
            told.append(made("not_tested", "no_held_out"))
    yield from told


def _against_chance(
    ours: pd.DataFrame, best: CanaryTest, shown: CanaryTest | None, mean: Row
) -> Finding:
    """Whether canaries are remembered, by what was ``shown`` of all, or of most rows.

    ``best`` is the clearest test of all canaries, ``mean`` the figure that it is on.
    """
    name, part = best.checkpoint, ours[ours["part"] == best.part]
    size = ranks.size_of(ours)
    low, high = canary_ranks.null_mean([size] * best.n).band()
    null, _ = canary_ranks.null_moments(size)
    first = ranks.hits_of(part, k=1)
    rate = {"value": first.rate, "low": first.low, "high": first.high}
    facts = {
        **best.facts("exposure_mean", null=null, null_low=low, null_high=high),
        "top1_rate": ranks.row_of(name, best.part, "top1_rate", best.n, **rate),
        "first": round(first.hits, 2),
        "canaries": best.n,
        "candidates": size,
        "tied": ranks.tied(part),
    }
    on: dict[str, Any] = {"unit": "bits", "null": null}
    if shown and shown is not best:
        told = shown.facts("exposure_mean")
        facts |= {"most_rows": told.pop("exposure_mean"), **told}
        on |= {"p": shown.p, "value": shown.value}
        return finding(name, "memory", "most_rows", facts, **on)
    # Of the part with the fewest canaries that can be ranked.
    able = max(1, int(ranks.resolved(ours).groupby(ours["part"]).sum().min()))
    on["power"] = [Power(test="exposure", n=able, size=size, over=best.over)]
    on |= {"p": best.p, "value": best.value, "low": mean.low, "high": mean.high}
    on |= {"metric": "exposure_mean", "of": best.part}
    if shown:
        return finding(name, "memory", "memory", facts, **on)
    return finding(name, "nothing_shown", "nothing", facts, **on)


def _rise(frame: pd.DataFrame, best: CanaryTest, never: Sequence[DosePair]) -> Finding:
    """What a checkpoint adds to a base that does not rank by chance."""
    name, part = best.checkpoint, frame[frame["part"] == best.part]
    own = ranks.trained(part)
    most = own[own["dose"] == own["dose"].max()]
    changes = (ranks.rises(one, name) for one in (own, most))
    rise, of_most = (ratio_estimate(one, np.ones(len(one))) for one in changes)
    names = {"audit": "canary", "checkpoint": name, "metric": "exposure_rise"}
    row = Row.of_estimate(rise, **names, of=best.part, unit="bits")
    facts = {"rise": row, "p": best.p, "over": best.over}
    if best.detected:
        kind = ranks.p_risen(ranks.rises(ranks.held_out(part), name))
        if kind <= 1 - ranks.CONFIDENCE and _clear(never, ahead=True) is None:
            return finding(name, "confounded", "kind_risen", facts, p=best.p)
        return finding(name, "memory", "risen", facts, p=best.p)
    # The one-sided signed-rank test of those in most rows. Against Student's t its
    # efficiency is 3 / pi; one-sided is half of two sides.
    test: dict[str, Any] = {"df": of_most.n - 1, "least_p": 2.0 ** (1 - of_most.n)}
    if se := of_most.se:
        test |= {"se": se * np.sqrt(np.pi / 3), "over": best.over / 2}
    power = [Power(test="sign-flip", n=of_most.n, **test)] if se else []
    on: dict[str, Any] = {"p": best.p, "unit": "bits", "power": power}
    return finding(name, "nothing_shown", "not_risen", facts, **on)


@dataclass(frozen=True, kw_only=True)
class DosePair(CanaryTest):
    """Ranks of planted canaries of one part next to those of never-inserted ones.

    ``value`` is the share of pairs whose planted canary ranks ahead, ``p`` of no
    difference (Mann-Whitney, two-sided); ``mean_ranks`` are those of both sides.
    """

    mean_ranks: dict[str, Row]
    power: Power

    @property
    def told(self) -> dict[str, Any]:
        """The facts of a sentence on it."""
        return {**self.mean_ranks, "p": self.p, "over": self.over}


def _against_held_out(frame: pd.DataFrame) -> list[DosePair]:
    """A comparison of each part of one checkpoint, the clearest first."""
    found = []
    for name, part, whole in ranks.by_part(frame):
        ours, never = ranks.trained(whole)["mid"], ranks.held_out(whole)["mid"]
        n, m, size = len(ours), len(never), ranks.size_of(whole)
        if not n or not m:
            continue
        row = partial(ranks.row_of, name, part, "rank_mean", unit="ranks")
        sides = {"trained": ours, "held_out": never}
        means = {k: row(len(x), value=float(x.mean())) for k, x in sides.items()}
        # Ranks never trained on are uniform.
        _, spread = canary_ranks.null_moments(size, of="rank")
        power = Power(
            test="t",
            se=spread * np.sqrt(1 / n + 1 / m),
            least_p=min(1.0, 2 / float(scipy.special.comb(n + m, n))),
            most=(size - 1) / 2,
        )
        test = scipy.stats.mannwhitneyu(ours, never)
        # Ranks that are all alike say nothing apart; SciPy from 1.18 gives NaN.
        alike = pd.concat([ours, never]).nunique() == 1
        p = 1.0 if alike else float(test.pvalue)
        one = name, part, n, float(1 - test.statistic / (n * m)), p
        found.append(DosePair(*one, mean_ranks=means, power=power))
    return sorted(ranks.adjusted(found), key=attrgetter("p"))


def _clear(never: Sequence[DosePair], *, ahead: bool) -> DosePair | None:
    """The clearest part with a difference to that side."""
    return next((x for x in never if x.detected and (x.value > 0.5) == ahead), None)


def _epsilon(name: str, bounds: Sequence[Record], size: int) -> Iterator[Finding]:
    """The bound declared beforehand, and the largest of the others if it is more.

    p is that of guesses as good by chance, among ``size`` candidates.
    """
    epsilon = itemgetter("epsilon_per_record")
    here = [one for one in bounds if one["checkpoint"] == name and epsilon(one)]
    told = [one for one in here if one["declared"]]
    least = max(map(epsilon, told), default=0.0)
    more = (one for one in here if epsilon(one) > least)
    told += sorted(more, key=epsilon, reverse=True)[:1]
    if not told:
        return
    rows: list[tuple[Row, int] | tuple[None, None]] = []
    ps: list[float] = []
    for one in told:
        trials, chance = one["canaries"], one["k"] / size
        by_chance = float(scipy.stats.binom.sf(one["hits"] - 1, trials, chance))
        ps.append(by_chance * (1 - ranks.CONFIDENCE) / one["significance"])
        row = Row(
            audit="canary",
            checkpoint=name,
            metric="epsilon_per_record",
            of=one["part"],
            group="pooled" if one["dose"] == "all" else f"dose:{one['dose']}",
            value=epsilon(one),
            level=1 - one["significance"],
            n=trials,
            family="primary" if one["declared"] else "exploratory",
        )
        rows.append((row, one["k"]))
    (bound, k), (larger, larger_k) = [*rows, (None, None)][:2]
    facts = {"bound": bound, "k": k, "larger": larger, "larger_k": larger_k}
    # The declared bounds and the others are two looks.
    yield finding(name, "memory", "epsilon", facts, p=min(1.0, 2 * min(ps)))


def contrast_findings(
    contrasts: Sequence[Contrast], judged: Judged
) -> Iterator[Finding]:
    """How exposure of whole canaries changed against each baseline."""
    for row in contrasts if "full" in judged.sensitive else ():
        place = row.metric, row.of
        if place != ("exposure_mean", "full") or row.status == "not_resolvable":
            continue
        facts: dict[str, Any] = {"baseline": row.baseline, "change": row}
        claim: Claim = "nothing_shown"
        says = "no_change"
        if row.value is None or row.ends is None:
            says, facts["reason"] = "change_unknown", row.note
        elif row.moved:
            claim, says = "moved", "rose" if row.value > 0 else "fell"
        yield Finding.on(row, claim, f"canary.{says}", facts=facts)


def guards(judged: Judged) -> list[Guard]:
    """What can void the figures: no positive control, or a base that knows canaries."""
    control, base = judged.control, judged.base
    shown = list(dict.fromkeys(t.checkpoint for t in control if t.detected))
    says, facts = "control_missing", dict[str, Any]()
    if control:
        says, facts = "control_not_found", control[0].facts("exposure_mean")
    if shown:
        says = "control_found"
        facts |= {"checkpoints": shown, "insensitive": judged.lost}
    passed = None if shown and judged.lost else bool(shown)
    found = guard("positive control", says, facts, passed=passed)
    name = "base ranks canaries by chance"
    if not base:
        scored = BASE in {*judged.frame["checkpoint"]}
        says = f"canary_base_{'tied' if scored else 'unscored'}"
        return [found, guard(name, says, {"supposed": judged.supposed})]
    told = {"passed": judged.uniform, "checkpoint": BASE}
    facts = base[0].facts("rank_mean", unit="ranks") | {"by_chance": judged.uniform}
    return [found, guard(name, "canary_base_ranks", facts, **told)]
