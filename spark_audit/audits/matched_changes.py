"""What moved identifiers since the reference and against a baseline, and what it means.

Of matched pairs (Delta_sel and DiD), of identifiers on either side of training, and of
low-sensitivity text: rows and contrasts by group, and then what is claimed of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.base import Context
from spark_audit.audits.identifiers import (
    ENOUGH,
    REPRODUCED,
    comparable,
    memory_claim,
    sides_of,
)
from spark_audit.audits.supervision import by_supervision
from spark_audit.data.occurrences import dose_group
from spark_audit.names import (
    BASE,
    CONTROL,
    NEVER,
    RELEARN,
    ROUNDINGS,
    TRAINED,
    CheckpointName,
    entry_of,
    original_of,
)
from spark_audit.results import Claim, Contrast, Finding, Hits, Row
from spark_audit.results.findings import FEWEST, Fact, Family
from spark_audit.stats import bootstrap, intervals, matching, memory_contrast
from spark_audit.stats.estimate import Estimate, Power, side_of
from spark_audit.stats.power import mde, with_mde

row_of = partial(Row.of_estimate, audit="matched", unit="nats")
contrast_of = partial(Contrast.of_estimate, audit="matched", unit="nats")
CLASSES = {"d": "digits", "A": "capitals", "a": "letters", "-": "marks"}
"""Classes of tokens, and the columns that count an identifier's tokens of each."""
NO_PAIRS = Estimate.missing("this group has no matched identifier")
NO_CONTROL = (
    "no identifier with a control stands in trained rows",
    "no identifier with a control stands in rows never trained on",
)
"""Where the identifiers of either side have none."""
REFERENCE = "the checkpoint is the matching reference itself, so there is no change"
OF_REFERENCE = (
    "the baseline is the matching reference: DiD is Delta_sel minus the residual of "
    "matching"
)
NO_LOW = "the drift of low-sensitivity text is not known"
NONE_ALIKE = "no other text has tokens of the same classes as these identifiers"
FEWEST_ALIKE = 2
"""Clusters that must hold other tokens of a class."""


@dataclass(frozen=True, eq=False)
class UnitScores:
    """All units and checkpoints, and what is the same for whatever is said of them.

    ``every`` are the units, ``nll`` their summed NLL by checkpoint, nats.
    """

    every: pd.DataFrame
    nll: Mapping[str, np.ndarray]
    context: Context

    @cached_property
    def units(self) -> pd.DataFrame:
        """Those that stand in a row of the manifest."""
        return self.every[self.every["split"] != ""]

    @cached_property
    def train(self) -> pd.DataFrame:
        """Those of train rows."""
        return self.units[self.units["split"] == "train"]

    @cached_property
    def changes(self) -> dict[str, np.ndarray]:
        """Change of the NLL of all units since the reference, nats, by checkpoint."""
        reference = self.every["ref_sum"].to_numpy()
        return {name: sums - reference for name, sums in self.nll.items()}

    @cached_property
    def sides(self) -> list[Occurrences]:
        """Identifiers on either side by group, all of them first."""
        return [*all_occurrences(self.units)]

    @cached_property
    def worst(self) -> dict[str, float]:
        """Largest change of a unit in a row, nats per token, by checkpoint."""
        at, tokens = self.units.index, self.units["n_tokens"]
        changes = self.changes.items()
        return {name: float((abs(one[at]) / tokens).max()) for name, one in changes}

    @cached_property
    def references(self) -> set[str]:
        """Checkpoints that score as the matching reference does."""
        return {name for name, change in self.worst.items() if change <= REPRODUCED}


# --- matched pairs --------------------------------------------------------------------

Key: TypeAlias = tuple[str, str, str, str]
"""Checkpoint, baseline (empty: none), metric and variant of a figure."""
Summed: TypeAlias = dict[Key, intervals.Estimand | Estimate]
"""What figures rest on, or why there are none."""


@dataclass(frozen=True)
class Pairs:
    """One group's pairs and windows, for all checkpoints.

    ``pii`` and ``control`` are the sides of the pairs, with their cluster ``code``, and
    ``pool`` the windows, by their places in the evidence; ``windows`` are the
    reference's means over spans and pool.
    """

    name: str
    pii: pd.DataFrame
    control: pd.DataFrame
    pool: pd.DataFrame
    windows: matching.Windows

    @cached_property
    def residual(self) -> np.ndarray:
        """What matching left over: PII sum minus control sum of the reference, nats."""
        return np.asarray(self.pii["ref_sum"].to_numpy() - self.control["ref_sum"])

    @property
    def left_over(self) -> float:
        """The same in nats per token: Delta_sel of the reference."""
        return float(self.residual.sum() / max(self.pii["n_tokens"].sum(), 1))

    def mean(self, values: np.ndarray) -> intervals.Estimand:
        """Mean of the pairs' values per token."""
        tokens, clusters = self.pii["n_tokens"], self.windows.n_clusters
        columns = np.stack([values, tokens], axis=1)
        sums = bootstrap.cluster_sums(columns, self.pii["code"], clusters)
        return intervals.Estimand(sums, intervals.ratio, int(tokens.sum()))

    def regression(self, *nll: np.ndarray) -> intervals.Estimand | Estimate:
        """R1 of a checkpoint's Delta_sel, or of its DiD from a baseline."""
        at, tokens = self.pool.index, self.pool["n_tokens"].to_numpy()
        return matching.rtm_bias(self.windows, *(sums[at] / tokens for sums in nll))


def _groups(units: pd.DataFrame) -> Iterator[Pairs]:
    """Train rows pooled, by task and by type, and test rows where there are any.

    The windows of a group are those of its spans' cells: examples and lengths.
    """
    units = units[units["role"].isin(["pii", "control", "unmatched", "window"])]
    units = units.assign(
        cell=units.groupby(["example", "n_tokens"]).ngroup(),
        mean=units["ref_sum"] / units["n_tokens"],
    )
    # Of many windows all columns would not fit.
    kept = ["role", "n_tokens", "ref_sum", "mean", "cell", "code"]
    for split, whole in (("train", "pooled"), ("test", "split:test")):
        inside = units[units["split"] == split]
        codes, clusters = pd.factorize(inside["cluster"], sort=True)
        inside = inside.assign(code=codes)
        window = inside["role"] == "window"
        spans = inside[~window].sort_values("pair", kind="stable")
        windows = inside.loc[window, kept]
        parts = [(whole, spans)] if split == "train" or len(spans) else []
        for column in ("task", "type") if split == "train" else ():
            for value, own in spans.groupby(column):
                parts.append((f"{column}:{value}", own))
        for name, own in parts:
            pool = windows[windows["cell"].isin(own["cell"])]
            role, own = own["role"], own[kept]
            every = own[role != "control"]
            reference = matching.Windows(
                pool=pool["mean"].to_numpy(),
                pool_clusters=pool["code"].to_numpy(),
                spans=every["mean"].to_numpy(),
                span_tokens=every["n_tokens"].to_numpy(),
                span_clusters=every["code"].to_numpy(),
                n_clusters=len(clusters),
                pool_cells=pool["cell"].to_numpy(),
                span_cells=every["cell"].to_numpy(),
            )
            pii, control = own[role == "pii"], own[role == "control"]
            yield Pairs(name, pii, control, pool[["n_tokens"]], reference)


def _summed(known: UnitScores, group: Pairs) -> Summed:
    """What the figures of a group rest on, those of checkpoints first."""
    nll, pairs = known.nll, known.context.baselines.items()
    sums: Summed = {}
    pii, control = group.pii.index, group.control.index
    weighed = {"n_tokens": group.pii["n_tokens"], "clusters": group.pii["code"]}
    for name, values in nll.items():
        ours, theirs = values[pii], values[control]
        change: intervals.Estimand | Estimate = Estimate.missing(REFERENCE)
        bias = shifted = change
        if name not in known.references:
            change = group.mean(ours - theirs - group.residual)
            bias = shifted = group.regression(values)
        if isinstance(bias, intervals.Estimand):
            # A pair that matching left ``d`` nats apart is expected at ``(1 - beta)
            # gap + beta d`` without an effect: its change at ``(1 - beta) (gap - d)``.
            slope = float(matching.slope(bias.sums.sum(axis=0)))
            shifted = bias.plus(slope * group.left_over)
        sums[name, "", "nll_pii", ""] = group.mean(ours)
        sums[name, "", "nll_control", ""] = group.mean(theirs)
        sums[name, "", "delta_sel", ""] = group.mean(ours - theirs)
        sums[name, "", "delta_sel", "change"] = change
        sums[name, "", "rtm_bias", ""] = bias
        sums[name, "", "rtm_bias", "change"] = shifted
        if group.name == "pooled":
            size = group.windows.n_clusters
            more = matching.reweighted(ours, theirs, **weighed, n_clusters=size)
            for of, one in more.items():
                sums[name, "", "delta_sel", of] = one
    for name, other in pairs:
        apart = nll[name] - nll[other]
        sums[name, other, "did", ""] = group.mean(apart[pii] - apart[control])
        sums[name, other, "rtm_bias", ""] = group.regression(nll[name], nll[other])
    if len(pii):
        return sums
    return {key: NO_PAIRS for key in sums if not key[3]}


def pair_figures(known: UnitScores) -> tuple[list[Row], list[Contrast]]:
    """Figures of the matched pairs in every group of train and of test rows."""
    context, rows, contrasts = known.context, list[Row](), list[Contrast]()
    options = {"replicates": context.replicates, "seed": context.seed}
    weights_of = cache(partial(bootstrap.draw_weights, **options))
    for group in _groups(known.units):
        sums, nulls = _summed(known, group), dict[tuple[str, str], float]()
        if len(group.pii):
            nulls = {("delta_sel", "change"): 0.0, ("did", ""): 0.0}
            nulls["delta_sel", ""] = group.left_over
        drawn = intervals.replicates_of(sums, weights_of(group.windows.n_clusters))
        estimates = intervals.estimates_of(sums, drawn)
        tests = _tests(known, group.name, sums, estimates)
        for key, estimate in estimates.items():
            name, other, metric, of = key
            shown = with_mde(estimate) if metric in ("delta_sel", "did") else estimate
            shown = shown.decided(paper=context.paper)
            columns: dict[str, Any] = {"checkpoint": name, "group": group.name}
            columns |= {"metric": metric, "of": of, "null": nulls.get((metric, of))}
            if other:
                columns |= {"baseline": other, **tests.get(key, {})}
                columns["family"] = _family(group.name, name, other)
                contrasts.append(contrast_of(shown, **columns))
            else:
                rows.append(row_of(shown, **columns))
    return rows, contrasts


def _family(group: str, name: str, other: str) -> Family:
    """Of a contrast; single seeds, and what was made of the other, are no tests."""
    single = group == "pooled" and entry_of(name) == name and original_of(name) != other
    return "primary" if single else "exploratory"


def _tests(
    known: UnitScores, group: str, sums: Summed, estimates: Mapping[Key, Estimate]
) -> dict[Key, dict[str, Any]]:
    """What the contrasts of DiD state of their tests.

    The pooled DiD of methods are one family, corrected by max-T; smallest effects are
    those that pass its first step among so many tests (by Bonferroni's bound).
    """
    seed, family = known.context.seed, dict[Key, np.ndarray]()
    found: dict[Key, dict[str, Any]] = {}
    for key, summed in sums.items():
        if key[2] != "did" or isinstance(summed, Estimate):
            continue
        if estimates[key].value is not None:
            note = OF_REFERENCE if key[1] in known.references else ""
            scores = summed.sums[:, 0]
            found[key] = {"p": bootstrap.sign_flip(scores, seed=seed), "note": note}
            if _family(group, *key[:2]) == "primary":
                family[key] = scores
    if family:
        scores = np.stack([*family.values()], axis=1)
        corrected = bootstrap.max_t(scores, seed=seed).tolist()
        for key, p in zip(family, corrected, strict=True):
            one = estimates[key]
            level = 1 - (1 - one.level) / len(family)
            found[key]["p_adjusted"] = p
            if one.se is not None:
                found[key]["mde"] = mde(one.se, clusters=one.clusters, level=level)
    return found


# --- identifiers on either side of training -------------------------------------------


@dataclass(frozen=True)
class Moved:
    """How identifiers of one group moved, and what they rest on.

    Attributes
    ----------
    own
        Change of their NLL, on either side, and the difference: memory.
    beyond
        The same of the change minus that of their controls, where they have one: on
        the never-trained side, of the kind; the difference is specific selectivity.
    reach
        Nats by which the sides were clearly unequally hard on the reference.
    p
        Of no difference; two-sided.
    power
        What the smallest difference that is detected follows from.
    """

    own: memory_contrast.Memory
    beyond: memory_contrast.Memory
    reach: float = 0.0
    p: float | None = None
    power: tuple[Power, ...] = ()


@dataclass(frozen=True, eq=False)
class Occurrences:
    """Identifiers of one group on either side, the same for all checkpoints.

    ``spans`` are units, by their places in the evidence; ``control`` is the place of
    the control of those that have one.
    """

    group: str
    spans: pd.DataFrame

    @cached_property
    def sides(self) -> memory_contrast.Sides:
        """Where they stand."""
        return sides_of(self.spans)

    @cached_property
    def pairs(self) -> Occurrences:
        """Those that have a control."""
        return Occurrences(self.group, self.spans.dropna(subset="control"))

    @cached_property
    def before(self) -> Estimate:
        """Trained minus never trained on the reference, nats per token."""
        before = self.spans["ref_sum"].to_numpy()
        return memory_contrast.memory(before, self.sides).difference

    @cached_property
    def reach(self) -> float:
        """By how many nats the sides clearly differed on the reference."""
        return unequal(self.before)

    @property
    def told_apart(self) -> bool:
        """Whether no difference of the sides can be called memory, for their texts."""
        return bool((self.spans["stratum"] < 0).any())

    def by_text(self, name: str) -> dict[str, Fact]:
        """How well texts alone tell the sides apart, or that too few can be tested."""
        auc = self.spans["text_auc"].max()
        if np.isnan(auc):
            return {"fewest": ENOUGH}
        shown = Estimate(auc, clusters=self.spans["cluster"].nunique())
        return {"text_auc": row_of(shown, checkpoint=name, metric="text_auc", unit="")}

    def moved(self, change: np.ndarray, *, seed: int | None) -> Moved:
        """What :class:`Moved` states of them.

        Parameters
        ----------
        change
            Change of the NLL of all units since the reference, nats.
        seed
            Of the permutations; ``None`` for none: no claim rests on them.
        """
        own_change, pairs = change[self.spans.index], self.pairs
        own = memory_contrast.memory(own_change, self.sides)
        p, least = own.t_p(null=self.reach), 0.0
        if seed is not None and p is not None and (self.spans["form"] > 0).all():
            # Chance dealt them to the sides: what it could have dealt is known.
            dealt = memory_contrast.permutation_p(own_change, self.sides, seed=seed)
            if dealt is not None:
                p, least = max(p, dealt), memory_contrast.least_p(self.sides)
        se = own.difference.se
        test = Power(test="t", se=se, df=own.freedom, beyond=self.reach, least_p=least)
        apart = change[pairs.spans.index] - change[pairs.spans["control"].astype(int)]
        beyond = memory_contrast.memory(apart, pairs.sides, reasons=NO_CONTROL)
        return Moved(own, beyond, self.reach, p, (test,) if se else ())


def unequal(before: Estimate) -> float:
    """Nats by which one side was clearly harder on the reference already; else 0."""
    return 0.0 if side_of(before) == 0 else abs(before.value or 0.0)


def all_occurrences(units: pd.DataFrame) -> Iterator[Occurrences]:
    """All identifiers, those of each type, and those of each dose with all held out.

    Identifiers of trained rows, and those that stand in no trained row. A type or dose
    that is the only one has no group of its own. Where it is known what training did
    with them, those in the loss and those only read are groups, with all held out.
    """
    spans = units[units["role"].isin(["pii", "unmatched"])]
    spans, _ = comparable(spans[(spans["split"] == "train") | (spans["dose"] == 0)])
    control = units[units["role"] == "control"]
    places = pd.Series(control.index, control["pair"])
    spans = spans.assign(control=spans["pair"].map(places))
    yield Occurrences("pooled", spans)
    trained = spans["split"] == "train"
    held_out = spans[~trained]
    for stratum, part in by_supervision(spans[trained]):
        yield Occurrences(stratum, pd.concat([part, held_out]).sort_index())
    types, doses = spans["type"], spans["dose"].clip(lower=1)
    by_dose = doses[trained].sort_values().map(dose_group)
    for name, values, known, held in (
        ("type", types, sorted({*types[trained]}), False),
        ("dose", doses.map(dose_group), by_dose, ~trained),
    ):
        parts = dict.fromkeys(known)
        for value in parts if len(parts) > 1 else ():
            yield Occurrences(f"{name}:{value}", spans[(values == value) | held])


def memory_rows(known: UnitScores, name: str) -> tuple[list[Row], dict[str, Moved]]:
    """The change of identifiers on either side, and their difference, by group.

    Sides that were unequally hard on the reference drift unequally where drift depends
    on difficulty; at most, what they differed by is lost. That is the difference's
    ``null_low`` and ``null_high``.

    Returns
    -------
    rows
        Of metrics ``pii_change``, ``memory``, ``kind``, ``specific``, ``low_change``.
    tests
        Of no memory, by group.
    """
    lost = memory_contrast.Memory.missing(REFERENCE)
    tests, trend = {"pooled": Moved(lost, lost)}, lost.difference
    drift, change, groups = trend, known.changes[name], known.sides
    if name not in known.references:
        # The two groups that claims rest on; doses come last, the highest at the end.
        claimed, seed = {"pooled", groups[-1].group}, known.context.seed
        tests = {
            each.group: each.moved(change, seed=seed if each.group in claimed else None)
            for each in groups
        }
        spans, sides = groups[0].spans, groups[0].sides
        trend = memory_contrast.dose_trend(change[spans.index], sides, spans["dose"])
        drift = _low_drift(known.train, change)
    rows = list[Row]()
    for group, found in tests.items():
        own, beyond = found.own, found.beyond
        row = partial(row_of, checkpoint=name, group=group)
        band = {"null_low": -found.reach, "null_high": found.reach}
        rows += [
            row(own.trained, metric="pii_change", of="trained"),
            row(own.held_out, metric="pii_change", of="never-trained"),
            row(own.difference, metric="memory", null=0.0, **band),
            row(beyond.held_out, metric="kind", null=0.0),
            row(beyond.difference, metric="specific", null=0.0),
        ]
    rows.append(row_of(trend, checkpoint=name, metric="memory", of="trend", null=0.0))
    rows.append(row_of(drift, checkpoint=name, metric="low_change"))
    return rows, tests


def contrasts_of(known: UnitScores, name: str, baseline: str) -> Iterator[Contrast]:
    """Identifiers on either side and low-sensitivity text against the baseline's.

    Memory is linear in the change since the reference, which both share: what is left
    of the difference is how far the two are apart.
    """
    contrast = partial(contrast_of, checkpoint=name, baseline=baseline)
    apart, train = known.nll[name] - known.nll[baseline], known.train
    yield contrast(_low_drift(train, apart), metric="low_change")
    for each in known.sides:
        moved = memory_contrast.memory(apart[each.spans.index], each.sides)
        more = {"group": each.group, "null": 0.0, "p": moved.t_p()}
        yield contrast(moved.difference, metric="memory", **more)
    pii = train[train["role"] == "pii"]
    yield contrast(pooled_change(pii, apart), metric="nll_pii", null=0.0)
    yield contrast(_beyond_alike(train, apart), metric="did_alike", null=0.0)


def _beyond_alike(train: pd.DataFrame, change: np.ndarray) -> Estimate:
    """Change of matched identifiers minus that of other tokens of their classes.

    Nats per token of the identifiers whose classes all have enough other tokens.
    """
    pii, alike = (train[train["role"] == role] for role in ("pii", "alike"))
    held = alike.groupby("type")["cluster"].nunique()
    letters = [letter for letter in CLASSES if held.get(letter, 0) >= FEWEST_ALIKE]
    names = [CLASSES[letter] for letter in letters]
    rare = pii[[*CLASSES.values()]].drop(columns=names)
    used = pii[(rare == 0).all(axis=1)]
    if used.empty:
        return Estimate.missing(NONE_ALIKE)
    both = pd.concat([used, alike])
    own = (both["role"] == "pii").to_numpy()[:, None]
    other = ~own & (both["type"].to_numpy()[:, None] == np.array(letters, object))
    moved, tokens = change[both.index][:, None], both[["n_tokens"]].to_numpy()
    columns = (own * moved, own * tokens, both[names], other * moved, other * tokens)
    sums = bootstrap.cluster_sums(np.hstack(columns), pd.factorize(both["cluster"])[0])

    def statistic(totals: np.ndarray) -> np.ndarray:
        counts, moved, tokens = np.split(totals[..., 2:], 3, axis=-1)
        expected = (counts * moved / tokens).sum(axis=-1)
        return np.asarray((totals[..., 0] - expected) / totals[..., 1])

    found = intervals.estimate_of(sums, statistic, n=int(used["n_tokens"].sum()))
    if left := len(pii) - len(used):
        note = f"{left} of {len(pii)} identifiers left out: {NONE_ALIKE}"
        found = found.noting(note)
    return found


def pooled_change(spans: pd.DataFrame, change: np.ndarray) -> Estimate:
    """Change of the NLL of some spans, nats per token."""
    columns = np.stack([change[spans.index], spans["n_tokens"]], axis=1)
    codes = pd.factorize(spans["cluster"], sort=True)[0]
    return intervals.ratio_estimate(*bootstrap.cluster_sums(columns, codes).T)


def _low_drift(train: pd.DataFrame, change: np.ndarray) -> Estimate:
    """Change of the NLL of low-sensitivity text, if there is any."""
    low = train[train["role"] == "low"]
    return Estimate.missing(NO_LOW) if low.empty else pooled_change(low, change)


# --- what is claimed ------------------------------------------------------------------

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
        if entry_of(name) != name or name == CONTROL:
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


def _left_out_types(train: pd.DataFrame, whole: Occurrences) -> list[Row]:
    """Return the share of each type's trained identifiers that are not compared.

    ``of`` is the reason: ``form`` (none of their form and place was held out), ``few``
    (too few were, to test whether their texts differ) or ``text`` (their texts differ).
    A type is listed once for each of its reasons, the larger shares first.
    """
    spans = train[train["role"].isin(["pii", "unmatched"])]
    is_compared = pd.Series(whole.sides.cells >= 0, index=whole.spans.index)
    reason = pd.Series("form", index=spans.index)
    is_refused = spans["stratum"] < 0
    reason[is_refused] = np.where(spans["text_auc"][is_refused].isna(), "few", "text")
    is_left_out = ~is_compared.reindex(spans.index, fill_value=False)

    rows = []
    for (kind, why), part in spans[is_left_out].groupby(["type", reason]):
        every = spans[spans["type"] == kind]
        shown = Estimate(
            len(part) / len(every), n=len(every), clusters=part["cluster"].nunique()
        )
        place = {"metric": "left_out", "group": f"type:{kind}", "of": str(why)}
        rows.append(row_of(shown, checkpoint=BASE, **{**place, "unit": ""}))
    return sorted(rows, key=lambda row: -(row.value or 0.0))


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
        relearned = CheckpointName.parse(name).derived == RELEARN and name != CONTROL
        if not relearned or not {BASE, original} <= nll.keys():
            continue
        moved = nll[name] - nll[CONTROL]
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
    if highest and rows["pii_change", TRAINED, highest[0]].clusters < FEWEST:
        highest = []
    row, test, kind = facts["memory"], tests["pooled"], rows["kind", "", "pooled"]
    power = [*test.power]
    for group in doses:
        # Of fewer it says next to nothing, and nothing that may be shared.
        if rows["pii_change", TRAINED, group].clusters >= FEWEST:
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
    elif matching.unlike_drift(row.value, drift.value, drift.low, drift.high):
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
