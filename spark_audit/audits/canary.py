"""Planted canaries, ranked among strings that were not planted.

SPARK's canary audit: the rank of the true string among 512 candidates by mean NLL, its
exposure in bits, Top-1 and Top-10. A canary that the model never saw has a uniform
rank, so every figure is shown with its chance value. If not even the canaries that
occur in most rows are detected in any checkpoint, nothing can be concluded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, starmap
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit import sentences
from spark_audit.audits import canary_ranks as ranks
from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, guard
from spark_audit.audits.canary_ranks import Judged, Tested
from spark_audit.audits.ratio_rows import bounded, cells_of_frame, marked, ratio_figures
from spark_audit.data.canaries import RANKED
from spark_audit.manifest.schema import Manifest, ManifestCanary
from spark_audit.manifest.sequences import key_of
from spark_audit.names import BASE
from spark_audit.results import (
    AuditResult,
    Claim,
    Contrast,
    Estimate,
    Finding,
    Guard,
    Row,
    Status,
)
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.findings import Power
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats import memorisation
from spark_audit.stats.intervals import ratio_estimate

CANDIDATES = Pass("candidates")
TOP = {"top1_rate": 1, "top10_rate": 10}
VALUES = ("rank", "ties", "nll_mean")
OFS = (*RANKED, *(f"{part}/annotation" for part in RANKED))

_ranked = partial(Metric, variants=OFS, missing=RANKED)
METRICS = (
    _ranked("nll", "nats", bounds=(0.0, math.inf), learned=-1),
    # A percentile interval of a mean rank covers far too rarely.
    _ranked("rank_mean", "ranks", bounds=(1.0, math.inf), learned=-1, heavy=True),
    _ranked(
        "exposure_mean",
        "bits",
        bounds=(0.0, math.inf),
        learned=1,
        glance=("full",),
        headline=("full",),
    ),
    _ranked("top1_rate", rate=True, learned=1, alone=True),
    _ranked("top10_rate", rate=True, learned=1),
)
"""Ranks and exposures are bounded by the number of candidates, once it is known."""

NONE = "the manifest has no canary"
UNRANKED = "no canary of the manifest can be ranked among candidates"
ONE_RANK = "the chance band assumes that all rows of a canary have the same rank"
UNSCORED = "the candidates of canaries were not scored"


@dataclass(frozen=True, kw_only=True)
class CanaryRank(Audit):
    """Planted canaries, ranked among strings that were not planted.

    The evidence is one row per checkpoint, canary, part and context, and one row over
    its contexts: ``full``, ``password`` and ``ssn`` average the NLL of each candidate
    over the contexts of the canary and rank once; ``full/annotation`` etc. rank in each
    context and average the ranks, as SPARK does. The unit is the canary in both cases.
    """

    name = "canary"
    metrics = METRICS
    nothing = NONE
    unscored = UNSCORED
    chance = True
    public = ("canary_by_dose", "canary_epsilon", "canary_one_run")
    covers = ("exposure_mean", "n")
    memory = True
    unit = "bits"

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Candidates of every canary that can be ranked.

        A canary is ranked in its first row by id, with ``paper`` in all that the
        manifest lists.
        """
        every = (candidate_keys(one, paper=paper) for one in manifest.canaries)
        keys = sorted(key for keys in every for key in keys.values())
        return {CANDIDATES: keys} if keys else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """One unit per canary, part and context, and one over its contexts.

        ``kind`` is ``context``; ``canary``, ranked once by each candidate's NLL
        averaged over contexts; or ``unrankable``. ``rank`` is strict; ``nll_mean``,
        nats per token, is the true string's.
        """
        paper = context.paper
        keyed = [(one, candidate_keys(one, paper=paper)) for one in manifest.canaries]
        units = pd.DataFrame.from_records(chain.from_iterable(starmap(_units, keyed)))

        def measured() -> Measured:
            for name, passes in tables.items():
                table = passes.get(CANDIDATES)
                rows = [row for one in keyed for row in _scores(*one, table)]
                scores = np.array(rows, np.float64).reshape(-1, len(VALUES))
                yield name, dict(zip(VALUES, scores.T, strict=True))

        kept = manifest.settings.canary_contexts if context.paper else None
        return Evidence.of(units, measured(), {"kept_contexts": kept})

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        names, units = list(evidence.checkpoints), evidence.units
        every = evidence.frame().astype({"rank": np.int64, "ties": np.int64})
        warned = rankable(units)
        if (kept := evidence.facts["kept_contexts"]) is not None:
            warned.append(guard("canary contexts", "canary_contexts", {"kept": kept}))
        frame = ranks.ranked(every)
        ours = ranks.trained(frame)
        if ours.empty:
            reason = UNSCORED if (units["kind"] == "canary").any() else UNRANKED
            if len(frame):
                reason = "no canary of a trained row can be ranked"
            says = "canary.not_estimable"
            unknown = Finding.not_tested("canary", says, reason=reason)
            rows = self.missing(names, reason)
            return AuditResult(rows=rows, guards=warned, findings=[unknown])
        judged = Judged(frame)
        in_contexts = ranks.trained(ranks.ranked(every, "context"))
        rows, contrasts = canary_figures(ours, in_contexts, judged, context)
        tables = ranks.tables_of(frame, judged)
        said = [*findings(judged, tables["canary_epsilon"], rows)]
        for name in names:
            reason = UNRANKED
            if name not in {*ours["checkpoint"]}:
                reason = UNSCORED
                lost: dict[str, Any] = {"checkpoint": name, "reason": reason}
                said.append(Finding.not_tested("canary", "canary.unscored", **lost))
            rows += self.missing([name], reason, beside=rows)
        said += contrast_findings(contrasts, judged)
        return AuditResult(
            rows=rows,
            contrasts=contrasts,
            guards=[*guards(judged, every), *warned],
            findings=said,
            tables={name: table for name, table in tables.items() if table},
        )


def candidate_keys(canary: ManifestCanary, *, paper: bool) -> dict[str, str]:
    """Key of the candidates in each context; none if it cannot be ranked."""
    if not canary.candidates or canary.true_index is None:
        return {}
    rows = sorted(context.example for context in canary.contexts)
    return {
        row: key_of("canary", canary.canary_id, canary.part, row)
        for row in (rows if paper else rows[:1])
    }


def _units(canary: ManifestCanary, keys: dict[str, str]) -> Iterator[dict[str, Any]]:
    head = {
        "canary_id": canary.canary_id,
        "part": canary.part,
        "example": "",
        "format": canary.format,
        "dose": canary.dose,
        "held_out": canary.held_out,
        "pair": canary.pair or "",
        "contexts": len(keys),
        "n_candidates": len(canary.candidates),
    }
    for example in keys:
        yield head | {"kind": "context", "example": example, "contexts": 1}
    yield head | {"kind": "canary" if keys else "unrankable"}


def _scores(
    canary: ManifestCanary, keys: dict[str, str], table: TokenTable | None
) -> Iterator[list[float]]:
    """:data:`VALUES` of the units of one canary part; NaN if it was not scored."""
    true = canary.true_index
    if not keys or table is None or not all(key in table for key in keys.values()):
        yield from [[np.nan] * len(VALUES)] * (len(keys) + 1)
        return
    assert true is not None
    held = [table.columns["nll_mean"][table.rows(key)] for key in keys.values()]
    means = np.stack(held).astype(np.float64)
    for mean in (*means, means.mean(axis=0)):
        yield [*memorisation.candidate_rank(mean, true), mean[true]]


def canary_figures(
    once: pd.DataFrame, often: pd.DataFrame, judged: Judged, context: Context
) -> tuple[list[Row], list[Contrast]]:
    """Rows with their values by chance, and contrasts.

    ``once`` holds a rank a canary, ``often`` one a context. Top-1 has no contrast: so
    few canaries cannot show its change.
    """
    size = int(once["n_candidates"].iloc[0])
    tops = {"rank_mean": (1.0, float(size)), "exposure_mean": (0.0, np.log2(size))}
    every = [once.assign(of=once["part"])]
    every.append(often.assign(of=often["part"] + "/annotation"))
    frame = pd.concat(every, ignore_index=True)
    frame["cluster"] = frame["canary_id"]
    for metric, k in TOP.items():
        frame[metric] = memorisation.top_k_credit(
            frame["rank"], k=k, ties=frame["ties"]
        )
    columns = {"nll": "nll_mean", "exposure_mean": "exposure"}
    columns |= {metric: metric for metric in TOP} | {"rank_mean": "mid"}
    cells = [cells_of_frame("pooled", frame, columns)]
    rows, contrasts = ratio_figures(cells, context, CanaryRank, **tops)
    order = {metric.name: i for i, metric in enumerate(METRICS)}
    # Cut once for the rows of all metrics.
    first, each = (dict(list(r.groupby(["checkpoint", "part"]))) for r in (once, often))
    rows = [
        _beside_chance(row, first[place], each[place])
        for row in rows
        for place in [(row.checkpoint, row.of.partition("/")[0])]
    ]
    names = list(dict.fromkeys(once["checkpoint"]))
    rows.sort(key=lambda r: (names.index(r.checkpoint), r.of, order[r.metric]))
    return _marked(rows, judged), _marked(bounded(contrasts, TOP), judged)


def _beside_chance(row: Row, once: pd.DataFrame, often: pd.DataFrame) -> Row:
    """The row with its chance value, band, and the smallest effect it could show.

    ``once`` holds a rank a canary, ``often`` one a context.
    """
    k = TOP.get(row.metric, 0)
    n, size = len(once), int(once["n_candidates"].iloc[0])
    if row.metric == "nll" or row.value is None or k >= size:
        return row
    change, notes, annotation = dict[str, Any](), [row.note], "/" in row.of
    # Others show nothing, however large the effect.
    able = max(1, int(ranks.resolved(once).sum()))
    if k:
        hits = ranks.hits_of(once, k=k)
        least = memorisation.top_k_mde(able, k=k, n_candidates=size)
        band = hits.null_low / n, hits.null_high / n
        change = {"null": hits.null, "mde": least and least - hits.null}
        if not annotation:
            change |= {"low": hits.low, "high": hits.high}
            change["interval"], notes = "clopper-pearson", []
    else:
        of: memorisation.Of = "rank" if row.metric == "rank_mean" else "exposure"
        band = memorisation.null_mean([size] * n, of=of).band(row.level)
        change = {"mde": memorisation.chance_mde(able, n_candidates=size, of=of)}
        change["null"] = getattr(memorisation.null_moments(size), row.metric)
    change["null_low"], change["null_high"] = band
    notes += [ONE_RANK] * annotation
    counted = often if annotation else once
    if count := ranks.tied(counted):
        facts = {"tied": count, "canaries": len(counted)}
        notes.append(sentences.render("canary.ties", **facts))
    return row.model_copy(update={**change, "note": "; ".join(filter(None, notes))})


def _marked(rows: Sequence[Any], judged: Judged) -> list[Any]:
    """The rows, with the status that what holds of all canaries gives them."""

    def uncontrolled(row: Row) -> str | None:
        # A change of likelihood itself needs no positive control.
        change = isinstance(row, Contrast) and row.metric == "nll"
        known = change or row.of.partition("/")[0] in judged.sensitive
        return None if known else row.note

    def unranked(row: Row) -> str | None:
        part = row.of.partition("/")[0]
        sides = (row.checkpoint, getattr(row, "baseline", row.checkpoint))
        lost = any((name, part) in judged.tied for name in sides)
        return ranks.TIED if lost and row.metric != "nll" else None

    rows = marked(rows, "insensitive", uncontrolled)
    return marked(rows, "not_resolvable", unranked)


# --- findings and guards --------------------------------------------------------------


Record: TypeAlias = "Mapping[str, Any]"


def finding(
    name: str,
    claim: Claim,
    says: str,
    facts: Mapping[str, Any] | None = None,
    p: float | None = None,
    **columns: Any,
) -> Finding:
    """A finding of one checkpoint; one with a p is primary."""
    columns |= {"audit": "canary", "checkpoint": name, "facts": facts or {}, "p": p}
    return Finding.on(None, claim, f"canary.{says}", **columns)


def _among(one: Finding, groups: int, facts: Mapping[str, Any]) -> Finding:
    """The finding, where so many groups of tests of its checkpoint could have claimed.

    ``facts`` are further ones.
    """
    power = [each.model_copy(update={"over": each.over * groups}) for each in one.power]
    p = None if one.p is None else min(1.0, groups * one.p)
    update = {"p": p, "power": power, "facts": {**one.facts, **facts}}
    return one.model_copy(update=update)


def findings(
    judged: Judged, bounds: Sequence[Record], rows: Iterable[Row]
) -> Iterator[Finding]:
    """What is said of every checkpoint, with ``bounds`` of epsilon and report rows."""
    limits_of = {
        (row.checkpoint, row.metric, row.of): {"low": row.low, "high": row.high}
        for row in rows
        if row.group == "pooled"
    }
    if judged.sensitive and judged.lost:
        parts = [part for part in RANKED if part in judged.sensitive]
        lists: dict[str, Any] = {"insensitive": judged.lost, "sensitive": parts}
        yield Finding.not_tested("canary", "canary.partly_insensitive", **lists)
    for name in dict.fromkeys(ranks.trained(judged.frame)["checkpoint"]):
        for one in _of_checkpoint(name, judged, bounds):
            place = (one.checkpoint, one.metric, one.of)
            yield one.model_copy(update=limits_of.get(place))


def _of_checkpoint(
    name: str, judged: Judged, bounds: Sequence[Record]
) -> Iterator[Finding]:
    ours = ranks.trained(judged.frame[judged.frame["checkpoint"] == name])
    if gone := [part for part in RANKED if (name, part) in judged.tied]:
        says: Status = "not_resolvable"
        lost: dict[str, Any] = {"checkpoint": name, "status": says, "parts": gone}
        yield Finding.not_tested("canary", f"canary.{says}", **lost, reason=ranks.TIED)
        ours = ours[~ours["part"].isin(gone)]
        if ours.empty:
            return
    if parts := set(ours["part"]) & judged.sensitive:
        ours = ours[ours["part"].isin(parts)]
    size = int(ours["n_candidates"].iloc[0])
    n = max(1, int(ranks.resolved(ours).groupby(ours["part"]).sum().min()))
    control = [test for test in judged.control if test.checkpoint == name]
    frame = judged.frame[judged.frame["checkpoint"] == name]
    of_all = {"never_inserted": ranks.held_out(frame)["canary_id"].nunique()}
    if not parts:
        p = min((test.p for test in control), default=None)
        yield finding(name, "not_tested", "insensitive", of_all, p)
        return
    if name == BASE:
        if not judged.uniform:
            yield finding(name, "confounded", "base_knows")
        return
    never = _against_held_out(frame[frame["part"].isin(parts)])
    if not judged.uniform:
        best = next(test for test in control if test.part in parts)
        ahead = _clear(never, ahead=True) is not None
        yield _among(_rise(judged.frame, best, ahead=ahead), 1, of_all)
        return
    # Both ends, those in most rows, bounds of epsilon, and held-out canaries.
    groups = 3 + bool(never)
    for one in _ends(name, ours, judged, never, n):
        yield _among(one, groups, {"supposed": judged.supposed, **of_all})
    # The table holds canaries of our own draw only: no condition.
    if bound := _epsilon(name, bounds, size):
        yield _among(bound, groups, of_all)


def _ends(
    name: str, ours: pd.DataFrame, judged: Judged, never: Sequence[Pair], n: int
) -> list[Finding]:
    """Both ends of the ranks, against chance and against never-inserted canaries."""
    # Adjusted over all parts, before those that tell nothing are left out.
    parts, kinds = set(ours["part"]), judged.kinds[name]
    best, low = (
        next(test for test in tests if test.part in parts)
        for tests in ranks.two_ended(judged.frame[judged.frame["checkpoint"] == name])
    )
    ends = [_against_chance(ours, best, judged.control, n)]
    ahead, behind = (_clear(never, ahead=side) for side in (True, False))
    made = partial(finding, name)
    if ends[0].claim == "memory" and "ahead" in kinds:
        # Chance is no null here: only the held-out canaries tell.
        p = never[0].p if never else ends[0].p
        ends = [made("confounded", "lifted", p=p)] if ahead is None else []
    told = len(ends)
    if low.detected and "behind" in kinds and behind is None:
        ends.append(made("confounded", "sunk"))
    elif low.detected:
        size = int(ours["n_candidates"].iloc[0])
        null = memorisation.null_moments(size).exposure_mean
        facts = low.facts("lower_tail_exposure", null=null)
        ends.append(made("betrays", "behind_chance", facts, low.p))
    if ahead is not None:
        ends.append(made("memory", "ahead", ahead.told, ahead.p))
    elif behind is not None and not low.detected:
        ends.append(made("confounded", "behind", behind.told))
    # Chance has told more than so few held-out canaries can.
    if len(ends) > told or best.detected:
        return ends
    if not never:
        return [*ends, made("not_tested", "no_held_out")]
    power = [never[0].power.model_copy(update={"over": never[0].over})]
    on: dict[str, Any] = {"unit": "ranks", "power": power}
    return [*ends, made("nothing_shown", "no_difference", never[0].told, **on)]


def _against_chance(
    ours: pd.DataFrame, best: Tested, control: Sequence[Tested], n: int
) -> Finding:
    name, part = best.checkpoint, ours[ours["part"] == best.part]
    size = int(part["n_candidates"].iloc[0])
    low, high = memorisation.null_mean([size] * best.n).band()
    null = memorisation.null_moments(size).exposure_mean
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
    # Of the part with the fewest canaries that can be ranked.
    power = [Power(test="exposure", n=n, size=size, over=best.over)]
    on: dict[str, Any] = {"unit": "bits", "null": null, "value": best.value}
    on |= {"metric": "exposure_mean", "of": best.part, "power": power}
    if best.detected:
        return finding(name, "memory", "memory", facts, best.p, **on)
    if most := [t for t in control if t.checkpoint == name and t.detected]:
        told = most[0].facts("exposure_mean")
        facts |= {"most_rows": told.pop("exposure_mean"), **told}
        on |= {"value": most[0].value, "metric": "", "of": "", "power": []}
        return finding(name, "memory", "most_rows", facts, most[0].p, **on)
    return finding(name, "nothing_shown", "nothing", facts, best.p, **on)


def _rise(frame: pd.DataFrame, best: Tested, *, ahead: bool) -> Finding:
    """What a checkpoint adds to a base that does not rank by chance."""
    name, part = best.checkpoint, frame[frame["part"] == best.part]
    kinds, own = ranks.held_out(part), ranks.trained(part)
    kind, before = (kinds[kinds["checkpoint"] == one] for one in (name, BASE))
    names = {"audit": "canary", "checkpoint": name, "metric": "exposure_rise"}
    rise = Row.of_estimate(_mean_rise(own, name), **names, of=best.part, unit="bits")
    facts = {"rise": rise, "p": best.p, "over": best.over}
    if not best.detected:
        on = {"unit": "bits", "power": _risen_power(own, name, best)}
        return finding(name, "nothing_shown", "not_risen", facts, best.p, **on)
    if len(kind) and not ahead and ranks.p_risen(kind, before) <= 1 - ranks.LEVEL:
        return finding(name, "confounded", "kind_risen", facts, best.p)
    return finding(name, "memory", "risen", facts, best.p)


def _mean_rise(part: pd.DataFrame, name: str) -> Estimate:
    """Mean change of exposure since the base, over canaries of one part."""
    ours, base = (part[part["checkpoint"] == one] for one in (name, BASE))
    change = ranks.changes(ours, base)
    return ratio_estimate(change, np.ones(len(change)))


def _risen_power(parts: pd.DataFrame, name: str, best: Tested) -> list[Power]:
    """Of the one-sided signed-rank test of the canaries that stand in most rows."""
    most = parts[parts["dose"] == parts["dose"].max()]
    rise = _mean_rise(most, name)
    if not rise.se:
        return []
    n = rise.n
    # Against Student's t its efficiency is 3 / pi; one-sided is half of two sides.
    se = rise.se * np.sqrt(np.pi / 3)
    least, over = 2.0 ** (1 - n), best.over / 2
    return [Power(test="sign-flip", se=se, df=n - 1, n=n, least_p=least, over=over)]


@dataclass(frozen=True, kw_only=True)
class Pair(Tested):
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


def _against_held_out(frame: pd.DataFrame) -> list[Pair]:
    """A comparison of each part of one checkpoint, the clearest first."""
    found = []
    for name, part, whole in ranks.by_part(frame):
        ours, never = ranks.trained(whole)["mid"], ranks.held_out(whole)["mid"]
        n, m, size = len(ours), len(never), int(whole["n_candidates"].iloc[0])
        if not n or not m:
            continue
        row = partial(ranks.row_of, name, part, "rank_mean", unit="ranks")
        sides = {"trained": ours, "held_out": never}
        means = {k: row(len(x), value=float(x.mean())) for k, x in sides.items()}
        # Ranks never trained on are uniform.
        spread = memorisation.null_moments(size).rank_sd
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
        found.append(Pair(*one, mean_ranks=means, power=power))
    return sorted(ranks.adjusted(found), key=attrgetter("p"))


def _clear(never: Sequence[Pair], *, ahead: bool) -> Pair | None:
    """The clearest part with a difference to that side."""
    clear = (x for x in never if x.p <= 1 - ranks.LEVEL and (x.value > 0.5) == ahead)
    return next(clear, None)


def _epsilon(name: str, table: Sequence[Record], size: int) -> Finding | None:
    """The bound declared beforehand, and the largest of the others if it is more.

    p is that of guesses as good by chance, among ``size`` candidates.
    """
    here = [r for r in table if r["checkpoint"] == name and r["epsilon_per_record"]]
    bounds: list[tuple[Row, int]] = []
    ps: list[float] = []
    for declared in (True, False):
        some = [r for r in here if r["declared"] == declared]
        best = max(some, key=lambda r: r["epsilon_per_record"], default=None)
        least = bounds[0][0].value or 0.0 if bounds else 0.0
        if best is None or (epsilon := best["epsilon_per_record"]) <= least:
            continue
        trials, chance = best["canaries"], best["k"] / size
        by_chance = scipy.stats.binom.sf(best["hits"] - 1, trials, chance)
        ps.append(float(by_chance) * (1 - ranks.LEVEL) / best["significance"])
        row = Row(
            audit="canary",
            checkpoint=name,
            metric="epsilon_per_record",
            of=best["part"],
            group="pooled" if best["dose"] == "all" else f"dose:{best['dose']}",
            value=epsilon,
            level=1 - best["significance"],
            n=best["canaries"],
            family="primary" if declared else "exploratory",
        )
        bounds.append((row, best["k"]))
    if not bounds:
        return None
    (bound, k), *others = bounds
    larger, larger_k = others[0] if others else (None, None)
    facts = {"bound": bound, "k": k, "larger": larger, "larger_k": larger_k}
    # The declared bounds and the others are two looks.
    return finding(name, "memory", "epsilon", facts, min(1.0, 2 * min(ps)))


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


def rankable(units: pd.DataFrame) -> list[Guard]:
    """A warning where parts of canaries have no candidates."""
    counts = units["kind"].value_counts()
    lost = int(counts.get("unrankable", 0))
    told = {"lost": lost, "parts": lost + int(counts.get("canary", 0))}
    return [guard("canaries rankable", "canaries_rankable", told)] if lost else []


def guards(judged: Judged, evidence: pd.DataFrame) -> list[Guard]:
    """What can void the figures: no positive control, or a base that knows canaries."""
    control, facts = judged.control, dict[str, Any]()
    says = "control_missing"
    if control:
        says, facts = "control_not_found", control[0].facts("exposure_mean")
    if shown := list(dict.fromkeys(t.checkpoint for t in control if t.detected)):
        says = "control_found"
        facts |= {"checkpoints": shown, "insensitive": judged.lost}
    passed = None if shown and judged.lost else bool(shown)
    found = [guard("positive control", says, facts, passed=passed)]
    name, told = "base ranks canaries by chance", dict[str, Any]()
    if judged.base:
        says = "canary_base_ranks"
        facts = judged.base[0].facts("rank_mean", unit="ranks")
        facts["by_chance"] = uniform = judged.uniform
        told = {"passed": uniform, "checkpoint": BASE}
    else:
        scored = evidence.loc[evidence["kind"] == "canary", "checkpoint"]
        says = f"canary_base_{'tied' if BASE in {*scored} else 'unscored'}"
        facts = {"supposed": judged.supposed}
    return [*found, guard(name, says, facts, **told)]
