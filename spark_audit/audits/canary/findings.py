"""What the ranks of canaries are taken to mean."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.base import guard
from spark_audit.audits.canary import ranks
from spark_audit.audits.canary.ranks import CanaryTest, Judged
from spark_audit.names import BASE
from spark_audit.results import Claim, Contrast, Finding, Guard, Row
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.findings import Fact
from spark_audit.stats import canary_ranks
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.estimate import Bound, Power, Status
from spark_audit.stats.intervals import ratio_estimate

Facts: TypeAlias = "Mapping[str, Fact]"


def finding(
    name: str,
    claim: Claim,
    says: str,
    facts: Facts | None = None,
    *,
    unit: str = "",
    value: float | None = None,
    null: float | None = None,
    status: Status = "ok",
    power: Sequence[Power] = (),
    bounds: Sequence[Bound] = (),
    p: float | None = None,
) -> Finding:
    """Return a finding on the canaries of one checkpoint; one with a p is primary."""
    return Finding(
        audit="canary",
        checkpoint=name,
        claim=claim,
        says=f"canary.{says}",
        facts=facts or {},
        unit=unit,
        value=value,
        null=null,
        status=status,
        family="exploratory" if p is None else "primary",
        power=list(power),
        bounds=list(bounds),
        p=p,
    )


def _among(one: Finding, groups: int, facts: Facts) -> Finding:
    """Return a finding, where so many groups of tests of its checkpoint could claim.

    Parameters
    ----------
    groups
        By how many p is corrected (Bonferroni).
    facts
        Further facts of its sentence.
    """
    power = [replace(test, over=test.over * groups) for test in one.power]
    bounds = [replace(bound, over=bound.over * groups) for bound in one.bounds]
    p = None if one.p is None else min(1.0, groups * one.p)
    update = {
        "p": p,
        "power": power,
        "bounds": bounds,
        "facts": {**one.facts, **facts},
    }
    return one.model_copy(update=update)


def findings(
    judged: Judged, bounds: Sequence[TableRecord], rows: Iterable[Row]
) -> Iterator[Finding]:
    """Findings on every checkpoint, with ``bounds`` of epsilon and report rows."""
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
            tied_facts: Facts = {"parts": sorted(lost), "reason": ranks.TIED}
            yield finding(
                name,
                "not_tested",
                "not_resolvable",
                tied_facts,
                status="not_resolvable",
            )
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
            no_difference = made(
                "nothing_shown",
                "no_difference",
                never[0].told,
                unit="ranks",
                power=[power],
            )
            told.append(no_difference)
        else:
            told.append(made("not_tested", "no_held_out"))
    yield from told


def _against_chance(
    ours: pd.DataFrame,
    overall_test: CanaryTest,
    significant_test: CanaryTest | None,
    mean_exposure: Row,
) -> Finding:
    """Return whether canaries are remembered, by all of them or those in most rows.

    Parameters
    ----------
    ours
        Trained canaries of the checkpoint, a row each.
    overall_test
        The clearest test of all canaries.
    significant_test
        ``overall_test``, else that of canaries in most rows; None: neither is.
    mean_exposure
        The figure that the overall test is on.
    """
    name = overall_test.checkpoint
    part = ours[ours["part"] == overall_test.part]
    n_candidates = ranks.size_of(ours)
    n_canaries = overall_test.n

    chance_mean, _ = canary_ranks.null_moments(n_candidates)
    chance = canary_ranks.null_mean([n_candidates] * n_canaries)
    facts = _facts_of_ranks(
        part,
        overall_test,
        n_candidates=n_candidates,
        chance_mean=chance_mean,
        chance_band=chance.band(),
    )

    if significant_test is not None and significant_test is not overall_test:
        facts["most_rows"] = significant_test.row("exposure_mean")
        facts["p"] = significant_test.p
        facts["over"] = significant_test.over
        return finding(
            name,
            "memory",
            "most_rows",
            facts,
            unit="bits",
            value=significant_test.value,
            null=chance_mean,
            p=significant_test.p,
        )

    # Of the part with the fewest canaries that can be ranked.
    n_rankable = ranks.resolved(ours).groupby(ours["part"]).sum()
    power = Power(
        test="exposure",
        n=max(1, int(n_rankable.min())),
        size=n_candidates,
        over=overall_test.over,
    )
    bound = Bound(
        test="exposure",
        value=overall_test.value,
        null=chance_mean,
        most=float(np.log2(n_candidates)),
        n=n_canaries,
        size=n_candidates,
        over=overall_test.over,
    )
    claim: Claim = "nothing_shown"
    says = "nothing"
    if significant_test is not None:
        claim = "memory"
        says = "memory"

    return Finding(
        audit="canary",
        checkpoint=name,
        claim=claim,
        says=f"canary.{says}",
        metric="exposure_mean",
        of=overall_test.part,
        unit="bits",
        null=chance_mean,
        value=overall_test.value,
        low=mean_exposure.low,
        high=mean_exposure.high,
        family="primary",
        p=overall_test.p,
        power=[power],
        bounds=[bound],
        facts=facts,
    )


def _facts_of_ranks(
    part: pd.DataFrame,
    overall_test: CanaryTest,
    *,
    n_candidates: int,
    chance_mean: float,
    chance_band: tuple[float, float],
) -> dict[str, Fact]:
    """Return what a sentence says of the ranks of all canaries.

    Parameters
    ----------
    part
        Trained canaries of the part that the test is of, a row each.
    chance_band
        Ends of the band of mean exposures that chance gives.
    """
    chance_low, chance_high = chance_band
    first = ranks.hits_of(part, k=1)
    return {
        "exposure_mean": overall_test.row(
            "exposure_mean",
            null=chance_mean,
            null_low=chance_low,
            null_high=chance_high,
        ),
        "p": overall_test.p,
        "over": overall_test.over,
        "top1_rate": ranks.row_of(
            overall_test.checkpoint,
            overall_test.part,
            "top1_rate",
            overall_test.n,
            value=first.rate,
            low=first.low,
            high=first.high,
        ),
        "first": round(first.hits, 2),
        "canaries": overall_test.n,
        "candidates": n_candidates,
        "tied": ranks.tied(part),
    }


def _rise(frame: pd.DataFrame, best: CanaryTest, never: Sequence[DosePair]) -> Finding:
    """Return what a checkpoint adds to a base that does not rank by chance.

    Parameters
    ----------
    frame
        Ranked canaries of all checkpoints, a row each.
    best
        The test of canaries in most rows.
    never
        Comparisons with never-inserted canaries, the clearest first.
    """
    name = best.checkpoint
    part = frame[frame["part"] == best.part]
    ours = ranks.trained(part)
    in_most_rows = ours[ours["dose"] == ours["dose"].max()]
    rises = ranks.rises(ours, name)
    rises_in_most_rows = ranks.rises(in_most_rows, name)
    mean_rise = ratio_estimate(rises, np.ones(len(rises)))
    mean_of_most = ratio_estimate(rises_in_most_rows, np.ones(len(rises_in_most_rows)))

    row = Row.of_estimate(
        mean_rise,
        audit="canary",
        checkpoint=name,
        metric="exposure_rise",
        of=best.part,
        unit="bits",
    )
    facts: Facts = {"rise": row, "p": best.p, "over": best.over}
    if best.detected:
        p_of_kind = ranks.p_risen(ranks.rises(ranks.held_out(part), name))
        kind_rose = p_of_kind <= 1 - ranks.CONFIDENCE
        if kind_rose and _clear(never, ahead=True) is None:
            return finding(name, "confounded", "kind_risen", facts, p=best.p)
        return finding(name, "memory", "risen", facts, p=best.p)

    power = []
    if mean_of_most.se:
        # The one-sided signed-rank test of those in most rows. Against Student's t its
        # efficiency is 3 / pi; one-sided is half of two sides.
        test = Power(
            test="sign-flip",
            n=mean_of_most.n,
            se=mean_of_most.se * np.sqrt(np.pi / 3),
            df=mean_of_most.n - 1,
            least_p=2.0 ** (1 - mean_of_most.n),
            over=best.over / 2,
        )
        power.append(test)
    bounds = t_bound(
        mean_of_most.value, mean_of_most.high, df=mean_of_most.df, over=best.over
    )
    return finding(
        name,
        "nothing_shown",
        "not_risen",
        facts,
        unit="bits",
        p=best.p,
        power=power,
        bounds=bounds,
    )


@dataclass(frozen=True, kw_only=True)
class DosePair(CanaryTest):
    """Ranks of planted canaries of one part next to those of never-inserted ones.

    ``value`` is the share of pairs whose planted canary ranks ahead, ``p`` of no
    difference (Mann-Whitney, two-sided); ``mean_ranks`` are those of both sides.
    """

    mean_ranks: dict[str, Row]
    power: Power

    @property
    def told(self) -> dict[str, Fact]:
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
        means = {
            side: ranks.row_of(
                name,
                part,
                "rank_mean",
                len(ranks_of_side),
                value=float(ranks_of_side.mean()),
                unit="ranks",
            )
            for side, ranks_of_side in (("trained", ours), ("held_out", never))
        }
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
        found.append(
            DosePair(
                checkpoint=name,
                part=part,
                n=n,
                value=float(1 - test.statistic / (n * m)),
                p=p,
                mean_ranks=means,
                power=power,
            )
        )
    return sorted(ranks.adjusted(found), key=attrgetter("p"))


def _clear(never: Sequence[DosePair], *, ahead: bool) -> DosePair | None:
    """The clearest part with a difference to that side."""
    return next((x for x in never if x.detected and (x.value > 0.5) == ahead), None)


def _epsilon(name: str, bounds: Sequence[TableRecord], size: int) -> Iterator[Finding]:
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
        facts: dict[str, Fact] = {"baseline": row.baseline, "change": row}
        claim: Claim = "nothing_shown"
        says = "no_change"
        if row.value is None or row.ends is None:
            says, facts["reason"] = "change_unknown", row.note
        elif row.moved:
            claim, says = "moved", "rose" if row.value > 0 else "fell"
        yield Finding.on(row, claim, f"canary.{says}", facts=facts)


def guards(judged: Judged) -> list[Guard]:
    """Guards that can void the figures: a positive control, and the base's ranks."""
    detected_in = list(
        dict.fromkeys(test.checkpoint for test in judged.control if test.detected)
    )
    says = "control_missing"
    facts: dict[str, Fact] = {}
    if judged.control:
        says = "control_not_found"
        facts = judged.control[0].facts("exposure_mean")
    if detected_in:
        says = "control_found"
        facts["checkpoints"] = detected_in
        facts["insensitive"] = judged.lost
    passed = None if detected_in and judged.lost else bool(detected_in)
    control = guard("positive control", says, facts, passed=passed)
    return [control, _base_guard(judged)]


def _base_guard(judged: Judged) -> Guard:
    """Return whether the base, which saw no canary, ranks them by chance."""
    name = "base ranks canaries by chance"
    if not judged.base:
        is_scored = BASE in {*judged.frame["checkpoint"]}
        says = f"canary_base_{'tied' if is_scored else 'unscored'}"
        return guard(name, says, {"supposed": judged.supposed})

    facts = judged.base[0].facts("rank_mean", unit="ranks")
    facts["by_chance"] = judged.uniform
    return guard(
        name, "canary_base_ranks", facts, passed=judged.uniform, checkpoint=BASE
    )
