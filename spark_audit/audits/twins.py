"""Rank identifiers among fresh strings of their kind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from operator import itemgetter
from typing import Literal

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, guard, scored
from spark_audit.audits.canary.ranks import TIED, resolved
from spark_audit.audits.identifiers import identifier_facts
from spark_audit.audits.ratio_rows import (
    beside_base,
    cells_of_frame,
    marked,
    ratio_figures,
)
from spark_audit.audits.supervision import COLUMN, by_supervision, trained_identifiers
from spark_audit.data.occurrences import DOSES, dose_group
from spark_audit.manifest.encodings import key_of
from spark_audit.manifest.identifier_forms import WORDED
from spark_audit.manifest.schema import Manifest, ManifestTwins
from spark_audit.names import BASE, NEVER, TRAINED
from spark_audit.results import AuditResult, Claim, Contrast, Finding, Hits, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.findings import Fact
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH
from spark_audit.scoring.table import Pass
from spark_audit.stats import memory_contrast
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.bootstrap import MAX_CLUSTERS_EXACT, holm, sign_flip
from spark_audit.stats.canary_ranks import candidate_rank, exposure_bits, top_k_credit
from spark_audit.stats.duplicates import connected_components
from spark_audit.stats.estimate import Bound, Power, side_of
from spark_audit.stats.intervals import ratio_estimate

CANDIDATES = Pass("candidates")

NO_BASE = (
    "the base model was not scored: give --base, because a rise is since the base model"
)

NO_TRAINED = "no identifier of trained rows has twins"

_of_sides = partial(Metric, learned=1, variants=(TRAINED, NEVER), missing=(TRAINED,))


@dataclass(frozen=True, kw_only=True)
class Twins(Audit):
    """Identifiers ranked among made-up strings of their kind (twins).

    The evidence is one row per checkpoint and identifier, with its ``rank`` by NLL,
    averaged over contexts. ``ties`` counts twins with exactly the same NLL, which
    ``rank`` places behind. An identifier of ``dose`` 0 occurs in no trained row.
    Identifiers that share a cluster of rows share their ``cluster``. ``injected`` ones
    were drawn in the same way as their twins. For ``stratum`` see
    :class:`~spark_audit.audits.identifiers.Facts`.
    """

    name = "twins"
    metrics = (
        _of_sides(
            "rise",
            "bits",
            null=0.0,
            alone=True,  # against a baseline it is the difference of exposures
            panel="rises",
            counted=(TRAINED,),
            glance=(TRAINED,),
            headline=(TRAINED,),
        ),
        Metric(
            "beyond",
            "bits",
            partner="rise",
            learned=1,
            null=0.0,
            variants=("rise", "exposure"),
            panel="rises",
        ),
        _of_sides("exposure_mean", "bits", bounds=(0.0, math.inf)),
        _of_sides("top1_rate", rate=True),
    )
    unscored = "the twins of identifiers were not scored"
    over = "exposure among twins"
    wide = True
    counts = "identifiers"
    covers = ("rise", "n")
    sides = ("trained", "never")
    attacks_identifiers = True
    strongest_claim = "memory"
    memory = True
    unit = "bits"

    @classmethod
    def compared_with(cls, finding: Finding) -> str:
        """Return ``base`` for a change since the base, else ``held_out``."""
        return "base" if finding.metric == "rise" else "held_out"

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Every identifier among its twins, in each of its contexts."""
        keys = [key for one in manifest.twins for key in _keys(one)]
        return {CANDIDATES: sorted(keys)} if keys else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        every, trained_on = manifest.twins, trained_identifiers(manifest)
        facts = identifier_facts(manifest, trained_on)
        rows = [[manifest.by_id[at.example] for at in one.contexts] for one in every]
        # The stratum of an identifier is that in the first of its contexts.
        firsts = [one.contexts[0] for one in every]
        places = [(at.example, at.char_start, at.char_end) for at in firsts]
        by_place = {
            place: trained_on.supervision_of(row, span)
            for place, own in zip(places, rows, strict=True)
            for row in own[:1]
            for span in row.spans
            if (span.start, span.end) == place[1:]
        }
        # Whether all of its type in its rows were drawn as twins are.
        drawn = [
            {span.origin for row in own for span in row.spans if span.type == one.type}
            for one, own in zip(every, rows, strict=True)
        ]
        units = pd.DataFrame(
            {
                "twins_id": [one.id for one in every],
                "type": [one.type for one in every],
                "cluster": _clusters([[row.cluster for row in own] for own in rows]),
                "dose": [one.dose for one in every],
                "contexts": [len(one.contexts) for one in every],
                "n_candidates": [len(one.candidates) for one in every],
                "injected": [origins == {"injected"} for origins in drawn],
                "stratum": [facts[place].stratum for place in places],
            }
        )
        if trained_on.is_known:
            units[COLUMN] = [
                by_place[place] if one.dose else ""
                for one, place in zip(every, places, strict=True)
            ]
        keys = [_keys(one) for one in every]

        def measured() -> Measured:
            for name, table in scored(tables, CANDIDATES):
                if not all(key in table for own in keys for key in own):
                    continue
                nll, ranks = table.columns["nll_mean"], []
                for one, own in zip(every, keys, strict=True):
                    # Mean over contexts; in each all strings have as many tokens.
                    held = [nll[table.rows(key)] for key in own]
                    means = np.mean(held, axis=0, dtype=np.float64)
                    ranks.append(candidate_rank(means, one.true_index))
                rank, ties = np.array(ranks, np.float64).reshape(-1, 2).T
                yield name, {"rank": rank, "ties": ties}

        lost = {"lost": manifest.counts.get("twins_lost", 0)}
        return Evidence.of(units, measured(), lost)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        frame = ranked(evidence.frame())
        rows, contrasts = figures(frame, context)
        guards = []
        if lost := evidence.facts["lost"]:
            hits = Hits(count=lost, of=lost + len(evidence.units))
            guards = [guard("identifiers have twins", "have_twins", {"lost": hits})]
        return AuditResult(
            rows=rows,
            contrasts=contrasts,
            guards=guards,
            findings=[*findings(frame, rows, seed=context.seed)],
        )

    def why_nothing(self, manifest: Manifest) -> str:
        if "twins" in manifest.counts:
            return "no identifier of the manifest has twins"
        return "the manifest was built without twins: build it again"


def _keys(one: ManifestTwins) -> list[str]:
    """Key of the twins in each context."""
    return [key_of("twins", one.id, context.example) for context in one.contexts]


def _clusters(rows: Sequence[Sequence[str]]) -> list[str]:
    """A label for each set; contexts of one identifier may lie in several clusters."""
    names = sorted({name for held in rows for name in held})
    code = {name: i for i, name in enumerate(names)}
    edges = [(code[a], code[b]) for held in rows for a, b in combinations(held, 2)]
    joined = connected_components(len(names), edges)
    return [names[int(joined[code[held[0]]])] for held in rows]


def ranked(evidence: pd.DataFrame) -> pd.DataFrame:
    """The evidence with exposures, and rises where the base was scored."""
    evidence = evidence.astype({"rank": np.int64, "ties": np.int64})
    rank, ties = evidence["rank"].to_numpy(), evidence["ties"].to_numpy()
    frame = evidence.assign(
        side=np.where(evidence["dose"] > 0, TRAINED, NEVER),
        exposure=exposure_bits(rank, evidence["n_candidates"].to_numpy(), ties=ties),
        top1=top_k_credit(rank, k=1, ties=ties),
    )
    of_base = frame["checkpoint"] == BASE
    if not of_base.any():
        return frame
    base = frame[of_base].set_index("twins_id")["exposure"]
    rise = frame["exposure"] - base.loc[frame["twins_id"]].to_numpy()
    return frame.assign(rise=rise.where(~of_base))


def figures(frame: pd.DataFrame, context: Context) -> tuple[list[Row], list[Contrast]]:
    """All rows and contrasts, those of a collapsed model marked."""
    most = float(np.log2(frame["n_candidates"].max()))
    columns = {"exposure_mean": "exposure", "top1_rate": "top1"}
    columns |= {"rise": "rise"} if "rise" in frame else {}
    cells = frame.assign(of=frame["side"])
    cells = cells.sort_values("of", ascending=False, kind="stable")
    ours = cells[cells["side"] == TRAINED]
    types = [(f"type:{kind}", part) for kind, part in ours.groupby("type")]
    groups = [("pooled", cells), *types, *by_dose(ours), *by_supervision(ours)]
    rows, contrasts = ratio_figures(
        (cells_of_frame(*group, columns) for group in groups),
        context,
        Twins,
        exposure_mean=(0.0, most),
    )
    # The base has no rise: of ranks alone its figure is the null.
    rows = beside_base(rows)
    names = list(dict.fromkeys(frame["checkpoint"]))
    if ours.empty:
        rows += Twins.missing(names, NO_TRAINED)
    elif "rise" not in frame:
        rows += Twins.missing(names, NO_BASE, metrics=[Twins.metric("rise")])
    for name in (name for name in names if name != BASE):
        own = frame[frame["checkpoint"] == name]
        ours, never = own[own["side"] == TRAINED], held_out(own)
        for group, part in [("pooled", ours), *by_dose(ours), *by_supervision(ours)]:
            if (sides := both_sides(part, never)) is not None:
                # What can be worked out of the smaller side is withheld as that is.
                least = min(part["cluster"].nunique(), never["cluster"].nunique())
                found = memory_contrast.memory(*sides).difference
                place = name, "beyond", compared(part)
                beyond = replace(found, clusters=least)
                rows.append(Twins.row(beyond, *place, group=group))
    order = {metric.name: i for i, metric in enumerate(Twins.metrics)}
    rows.sort(key=lambda row: (names.index(row.checkpoint), order[row.metric]))
    lost = collapsed(frame)

    def tied(row: Row) -> str | None:
        sides = {row.checkpoint, getattr(row, "baseline", row.checkpoint)}
        of_base = {BASE} if row.metric in ("rise", "beyond") else set()
        return TIED if (sides | of_base) & lost else None

    rows, contrasts = (
        marked(side, "not_resolvable", tied) for side in (rows, contrasts)
    )
    return rows, contrasts


MIN_CONTROLS = 5
"""Clusters never trained on that a comparison needs; fewer show nothing."""

ALPHA = 0.05

FINEST = 1e-4
"""The smallest p of a test by 9,999 random draws."""


@dataclass(frozen=True)
class Test:
    """A group of trained identifiers, compared with the base and never-trained ones.

    Attributes
    ----------
    row
        The figure that a claim rests on.
    apart
        The row of what it has beyond those never trained on, where there are any.
    way
        1, -1: both point up, down; 0: they do not agree.
    groups
        Clusters of trained identifiers, and of those never trained on.
    ps
        Two-sided p of the tests that there are: of no ``rise`` since the base; of none
        ``beyond`` that of identifiers never trained on; and where there are none of
        these, of what a ``kind`` that was learned could not give
        (:func:`_beyond_the_kind`).
    power
        What the smallest effect follows from that all of these tests detect.
    bounds
        What the rise that could still be there follows from: that of the row, since
        twins are of the kind already.
    p
        Of the conjunction, as each of the tests must hold.
    """

    row: Row
    apart: Row | None
    way: int
    groups: tuple[int, int]
    ps: dict[str, float]
    power: list[Power]
    bounds: list[Bound]
    p: float


def findings(
    frame: pd.DataFrame, rows: Sequence[Row], *, seed: int
) -> Iterator[Finding]:
    """One finding a checkpoint, base apart."""
    lost = collapsed(frame)
    for name in dict.fromkeys(frame["checkpoint"]):
        if name == BASE:
            continue
        own = frame[frame["checkpoint"] == name]
        if lost & {name, BASE}:
            at_base = "" if name in lost else "_at_base"
            yield Finding.not_tested(
                "twins",
                f"twins.not_resolvable{at_base}",
                checkpoint=name,
                status="not_resolvable",
                reason=TIED,
                on_base=name not in lost,
            )
            continue
        tests = list(_tests(own, [row for row in rows if row.checkpoint == name], seed))
        if tests:
            yield _verdict(tests, own)
            continue
        if (own["side"] == TRAINED).any():
            yield Finding.not_tested(
                "twins",
                "twins.no_control",
                checkpoint=name,
                further=["twins.needs_control"],
            )
        else:
            yield Finding.not_tested("twins", "twins.no_trained", checkpoint=name)


def by_dose(ours: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Trained identifiers by group of doses, the lowest first."""
    names = ours["dose"].map(dose_group)
    for name in map(dose_group, DOSES):
        if (names == name).any():
            yield f"dose:{name}", ours[names == name]


def both_sides(
    ours: pd.DataFrame, others: pd.DataFrame
) -> tuple[np.ndarray, memory_contrast.Sides] | None:
    """Rises of trained and never trained, or exposures without a base, and strata.

    Of one checkpoint. ``None`` where too few were never trained on.
    """
    if others["cluster"].nunique() < MIN_CONTROLS or ours.empty:
        return None
    both = pd.concat([ours, others])
    strata = both.groupby(["type", both["stratum"].abs()]).ngroup()
    held = both["side"] == TRAINED, both["cluster"], [strata]
    return both[compared(both)].to_numpy(), memory_contrast.Sides.of(*held)


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
    """Tests of all trained identifiers, and of the highest dose where doses differ.

    A highest dose of fewer clusters than
    :data:`~spark_audit.results.rows.MIN_CLUSTERS_TO_PUBLISH` is not tested by
    itself.
    """
    ours, others = own[own["side"] == TRAINED], held_out(own)
    doses = list(by_dose(ours))
    tested = [("pooled", ours)]
    if len(doses) > 1 and doses[-1][1]["cluster"].nunique() >= MIN_CLUSTERS_TO_PUBLISH:
        tested.append(doses[-1])
    for group, part in tested:
        known = [row for row in rows if row.group == group and row.value is not None]
        held = {(row.metric, row.of): row for row in known}
        rise, apart = held.get(("rise", TRAINED)), held.get(("beyond", compared(own)))
        if (row := rise or apart) is None:
            continue
        ps, power = dict[str, float](), list[Power]()
        if rise is not None:
            ps["rise"], power = _flipped(part, seed)
        if apart is not None and (dealt := _dealt(part, others, seed)) is not None:
            power += dealt[1]
            if dealt[0] is not None:
                ps["beyond"] = dealt[0]
        ways = {int(np.sign(one.value or 0.0)) for one in (row, apart or row)}
        way = ways.pop() if len(ways) == 1 else 0
        if "beyond" not in ps:
            lowest = doses[0][1] if group != "pooled" else None
            p, kind = _beyond_the_kind(part, lowest, seed=seed)
            power += kind
            if way > 0:
                ps["kind"] = p
        sizes = (part["cluster"].nunique(), others["cluster"].nunique())
        both = max(ps.values(), default=1.0) if way else 1.0
        yield Test(
            row=row,
            apart=apart,
            way=way,
            groups=sizes,
            ps=ps,
            power=power,
            bounds=_bounds(row, part),
            p=both,
        )


def _bounds(row: Row, part: pd.DataFrame) -> list[Bound]:
    """Return what the largest rise follows from: no rank is ahead of the first.

    By how much identifiers can still rise depends on their ranks at the base, which
    are a sample too: the exposure of the first rank bounds all.
    """
    return t_bound(
        row.value,
        row.high,
        df=max(row.clusters - 1, 1),
        most=float(np.log2(part["n_candidates"].max())),
    )


def _flipped(part: pd.DataFrame, seed: int) -> tuple[float, list[Power]]:
    """P of a sign flip of rises, identifiers of a cluster together, and its power."""
    sums = part.groupby("cluster")["rise"].agg(["sum", "size"])  # (clusters, 2)
    n_clusters = len(sums)
    p = sign_flip(sums["sum"].to_numpy(), seed=seed)
    se = ratio_estimate(sums["sum"], sums["size"]).se
    if not se and n_clusters > 5:
        return p, []

    is_exact = n_clusters <= MAX_CLUSTERS_EXACT
    power = Power(
        test="sign-flip",
        se=se,
        df=n_clusters - 1,
        n=n_clusters,
        least_p=2.0 ** (1 - n_clusters) if is_exact else FINEST,
        why="clusters" if is_exact else "draws",
    )
    return p, [power]


def _dealt(
    part: pd.DataFrame, others: pd.DataFrame, seed: int
) -> tuple[float | None, list[Power], float] | None:
    """P of both sides by permutations, or by Student's t, its power, its value."""
    if (held := both_sides(part, others)) is None:
        return None
    found = memory_contrast.memory(*held)
    p = memory_contrast.permutation_p(*held, seed=seed)
    least = memory_contrast.least_p(held[1])
    if p is None:
        p, least = found.t_p(), 0.0
    value, se = found.difference.value or 0.0, found.difference.se
    why: Literal["draws", "clusters"] = "draws" if least == FINEST else "clusters"
    power = Power(test="t", se=se, df=found.freedom, least_p=least, why=why)
    return p, [power] if se else [], value


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
    tried: list[tuple[float, list[Power]]] = []
    numbers = part[part["injected"] & ~part["type"].isin(WORDED)]
    if numbers["cluster"].nunique() >= MIN_CONTROLS:
        p, flip = _flipped(numbers, seed)
        tried.append((p if numbers["rise"].sum() > 0 else 1.0, flip))
    if lowest is not None and (held := _dealt(part, lowest.assign(side=NEVER), seed)):
        dealt, power, value = held
        tried.append((dealt if dealt is not None and value > 0 else 1.0, power))
    if not tried:
        return 1.0, [Power(test="t", least_p=1.0, why="nobody")]
    first = [one for _, power in tried for one in power][:1]
    told = [replace(one, over=float(len(tried))) for one in first]
    return min(1.0, len(tried) * min(p for p, _ in tried)), told


def _verdict(tests: Sequence[Test], own: pd.DataFrame) -> Finding:
    ps = holm([test.p for test in tests]).tolist()
    p, best = min(zip(ps, tests, strict=True), key=itemgetter(0))
    whole, trained = tests[0], own["side"] == TRAINED
    detected = p <= ALPHA and best.way and side_of(best.row) == best.way
    clearest = best if detected else whole
    left_out = own[~trained & (own["stratum"] < 0)]
    n_trained, n_never = clearest.groups
    facts: dict[str, Fact] = {
        "ahead": clearest.row,
        "ahead_all": whole.row,
        "trained": n_trained,
        "never": n_never,
        "left_out": left_out["cluster"].nunique(),
    }
    rose = whole.ps.get("rise", 1.0) <= ALPHA
    claim: Claim = "nothing_shown"
    says = "nothing"
    is_rise = clearest.row.metric == "rise"
    remarks = ["twins.since_base" if is_rise else "twins.beside_held_out"]
    if detected and best.way > 0:
        claim = says = "memory"
        # Of a rise only this part is no kind that was learned. Of few clusters
        # its interval may hold 0 where the test, by permutations, does not.
        held = "beyond" in best.ps and best.row is not best.apart
        facts["beyond"] = best.apart if held else None
        is_clear = bool(best.apart and side_of(best.apart) == best.way)
        facts["beyond_clear"] = is_clear
        if held:
            remarks.append("twins.beyond" if is_clear else "twins.also_beyond")
    elif detected and "beyond" in best.ps:
        claim = says = "betrays"
    elif detected:
        claim, says = "moved", "fell"
    elif rose and "kind" in whole.ps:
        claim = says = "confounded"
        remarks.append("twins.why_confounded")
    elif rose and "beyond" in whole.ps:
        claim, says = "formats" if (whole.row.value or 0.0) > 0 else "moved", "kind"
        remarks.append("twins.format_changed")
    if detected and clearest.row.group != "pooled":
        says = f"dose_{says}"
    if not n_never:
        none = "none_comparable" if facts["left_out"] else "none_held_out"
        remarks.append(f"twins.{none}")
    power = [replace(each, over=each.over * len(tests)) for each in clearest.power]
    bounds = [replace(each, over=len(tests)) for each in clearest.bounds]
    unit = clearest.row.unit
    # A mean of 0 without an interval may be two that cancel.
    if whole.row.metric == "rise" and not own.loc[trained, "rise"].any():
        says = "still"
        remarks = remarks[1:]
        unit = "clusters"
        facts["clusters"] = whole.groups[0]
        power = [_hits_power(*whole.groups, over=len(tests))]
        n_clusters = whole.groups[0]
        none_moved = Bound(
            test="hits", value=0.0, n=n_clusters, most=n_clusters, over=len(tests)
        )
        bounds = [none_moved]
    return Finding.on(
        clearest.row,
        claim,
        f"twins.{says}",
        further=remarks,
        facts=facts,
        unit=unit,
        power=power,
        bounds=bounds,
        p=p,
    )


def _hits_power(n: int, m: int, *, over: float) -> Power:
    """What the smallest effect follows from where no rank moved, as of a copy.

    Without a spread there is no smallest effect in bits, but one in clusters: how many
    of ``n`` must go ahead, all others and ``m`` never trained on standing still, for
    both tests to find them. Fisher's test stands for the permutations.
    """
    few = range(1, min(n, 60) + 1)
    tables = [np.array([[k, n - k], [0, m]]) for k in few]
    apart = [float(scipy.stats.fisher_exact(one).pvalue) for one in tables]
    ps = [max(2.0 ** (1 - k), FINEST, p) for k, p in zip(few, apart, strict=True)]
    return Power(test="hits", n=n, most=n, ps=ps, over=over)
