"""What moved identifiers since the reference and against a baseline, and what it means.

Of matched pairs (Delta_sel and DiD), of identifiers on either side of training, and of
low-sensitivity text: rows and contrasts by group, and then what is claimed of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.base import Context
from spark_audit.audits.identifiers import ENOUGH, REPRODUCED, comparable, sides_of
from spark_audit.data.occurrences import dose_group
from spark_audit.names import (
    BASE,
    CONTROL,
    RELEARN,
    ROUNDINGS,
    CheckpointName,
    entry_of,
    original_of,
)
from spark_audit.results import Claim, Contrast, Estimate, Finding, Hits, Row, side_of
from spark_audit.results.findings import Fact, Power
from spark_audit.stats import bootstrap, intervals, matching, memory_contrast
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
    def groups(self) -> list[Pairs]:
        """Matched pairs by group."""
        return [*_groups(self.every)]

    @cached_property
    def references(self) -> set[str]:
        """Checkpoints that score as the matching reference does."""
        pooled = [group for group in self.groups if group.name == "pooled"]
        nll = self.nll.items()
        return {k for group in pooled for k, sums in nll if group.is_reference(sums)}


# --- matched pairs --------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """One group's pairs and windows, for all checkpoints.

    ``pii`` and ``control`` are the sides of the pairs and ``pool`` the windows, by
    their places in the evidence, with cluster ``code`` and ``cell``, the number of
    (example, length); ``windows`` are the reference's means over spans and pool.
    """

    name: str
    pii: pd.DataFrame
    control: pd.DataFrame
    pool: pd.DataFrame
    windows: matching.Windows

    @cached_property
    def residual(self) -> np.ndarray:
        """What matching left over: PII sum minus control sum of the reference, nats."""
        ours, theirs = (side["ref_sum"] for side in (self.pii, self.control))
        return np.asarray(ours.to_numpy() - theirs.to_numpy())

    def mean(self, values: np.ndarray) -> intervals.Estimand:
        """Mean of the pairs' values per token."""
        columns = np.stack([values, self.pii["n_tokens"]], axis=1)
        sums = bootstrap.cluster_sums(
            columns, self.pii["code"], self.windows.n_clusters
        )
        return intervals.Estimand(
            sums, intervals.ratio, int(self.pii["n_tokens"].sum())
        )

    def means(self, nll: np.ndarray) -> np.ndarray:
        """Mean NLL of the windows, nats per token."""
        return np.asarray(nll[self.pool.index] / self.pool["n_tokens"])

    def apart(self, nll: np.ndarray) -> np.ndarray:
        """NLL of each pair's identifier minus that of its control, nats."""
        return np.asarray(nll[self.pii.index] - nll[self.control.index])

    def is_reference(self, nll: np.ndarray) -> bool:
        """Whether a checkpoint scores windows and pairs as the reference did."""
        pairs = (self.apart(nll) - self.residual) / self.pii["n_tokens"]
        windows = self.means(nll) - self.windows.pool
        change = np.abs(np.concatenate([pairs, windows]))
        return bool(len(change)) and float(change.max()) <= REPRODUCED


def _groups(units: pd.DataFrame) -> Iterator[Pairs]:
    """Train rows pooled, by task and by type, and test rows.

    The windows of a group are those of the cells of its spans.
    """
    units = units.assign(
        cell=units.groupby(["example", "n_tokens"]).ngroup(),
        mean=units["ref_sum"] / units["n_tokens"],
    )
    cells, roles = units["cell"].to_numpy(), units["role"]
    spans = roles.isin(["pii", "control", "unmatched"]).to_numpy()
    windows = (roles == "window").to_numpy()
    for split, whole in (("train", "pooled"), ("test", "split:test")):
        inside = (units["split"] == split).to_numpy()
        if not inside.any():
            continue
        codes, clusters = pd.factorize(units["cluster"].where(inside), sort=True)
        chosen = [(whole, inside)]
        for column in ("task", "type") if split == "train" else ():
            values = units[column].to_numpy()
            for value in sorted(set(values[inside & spans])):
                held = inside & spans & (values == value)
                pool = inside & windows & np.isin(cells, cells[held])
                chosen.append((f"{column}:{value}", held | pool))
        for name, kept in chosen:
            part = units[kept].assign(code=codes[kept])
            pairs, free = part.sort_values("pair", kind="stable"), part[windows[kept]]
            every = part[part["role"].isin(["pii", "unmatched"])]
            reference = matching.Windows(
                pool=free["mean"].to_numpy(),
                pool_clusters=free["code"].to_numpy(),
                spans=every["mean"].to_numpy(),
                span_tokens=every["n_tokens"].to_numpy(),
                span_clusters=every["code"].to_numpy(),
                n_clusters=len(clusters),
                pool_cells=free["cell"].to_numpy(),
                span_cells=every["cell"].to_numpy(),
            )
            # Of many windows all columns would not fit.
            pairs = pairs[["role", "n_tokens", "ref_sum", "code"]]
            pii, control = (pairs[pairs["role"] == side] for side in ("pii", "control"))
            yield Pairs(name, pii, control, free[["n_tokens"]], reference)


def pair_figures(known: UnitScores) -> tuple[list[Row], list[Contrast]]:
    """Figures of the matched pairs in every group of train and of test rows."""
    rows, contrasts = list[Row](), list[Contrast]()
    nll, context = known.nll, known.context
    options = {"replicates": context.replicates, "seed": context.seed}
    weights_of = cache(partial(bootstrap.draw_weights, **options))
    if all(group.name != "pooled" for group in known.groups):
        rows += _without_pairs(nll, "pooled")
    for group in known.groups:
        if len(group.pii):
            references = {name for name in nll if group.is_reference(nll[name])}
            weights = weights_of(group.windows.n_clusters)
            rows += _pair_rows(known, group, references, weights)
            contrasts += _did_rows(known, group, references, weights)
            continue
        rows += _without_pairs(nll, group.name)
        for pair, metric in product(context.baselines.items(), ("did", "rtm_bias")):
            contrasts.append(_contrast(NO_PAIRS, *pair, group.name, metric))
    return rows, contrasts


def _without_pairs(names: Collection[str], group: str) -> Iterator[Row]:
    """Rows of a group that has no matched span."""
    metrics = ("nll_pii", "nll_control", "delta_sel", "rtm_bias")
    for name, metric in product(names, metrics):
        yield row_of(NO_PAIRS, checkpoint=name, group=group, metric=metric)


def _pair_rows(
    known: UnitScores,
    group: Pairs,
    references: Collection[str],
    weights: bootstrap.Weights,
) -> Iterator[Row]:
    """NLL of either side, Delta_sel, its change and R1 of each checkpoint."""
    sums: dict[tuple[str, str, str], intervals.Estimand | Estimate] = {}
    residual = float(group.residual.sum() / group.pii["n_tokens"].sum())
    for name, values in known.nll.items():
        pii, control = values[group.pii.index], values[group.control.index]
        change: intervals.Estimand | Estimate = Estimate.missing(REFERENCE)
        bias = shifted = change
        if name not in references:
            change = group.mean(pii - group.residual - control)
            bias = shifted = matching.rtm_bias(group.windows, group.means(values))
        if isinstance(bias, intervals.Estimand):
            # A pair that matching left ``d`` nats apart is expected at ``(1 - beta)
            # gap + beta d`` without an effect: its change at ``(1 - beta) (gap - d)``.
            shifted = bias.plus(float(matching.slope(bias.sums.sum(axis=0))) * residual)
        sums |= {
            (name, "nll_pii", ""): group.mean(pii),
            (name, "nll_control", ""): group.mean(control),
            (name, "delta_sel", ""): group.mean(pii - control),
            (name, "delta_sel", "change"): change,
            (name, "rtm_bias", ""): bias,
            (name, "rtm_bias", "change"): shifted,
        }
        if group.name == "pooled":
            tokens, codes = group.pii["n_tokens"], group.pii["code"]
            size = group.windows.n_clusters
            more = matching.reweighted(pii, control, tokens, codes, n_clusters=size)
            sums |= {(name, "delta_sel", of): one for of, one in more.items()}
    nulls = {("delta_sel", ""): residual, ("delta_sel", "change"): 0.0}
    estimates = intervals.estimates_of(sums, intervals.replicates_of(sums, weights))
    for (name, metric, of), estimate in estimates.items():
        shown = with_mde(estimate) if metric == "delta_sel" else estimate
        where = {"checkpoint": name, "group": group.name, "metric": metric, "of": of}
        shown = shown.decided(paper=known.context.paper)
        yield row_of(shown, null=nulls.get((metric, of)), **where)


def _did_rows(
    known: UnitScores,
    group: Pairs,
    references: Collection[str],
    weights: bootstrap.Weights,
) -> list[Contrast]:
    """DiD and its R1 of each checkpoint and baseline.

    The pooled DiD of methods are one family, corrected by max-T; smallest effects are
    those that pass its first step among so many tests (by Bonferroni's bound).
    """
    sums: dict[tuple[str, str, str], intervals.Estimand | Estimate] = {}
    scores: dict[tuple[str, str], np.ndarray] = {}
    nll, seed = known.nll, known.context.seed
    for name, other in known.context.baselines.items():
        did = group.mean(group.apart(nll[name] - nll[other]))
        means = group.means(nll[name]), group.means(nll[other])
        scores[name, other] = did.sums[:, 0]
        sums[name, other, "did"] = did
        sums[name, other, "rtm_bias"] = matching.rtm_bias(group.windows, *means)
    made: list[Contrast] = []
    estimates = intervals.estimates_of(sums, intervals.replicates_of(sums, weights))
    for (name, other, metric), estimate in estimates.items():
        more: dict[str, Any] = {}
        if metric == "did":
            estimate = with_mde(estimate)
            more = {"null": 0.0, "note": OF_REFERENCE if other in references else ""}
            if estimate.value is not None:
                more["p"] = bootstrap.sign_flip(scores[name, other], seed=seed)
        shown = estimate.decided(paper=known.context.paper)
        made.append(_contrast(shown, name, other, group.name, metric, **more))
    tested = [i for i, row in enumerate(made) if _is_primary(row) and row.p is not None]
    if not tested:
        return made
    tests = [scores[made[i].checkpoint, made[i].baseline] for i in tested]
    corrected = bootstrap.max_t(np.stack(tests, axis=1), seed=seed).tolist()
    for i, p in zip(tested, corrected, strict=True):
        row, least = made[i], made[i].mde
        if least is not None:
            size, level = partial(mde, 1.0, clusters=row.clusters), 1 - row.level
            least *= size(level=1 - level / len(tests)) / size(level=row.level)
        made[i] = row.model_copy(update={"p_adjusted": p, "mde": least})
    return made


def _contrast(
    estimate: Estimate, name: str, other: str, group: str, metric: str, **more: Any
) -> Contrast:
    """A contrast; single seeds, and what was made of the other, are no tests."""
    single = group == "pooled" and entry_of(name) == name and original_of(name) != other
    columns = {"checkpoint": name, "baseline": other, "group": group, "metric": metric}
    family = "primary" if single else "exploratory"
    return contrast_of(estimate, family=family, **columns, **more)


def _is_primary(row: Contrast) -> bool:
    """Whether a contrast is of the family that is corrected together."""
    return row.metric == "did" and row.family == "primary"


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

    ``spans`` are units, by their places in the evidence; ``control`` has the place of
    each pair's control.
    """

    group: str
    spans: pd.DataFrame
    control: pd.Series

    @cached_property
    def sides(self) -> memory_contrast.Sides:
        """Where they stand."""
        return sides_of(self.spans)

    @cached_property
    def matched(self) -> tuple[np.ndarray, np.ndarray, memory_contrast.Sides]:
        """Places of those with a control, of their controls, and where they stand."""
        paired = (self.spans["role"] == "pii").to_numpy()
        pii = self.spans[paired]
        control = self.control[pii["pair"]].to_numpy()
        return pii.index.to_numpy(), control, self.sides[paired]

    @cached_property
    def before(self) -> Estimate:
        """Trained minus never trained on the reference, nats per token."""
        return memory_contrast.memory(
            self.spans["ref_sum"].to_numpy(), self.sides
        ).difference

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
        clusters = self.spans["cluster"].nunique()
        shown = Estimate(auc, clusters=clusters)
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
        sides, own_change = self.sides, change[self.spans.index]
        own = memory_contrast.memory(own_change, sides)
        p, least = own.t_p(null=self.reach), 0.0
        if seed is not None and p is not None and (self.spans["form"] > 0).all():
            # Chance dealt them to the sides: what it could have dealt is known.
            dealt = memory_contrast.permutation_p(own_change, sides, seed=seed)
            if dealt is not None:
                p, least = max(p, dealt), memory_contrast.least_p(sides)
        se = own.difference.se
        test = Power(test="t", se=se, df=own.freedom, beyond=self.reach, least_p=least)
        pii, control, matched = self.matched
        apart = change[pii] - change[control]
        beyond = memory_contrast.memory(apart, matched, reasons=NO_CONTROL)
        return Moved(own, beyond, self.reach, p, (test,) if se else ())


def unequal(before: Estimate) -> float:
    """Nats by which one side was clearly harder on the reference already; else 0."""
    return 0.0 if side_of(before) == 0 else abs(before.value or 0.0)


def all_occurrences(units: pd.DataFrame) -> Iterator[Occurrences]:
    """All identifiers, those of each type, and those of each dose with all held out.

    Identifiers of trained rows, and those that stand in no trained row. A type or dose
    that is the only one has no group of its own.
    """
    spans = units[units["role"].isin(["pii", "unmatched"])]
    spans, _ = comparable(spans[(spans["split"] == "train") | (spans["dose"] == 0)])
    control = units[units["role"] == "control"]
    places = pd.Series(control.index, index=control["pair"])
    yield Occurrences("pooled", spans, places)
    trained = spans["split"] == "train"
    doses = spans["dose"].clip(lower=1).map(dose_group).where(trained, "")
    by_dose = doses[spans[trained].sort_values("dose", kind="stable").index]
    for name, values, known, held in (
        ("type", spans["type"], sorted(set(spans["type"][trained])), False),
        ("dose", doses, list(by_dose.unique()), ~trained),
    ):
        for value in known if len(known) > 1 else ():
            chosen = spans[(values == value) | held]
            yield Occurrences(f"{name}:{value}", chosen, places)


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
        spans = groups[0].spans
        trend = memory_contrast.dose_trend(
            change[spans.index], groups[0].sides, spans["dose"]
        )
        drift = _low_drift(known.train, change)
    rows, none = list[Row](), {"null": 0.0}
    for group, found in tests.items():
        own, beyond = found.own, found.beyond
        band = {**none, "null_low": -found.reach, "null_high": found.reach}
        row = partial(row_of, checkpoint=name, group=group)
        rows += [
            row(own.trained, metric="pii_change", of="trained"),
            row(own.held_out, metric="pii_change", of="never-trained"),
            row(own.difference, metric="memory", **band),
            row(beyond.held_out, metric="kind", **none),
            row(beyond.difference, metric="specific", **none),
        ]
    rows.append(row_of(trend, checkpoint=name, metric="memory", of="trend", **none))
    rows.append(row_of(drift, checkpoint=name, metric="low_change"))
    return rows, tests


def contrasts_of(known: UnitScores, name: str, baseline: str) -> Iterator[Contrast]:
    """Identifiers on either side and low-sensitivity text against the baseline's.

    Memory is linear in the change since the reference, which both share: what is left
    of the difference is how far the two are apart. ``did_alike`` is the mean over
    matched identifiers' tokens minus that over other tokens of their classes.
    """
    contrast = partial(contrast_of, checkpoint=name, baseline=baseline)
    apart = known.nll[name] - known.nll[baseline]
    train = known.train.assign(apart=apart[known.train.index])
    pii, alike = (train[train["role"] == role] for role in ("pii", "alike"))
    yield contrast(_low_drift(train, apart), metric="low_change")
    for each in known.sides:
        moved = memory_contrast.memory(apart[each.spans.index], each.sides)
        more = {"group": each.group, "null": 0.0, "p": moved.t_p()}
        yield contrast(moved.difference, metric="memory", **more)
    sums = pii.groupby("cluster")[["apart", "n_tokens"]].sum()
    found = intervals.ratio_estimate(sums["apart"], sums["n_tokens"])
    yield contrast(found, metric="nll_pii", null=0.0)
    held = alike.groupby("type")["cluster"].nunique()
    letters = [letter for letter in CLASSES if held.get(letter, 0) >= FEWEST_ALIKE]
    unknown = [name for letter, name in CLASSES.items() if letter not in letters]
    used = pii[~(pii[unknown] > 0).any(axis=1)]
    found = Estimate.missing(NONE_ALIKE)
    if len(used):
        names = [CLASSES[letter] for letter in letters]
        own = used.groupby("cluster")[["apart", "n_tokens", *names]].sum()
        # Changes of all these classes, and then their tokens.
        wanted = [*product(("apart", "n_tokens"), letters)]
        other = alike.pivot_table(
            index="cluster", columns="type", values=["apart", "n_tokens"], aggfunc="sum"
        ).reindex(columns=wanted)
        clusters = own.index.union(other.index)
        parts = [part.reindex(clusters).fillna(0.0).to_numpy() for part in (own, other)]

        def statistic(totals: np.ndarray) -> np.ndarray:
            counts, sums, others = np.split(totals[..., 2:], 3, axis=-1)
            expected = (counts * sums / others).sum(axis=-1)
            return np.asarray((totals[..., 0] - expected) / totals[..., 1])

        found = intervals.estimate_of(
            np.hstack(parts), statistic, n=int(used["n_tokens"].sum())
        )
        if left := len(pii) - len(used):
            left_out = f"{left} of {len(pii)} identifiers left out: {NONE_ALIKE}"
            found = found.noting(left_out)
    yield contrast(found, metric="did_alike", null=0.0)


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
FEWEST = 5
"""Clusters of trained identifiers of a dose whose smallest effect is told."""
_tested = partial(Finding.on, family="primary")
"""One of the tests that were declared beforehand."""


def findings(
    known: UnitScores, rows: Sequence[Row], tested: Mapping[str, Mapping[str, Moved]]
) -> Iterator[Finding]:
    """What is said of each method; single replicates of one have no finding.

    ``tested`` are the tests of no memory, by checkpoint and group.
    """
    changes, whole, ours = known.changes, known.sides[0], known.train
    entries = {entry_of(name) for name in changes if entry_of(name) != name}
    pii, sides = ours[ours["role"] == "pii"], whole.sides
    total, trained = int(ours["role"].isin(["pii", "unmatched"]).sum()), sides.trained
    # Trained identifiers that have nothing to be compared with.
    counts = {
        "without_counterpart": int((trained & (sides.cells < 0)).sum()),
        "untold": total - int(trained.sum()),
    }
    lost = {k: Hits(count=count, of=total) for k, count in counts.items() if count}
    for name, change in changes.items():
        # The relearned base is what others are held against.
        if entry_of(name) != name or name == CONTROL:
            continue
        told = {(r.metric, r.of, r.group): r for r in rows if r.checkpoint == name}
        seeds, reference = name in entries, name in known.references
        row = told["memory", "", "pooled"]
        facts = {**_compared(told, "pooled"), "seeds": seeds, **lost}
        if not reference and row.value is None:
            yield _unknown(row, "not_tested", facts)
        elif not reference and whole.told_apart:
            facts |= whole.by_text(name)
            yield Finding.on(row, "confounded", "matched.confounded", facts=facts)
        elif not reference:
            yield from _memory_findings(told, tested[name], facts)
        moved = pooled_change(pii, change)
        yield _selectivity_finding(told, moved, reference=reference, seeds=seeds)


def returned(
    known: UnitScores, told: Sequence[Finding]
) -> Iterator[tuple[Contrast, Row, Finding | None]]:
    """What came back to the original of each relearned checkpoint, with a known base.

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
        if not relearned or not {CONTROL, BASE, original} <= nll.keys():
            continue
        moved = nll[name] - nll[CONTROL]
        change = moved - (nll[original] - nll[BASE])
        tests = [whole.moved(values, seed=seed) for values in (change, moved)]
        back, then = (test.own.difference for test in tests)
        own = {"checkpoint": name, "metric": "returned", "null": 0.0}
        row = contrast_of(back, baseline=original, p=tests[0].p, **own)
        after = row_of(then, of="after", **own)
        facts = {"returned": row, "after": after, "original": original}
        ps = [test.p for test in tests if test.p is not None]
        finding = None
        if row.value is None or len(ps) < len(tests):
            finding = _unknown(row, "return_missing", facts)
        elif name not in unclear and original in shown:
            says = "matched.return_known"
            finding = Finding.on(row, "nothing_shown", says, facts=facts)
        elif name not in unclear:
            both = all(
                memory_contrast.claim_of(each) == "memory" for each in (row, after)
            )
            says = f"matched.{'returned' if both else 'not_returned'}"
            power = [each for test in tests for each in test.power]
            claim: Claim = "memory" if both else "nothing_shown"
            finding = _tested(row, claim, says, facts=facts, p=max(ps), power=power)
        yield row, after, finding


def _unknown(row: Row, says: str, facts: Mapping[str, Any]) -> Finding:
    """That nothing can be said, for the row's reason."""
    facts = {**facts, "reason": row.note}
    return Finding.on(row, "not_tested", f"matched.{says}", facts=facts)


def _compared(rows: Told, group: str) -> dict[str, Any]:
    """The figure of a comparison, and both of its sides."""
    return {
        "memory": rows["memory", "", group],
        "trained": rows["pii_change", "trained", group],
        "held_out": rows["pii_change", "never-trained", group],
    }


def _memory_findings(
    rows: Told, tests: Mapping[str, Moved], facts: dict[str, Any]
) -> Iterator[Finding]:
    """Whether identifiers that were trained on moved as others of their kind did.

    Of all of them, and of those that stand in most trained rows: these two are tests
    declared beforehand.
    """
    doses = [key[2] for key in rows if key[0] == "memory" and key[2][:5] == "dose:"]
    row, kind = rows["memory", "", "pooled"], rows["kind", "", "pooled"]
    # By themselves too: next to text that drifted up, what stood still looks learned.
    never = rows["pii_change", "never-trained", "pooled"]
    claim = memory_contrast.claim_of(row)
    power = [
        *tests["pooled"].power,
        *(
            each.model_copy(update={"of": group})
            for group in doses
            # Of fewer it says next to nothing, and nothing that may be shared.
            if rows["pii_change", "trained", group].clusters >= FEWEST
            for each in tests[group].power
        ),
    ]
    says: str = claim
    if claim not in ("memory", "betrays"):
        says = "nothing"
        if row.ends is None:
            says = "no_interval"
        elif side_of(row):
            says = "unequal"
        elif _clear(never) < 0 and _clear(kind) < 0:
            claim, says, facts["kind"] = "formats", "formats", kind
    p = tests["pooled"].p
    yield _tested(row, claim, f"matched.{says}", facts=facts, p=p, power=power)
    if not doses:
        return
    row = rows["memory", "", doses[-1]]
    facts = {**_compared(rows, doses[-1]), "dose": row.grouping[1]}
    if row.value is None:
        facts["reason"], says = row.note, "matched.dose_missing"
        yield Finding.on(row, "nothing_shown", says, facts=facts)
        return
    claim, test = memory_contrast.claim_of(row), tests[row.group]
    says = f"matched.dose_{claim if claim in ('memory', 'betrays') else 'nothing'}"
    yield _tested(row, claim, says, facts=facts, p=test.p, power=[*test.power])


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
        return Finding.on(row, "nothing_shown", "matched.reference", facts=facts)
    change = rows["delta_sel", "change", "pooled"]
    if change.value is None:
        facts["reason"] = change.note
        return Finding.on(row, "not_tested", "matched.no_change", facts=facts)
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
    claim: Claim = "moved" if side else "nothing_shown"
    return Finding.on(change, claim, f"matched.delta_sel_{says}", facts=facts)


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
    pooled = [row for row in contrasts if row.group == "pooled"]
    by_pair = {(row.checkpoint, row.baseline, row.metric): row for row in pooled}
    dids = [row for row in pooled if row.metric == "did"]
    for row in dids:
        who, base = row.checkpoint, row.baseline
        rounded = CheckpointName.parse(who).derived in ROUNDINGS
        if not _is_primary(row) and not (rounded and original_of(who) == base):
            continue
        facts: dict[str, Any] = {"did": row, "baseline": base, "seeds": who in entries}
        if row.value is None:
            yield _unknown(row, "did_missing", facts)
            continue
        drift, own, alike = (
            by_pair[who, base, metric]
            for metric in ("low_change", "nll_pii", "did_alike")
        )
        facts |= {
            "p": row.p if row.p_adjusted is None else row.p_adjusted,
            "adjusted": row.p_adjusted is not None,
            "drift": None if drift.value is None else drift,
            "drift_own": drifts.get(who),
            "drift_baseline": drifts.get(base),
            "own": own,
            "alike": alike,
        }
        spread = [
            one.value
            for one in dids
            if one.baseline == base and one.checkpoint in ordinary
            if who not in ordinary and one.value is not None
        ]
        claim, says = _against(facts, spread)
        yield Finding.on(row, claim, f"matched.did_{says}", facts=facts)


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
