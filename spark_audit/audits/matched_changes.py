"""Changes since the reference and against a baseline: rows and contrasts by group.

Of matched pairs (Delta_sel and DiD), of identifiers on either side, and of
low-sensitivity text.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from spark_audit.results import (
    Claim,
    Contrast,
    Estimate,
    Family,
    Finding,
    Hits,
    Row,
    side_of,
)
from spark_audit.results.findings import Fact, Power
from spark_audit.stats.bootstrap import (
    Weights,
    cluster_sums,
    draw_weights,
    max_t,
    sign_flip,
)
from spark_audit.stats.intervals import (
    Estimand,
    estimate_of,
    estimates_of,
    ratio,
    ratio_estimate,
    replicates_of,
)
from spark_audit.stats.memory_contrast import (
    Memory,
    Sides,
    claim_of,
    dose_trend,
    least_p,
    memory,
    permutation_p,
)
from spark_audit.stats.power import mde, with_mde
from spark_audit.stats.selectivity import (
    Windows,
    reweighted,
    rtm_bias,
    slope,
    unlike_drift,
)

row_of = partial(Row.of_estimate, audit="matched", unit="nats")
contrast_of = partial(Contrast.of_estimate, audit="matched", unit="nats")
CLASSES = {"d": "digits", "A": "capitals", "a": "letters", "-": "marks"}
"""Classes of tokens, and the columns that count an identifier's tokens of each."""
NO_PAIRS = "this group has no matched identifier"
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
OF_PAIRS = ("nll_pii", "nll_control", "delta_sel", "rtm_bias")
"""Metrics that a group without a matched span lacks."""
AGAINST = ("did", "rtm_bias")


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

    own: Memory
    beyond: Memory
    reach: float = 0.0
    p: float | None = None
    power: tuple[Power, ...] = ()


@dataclass(frozen=True)
class Group:
    """One group's pairs and windows: places in the evidence, for all checkpoints.

    ``pii`` and ``control`` are the sides of the pairs, with ``tokens`` and cluster
    ``codes``; ``residual`` is what matching left over, the reference's PII sum minus
    its control sum, nats; ``pool`` are the windows, ``windows`` the reference's means
    over spans and pool. Cells are the numbers of (example, length).
    """

    name: str
    pii: np.ndarray
    control: np.ndarray
    tokens: np.ndarray
    codes: np.ndarray
    residual: np.ndarray
    pool: np.ndarray
    pool_tokens: np.ndarray
    windows: Windows

    def mean(self, values: np.ndarray) -> Estimand:
        """Mean of the pairs' values per token."""
        columns = np.stack([values, self.tokens], axis=1)
        sums = cluster_sums(columns, self.codes, self.windows.n_clusters)
        return Estimand(sums, ratio, round(float(self.tokens.sum())))

    def means(self, nll: np.ndarray) -> np.ndarray:
        """Mean NLL of the windows, nats per token."""
        return np.asarray(nll[self.pool] / self.pool_tokens)

    def is_reference(self, nll: np.ndarray) -> bool:
        """Whether a checkpoint scores windows and pairs as the reference did."""
        pairs = (nll[self.pii] - nll[self.control] - self.residual) / self.tokens
        windows = self.means(nll) - self.windows.pool
        change = np.abs(np.concatenate([pairs, windows]))
        return bool(len(change)) and float(change.max()) <= REPRODUCED


def groups(units: pd.DataFrame) -> Iterator[Group]:
    """Train rows pooled, by task and by type, and test rows.

    The windows of a group are those of the cells of its spans.
    """
    cells = units.groupby(["example", "n_tokens"]).ngroup().to_numpy()
    roles, splits = units["role"], units["split"]
    spans = roles.isin(["pii", "control", "unmatched"]).to_numpy()
    windows = (roles == "window").to_numpy()
    for split, whole in (("train", "pooled"), ("test", "split:test")):
        inside = (splits == split).to_numpy()
        if not inside.any():
            continue
        labels, clusters = pd.factorize(units["cluster"].where(inside), sort=True)
        chosen = [(whole, inside)]
        for column in ("task", "type") if split == "train" else ():
            values = units[column].to_numpy()
            for value in sorted(set(values[inside & spans])):
                held = inside & spans & (values == value)
                pool = inside & windows & np.isin(cells, cells[held])
                chosen.append((f"{column}:{value}", held | pool))
        for name, kept in chosen:
            yield _group(name, units[kept], labels[kept], cells[kept], len(clusters))


def _group(
    name: str, part: pd.DataFrame, codes: np.ndarray, cells: np.ndarray, size: int
) -> Group:
    mean = part["ref_sum"] / part["n_tokens"]
    part = part.assign(code=codes, cell=cells, mean=mean)
    ordered = part.sort_values("pair", kind="stable")
    pii, control = (ordered[ordered["role"] == side] for side in ("pii", "control"))
    pool = part[part["role"] == "window"]
    spans = part[part["role"].isin(["pii", "unmatched"])]
    return Group(
        name=name,
        pii=pii.index.to_numpy(),
        control=control.index.to_numpy(),
        tokens=pii["n_tokens"].to_numpy(np.float64),
        codes=pii["code"].to_numpy(),
        residual=pii["ref_sum"].to_numpy() - control["ref_sum"].to_numpy(),
        pool=pool.index.to_numpy(),
        pool_tokens=pool["n_tokens"].to_numpy(np.float64),
        windows=Windows(
            pool=pool["mean"].to_numpy(),
            pool_clusters=pool["code"].to_numpy(),
            spans=spans["mean"].to_numpy(),
            span_tokens=spans["n_tokens"].to_numpy(),
            span_clusters=spans["code"].to_numpy(),
            n_clusters=size,
            pool_cells=pool["cell"].to_numpy(),
            span_cells=spans["cell"].to_numpy(),
        ),
    )


def by_group(
    groups: Sequence[Group], nll: Mapping[str, np.ndarray], context: Context
) -> tuple[list[Row], list[Contrast], set[str]]:
    """Figures of the matched pairs in every group of train and of test rows.

    Parameters
    ----------
    nll
        Summed NLL of the units by checkpoint, nats.

    Returns
    -------
    Rows, contrasts, and the checkpoints that score as the matching reference does.
    """
    rows, contrasts, alike = list[Row](), list[Contrast](), set[str]()
    # Per-cluster sums that the tests of primary contrasts rest on.
    tests: dict[str, np.ndarray] = {}
    options = {"replicates": context.replicates, "seed": context.seed}
    weights_of = cache(partial(draw_weights, **options))
    for group in groups:
        references = {name for name in nll if group.is_reference(nll[name])}
        if group.name == "pooled":
            alike = references
        if not len(group.pii):
            rows += missing_rows(nll, group.name)
            missing = Estimate.missing(NO_PAIRS)
            for pair, metric in product(context.baselines.items(), AGAINST):
                contrasts.append(_contrast(missing, pair, group.name, metric))
            continue
        weights = weights_of(group.windows.n_clusters)
        rows += _pair_rows(group, nll, references, weights, context)
        sums = dict(_dids(group, nll, context.baselines))
        for key, estimate in estimates_of(sums, replicates_of(sums, weights)).items():
            (name, baseline, metric), own = key, sums[key]
            more: dict[str, Any] = {}
            if metric == "did" and isinstance(own, Estimand):
                estimate, scores = with_mde(estimate), own.sums[:, 0]
                note = OF_REFERENCE if baseline in references else ""
                more = {"null": 0.0, "note": note}
                if estimate.value is not None:
                    more["p"] = sign_flip(scores, seed=context.seed)
                    if _family(name, baseline, group.name) == "primary":
                        tests[name] = scores
            shown = estimate.decided(paper=context.paper)
            pair = name, baseline
            contrasts.append(_contrast(shown, pair, group.name, metric, **more))
    return rows, _adjusted(contrasts, tests, context.seed), alike


def missing_rows(names: Iterable[str], group: str) -> list[Row]:
    """Rows of a group that has no matched span."""
    missing = Estimate.missing(NO_PAIRS)
    return [
        row_of(missing, checkpoint=name, group=group, metric=metric)
        for name in names
        for metric in OF_PAIRS
    ]


def _pair_rows(
    group: Group,
    nll: Mapping[str, np.ndarray],
    references: Collection[str],
    weights: Weights,
    context: Context,
) -> Iterator[Row]:
    """NLL of either side, Delta_sel, its change and R1 of each checkpoint."""
    sums: dict[tuple[str, str, str], Estimand | Estimate] = {}
    residual = float(group.residual.sum() / group.tokens.sum())
    for name, values in nll.items():
        pii, control = values[group.pii], values[group.control]
        change: Estimand | Estimate = Estimate.missing(REFERENCE)
        bias = shifted = change
        if name not in references:
            change = group.mean(pii - group.residual - control)
            bias = shifted = rtm_bias(group.windows, group.means(values))
        if isinstance(bias, Estimand):
            # A pair that matching left ``d`` nats apart is expected at ``(1 - beta)
            # gap + beta d`` without an effect: its change at ``(1 - beta) (gap - d)``.
            shifted = bias.plus(float(slope(bias.sums.sum(axis=0))) * residual)
        sums |= {
            (name, "nll_pii", ""): group.mean(pii),
            (name, "nll_control", ""): group.mean(control),
            (name, "delta_sel", ""): group.mean(pii - control),
            (name, "delta_sel", "change"): change,
            (name, "rtm_bias", ""): bias,
            (name, "rtm_bias", "change"): shifted,
        }
        if group.name == "pooled":
            where, size = (group.tokens, group.codes), group.windows.n_clusters
            for of, one in reweighted(pii, control, *where, n_clusters=size).items():
                sums[name, "delta_sel", of] = one
    nulls = {("delta_sel", ""): residual, ("delta_sel", "change"): 0.0}
    estimates = estimates_of(sums, replicates_of(sums, weights))
    for (name, metric, of), estimate in estimates.items():
        shown = with_mde(estimate) if metric == "delta_sel" else estimate
        yield row_of(
            shown.decided(paper=context.paper),
            checkpoint=name,
            group=group.name,
            metric=metric,
            of=of,
            null=nulls.get((metric, of)),
        )


def _dids(
    group: Group, nll: Mapping[str, np.ndarray], baselines: Mapping[str, str]
) -> Iterator[tuple[tuple[str, str, str], Estimand | Estimate]]:
    """DiD and its R1 of each checkpoint and baseline."""
    for name, baseline in baselines.items():
        moved = nll[name] - nll[baseline]
        did = group.mean(moved[group.pii] - moved[group.control])
        yield (name, baseline, "did"), did
        means = group.means(nll[name]), group.means(nll[baseline])
        yield (name, baseline, "rtm_bias"), rtm_bias(group.windows, *means)


def _contrast(
    estimate: Estimate, pair: tuple[str, str], group: str, metric: str, **more: Any
) -> Contrast:
    columns = {"checkpoint": pair[0], "baseline": pair[1], "group": group}
    family = _family(*pair, group)
    return contrast_of(estimate, metric=metric, family=family, **columns, **more)


def is_derived(name: str, baseline: str) -> bool:
    """Whether a checkpoint was made of its baseline, by its name."""
    return name != baseline and original_of(name) == baseline


def _family(name: str, baseline: str, group: str) -> Family:
    """The pooled DiD of methods is primary; single seeds and variants are not."""
    single = entry_of(name) == name and not is_derived(name, baseline)
    return "primary" if group == "pooled" and single else "exploratory"


def is_primary(row: Contrast) -> bool:
    """Whether a contrast is of the family that is corrected together."""
    return row.metric == "did" and row.family == "primary"


def has_sentence(row: Contrast) -> bool:
    """Whether a contrast has a sentence: the primary ones, and those of rounding."""
    rounded = row.group == "pooled" and is_derived(row.checkpoint, row.baseline)
    rounded &= CheckpointName.parse(row.checkpoint).derived in ROUNDINGS
    return is_primary(row) or (row.metric == "did" and rounded)


def _adjusted(
    contrasts: list[Contrast], tests: dict[str, np.ndarray], seed: int
) -> list[Contrast]:
    """The pooled DiD of all checkpoints as one family, by max-T.

    Smallest effects are those that pass its first step among so many tests (by
    Bonferroni's bound).
    """
    if not tests:
        return contrasts
    scores = np.stack(list(tests.values()), axis=1)
    corrected = dict(zip(tests, max_t(scores, seed=seed).tolist(), strict=True))
    made = []
    for row in contrasts:
        if is_primary(row) and row.checkpoint in corrected:
            least = row.mde
            if least is not None:
                size, level = partial(mde, 1.0, clusters=row.clusters), 1 - row.level
                least *= size(level=1 - level / len(tests)) / size(level=row.level)
            changes = {"p_adjusted": corrected[row.checkpoint], "mde": least}
            row = row.model_copy(update=changes)
        made.append(row)
    return made


NONE_ALIKE = "no other text has tokens of the same classes as these identifiers"
FEWEST_ALIKE = 2
"""Clusters that must hold other tokens of a class."""


def own_contrasts(name: str, baseline: str, train: pd.DataFrame) -> list[Contrast]:
    """NLL of matched identifiers against the baseline's, and beyond look-alikes.

    Parameters
    ----------
    train
        Units of train rows, with their NLL minus the baseline's as ``apart``.
    """
    pii = train[train["role"] == "pii"]
    sums = pii.groupby("cluster")[["apart", "n_tokens"]].sum()
    own = ratio_estimate(sums["apart"], sums["n_tokens"])
    columns: dict[str, Any] = {"checkpoint": name, "baseline": baseline, "null": 0.0}
    return [
        contrast_of(own, metric="nll_pii", **columns),
        contrast_of(_beyond(train, pii), metric="did_alike", **columns),
    ]


def _beyond(both: pd.DataFrame, pii: pd.DataFrame) -> Estimate:
    """Mean over identifiers' tokens minus that over other tokens of their classes."""
    alike = both[both["role"] == "alike"]
    held = alike.groupby("type")["cluster"].nunique()
    letters = [letter for letter in CLASSES if held.get(letter, 0) >= FEWEST_ALIKE]
    unknown = [name for letter, name in CLASSES.items() if letter not in letters]
    used = pii[~(pii[unknown] > 0).any(axis=1)]
    if used.empty:
        return Estimate.missing(NONE_ALIKE)
    names = [CLASSES[letter] for letter in letters]
    own = used.groupby("cluster")[["apart", "n_tokens", *names]].sum()
    other = alike.pivot_table(
        index="cluster", columns="type", values=["apart", "n_tokens"], aggfunc="sum"
    )
    # Changes of all these classes, and then their tokens.
    other = other.reindex(
        columns=[(v, c) for v in ("apart", "n_tokens") for c in letters]
    )
    clusters = own.index.union(other.index)
    parts = [part.reindex(clusters).fillna(0.0).to_numpy() for part in (own, other)]

    def statistic(totals: np.ndarray) -> np.ndarray:
        counts, sums, others = np.split(totals[..., 2:], 3, axis=-1)
        expected = (counts * sums / others).sum(axis=-1)
        return np.asarray((totals[..., 0] - expected) / totals[..., 1])

    found = estimate_of(np.hstack(parts), statistic, n=int(used["n_tokens"].sum()))
    left = len(pii) - len(used)
    if not left:
        return found
    return found.noting(f"{left} of {len(pii)} identifiers left out: {NONE_ALIKE}")


# --- identifiers on either side, and low-sensitivity text -----------------------------

NO_LOW = "the drift of low-sensitivity text is not known"


def occurrences(part: pd.DataFrame) -> pd.DataFrame:
    """Identifiers of trained rows, and those that stand in no trained row."""
    spans = part[part["role"].isin(["pii", "unmatched"])]
    spans = spans[(spans["split"] == "train") | (spans["dose"] == 0)]
    return comparable(spans)[0]


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
    def sides(self) -> Sides:
        """Where they stand."""
        return sides_of(self.spans)

    @cached_property
    def matched(self) -> tuple[np.ndarray, np.ndarray, Sides]:
        """Places of those with a control, of their controls, and where they stand."""
        paired = (self.spans["role"] == "pii").to_numpy()
        pii = self.spans[paired]
        control = self.control[pii["pair"]].to_numpy()
        return pii.index.to_numpy(), control, self.sides[paired]

    @cached_property
    def before(self) -> Estimate:
        """Trained minus never trained on the reference, nats per token."""
        return memory(self.spans["ref_sum"].to_numpy(), self.sides).difference

    @cached_property
    def reach(self) -> float:
        """By how many nats the sides clearly differed on the reference."""
        return unequal(self.before)

    def left_out(self, units: pd.DataFrame) -> dict[str, Hits]:
        """How many trained identifiers have no control, as facts, if there are any."""
        spans = units["role"].isin(["pii", "unmatched"]) & (units["split"] == "train")
        total, trained = int(spans.sum()), self.sides.trained
        counts = {
            "without_counterpart": int((trained & (self.sides.cells < 0)).sum()),
            "untold": total - int(trained.sum()),
        }
        return {k: Hits(count=count, of=total) for k, count in counts.items() if count}

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
        own = memory(own_change, sides)
        p, least = own.t_p(null=self.reach), 0.0
        if seed is not None and p is not None and (self.spans["form"] > 0).all():
            # Chance dealt them to the sides: what it could have dealt is known.
            dealt = permutation_p(own_change, sides, seed=seed)
            if dealt is not None:
                p, least = max(p, dealt), least_p(sides)
        se = own.difference.se
        test = Power(test="t", se=se, df=own.freedom, beyond=self.reach, least_p=least)
        pii, control, matched = self.matched
        apart = change[pii] - change[control]
        beyond = memory(apart, matched, reasons=NO_CONTROL)
        return Moved(own, beyond, self.reach, p, (test,) if se else ())


def unequal(before: Estimate) -> float:
    """Nats by which one side was clearly harder on the reference already; else 0."""
    return 0.0 if side_of(before) == 0 else abs(before.value or 0.0)


def groups_of(spans: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """All identifiers, those of each type, and those of each dose with all held out.

    A type or dose that is the only one has no group of its own.
    """
    yield "pooled", spans
    trained = spans["split"] == "train"
    doses = spans["dose"].clip(lower=1).map(dose_group).where(trained, "")
    by_dose = doses[spans[trained].sort_values("dose", kind="stable").index]
    for name, values, known, held in (
        ("type", spans["type"], sorted(set(spans["type"][trained])), False),
        ("dose", doses, list(by_dose.unique()), ~trained),
    ):
        for value in known if len(known) > 1 else ():
            yield f"{name}:{value}", spans[(values == value) | held]


def all_occurrences(units: pd.DataFrame) -> list[Occurrences]:
    """Those of each group, all of them first."""
    control = units[units["role"] == "control"]
    places = pd.Series(control.index, index=control["pair"])
    return [Occurrences(*group, places) for group in groups_of(occurrences(units))]


def memory_rows(
    name: str,
    change: np.ndarray,
    groups: Sequence[Occurrences],
    *,
    reference: bool,
    seed: int,
) -> tuple[list[Row], dict[str, Moved]]:
    """The change of identifiers on either side, and their difference, by group.

    Sides that were unequally hard on the reference drift unequally where drift depends
    on difficulty; at most, what they differed by is lost. That is the difference's
    ``null_low`` and ``null_high``.

    Parameters
    ----------
    change
        Change of the NLL of all units since the reference, nats.

    Returns
    -------
    rows
        Of metrics ``pii_change``, ``memory``, ``kind`` and ``specific``.
    tests
        Of no memory, by group.
    """
    if reference:
        lost = Moved(Memory.missing(REFERENCE), Memory.missing(REFERENCE))
        missing = Estimate.missing(REFERENCE)
        return [*_rows(name, "pooled", lost), _trend_row(name, missing)], {}
    # The two groups that claims rest on; doses come last, the highest at the end.
    claimed = {"pooled", groups[-1].group}
    tests = {
        each.group: each.moved(change, seed=seed if each.group in claimed else None)
        for each in groups
    }
    rows = [row for group, one in tests.items() for row in _rows(name, group, one)]
    whole = groups[0]
    spans = whole.spans
    trend = dose_trend(change[spans.index], whole.sides, spans["dose"])
    return [*rows, _trend_row(name, trend)], tests


def memory_contrasts(
    name: str, baseline: str, apart: np.ndarray, groups: Sequence[Occurrences]
) -> Iterator[Contrast]:
    """By how much memory differs from the baseline's, by group.

    Memory is linear in the change since the reference, which both share: what is left
    of the difference is how far the two are ``apart``, nats, of all units.
    """
    for each in groups:
        moved = memory(apart[each.spans.index], each.sides)
        yield contrast_of(
            moved.difference,
            metric="memory",
            checkpoint=name,
            baseline=baseline,
            group=each.group,
            null=0.0,
            p=moved.t_p(),
        )


@dataclass(frozen=True)
class Return:
    """What a short training on other rows brought back, over all identifiers.

    Attributes
    ----------
    row
        ``returned``: by how much ``after`` is below the memory before, nats per token.
        Below 0: trained identifiers became likelier again, others of their kind not.
    after
        Memory after that training. Of both the same of the base, trained alike, is
        taken away.
    moved
        The tests of either: ``row``, and then ``after``.
    """

    row: Contrast
    after: Row
    moved: tuple[Moved, Moved]


def all_returned(
    nll: Mapping[str, np.ndarray], whole: Occurrences, *, seed: int
) -> Iterator[Return]:
    """What came back to the original of each relearned checkpoint, with a known base.

    Drift by the rows of that training moves trained identifiers and others of their
    kind alike; what it moves unequally, it does to the base too.

    Parameters
    ----------
    nll
        Summed NLL of the units by checkpoint, nats.
    """
    for name in nll:
        relearned = CheckpointName.parse(name).derived == RELEARN and name != CONTROL
        if relearned and {CONTROL, BASE, original_of(name)} <= nll.keys():
            yield _returned(name, nll, whole, seed)


def _returned(
    name: str, nll: Mapping[str, np.ndarray], whole: Occurrences, seed: int
) -> Return:
    original = original_of(name)
    after = nll[name] - nll[CONTROL]
    change = after - (nll[original] - nll[BASE])
    moved = tuple(whole.moved(values, seed=seed) for values in (change, after))
    own = {"checkpoint": name, "metric": "returned", "null": 0.0}
    first = moved[0]
    return Return(
        contrast_of(first.own.difference, baseline=original, p=first.p, **own),
        row_of(moved[1].own.difference, of="after", **own),
        (first, moved[1]),
    )


def _rows(name: str, group: str, found: Moved) -> list[Row]:
    own, beyond, none = found.own, found.beyond, {"null": 0.0}
    band = {**none, "null_low": -found.reach, "null_high": found.reach}
    row = partial(row_of, checkpoint=name, group=group)
    return [
        row(own.trained, metric="pii_change", of="trained"),
        row(own.held_out, metric="pii_change", of="never-trained"),
        row(own.difference, metric="memory", **band),
        row(beyond.held_out, metric="kind", **none),
        row(beyond.difference, metric="specific", **none),
    ]


def _trend_row(name: str, trend: Estimate) -> Row:
    return row_of(trend, checkpoint=name, metric="memory", of="trend", null=0.0)


def pooled_change(spans: pd.DataFrame, change: np.ndarray) -> Estimate:
    """Change of the NLL of some spans, nats per token."""
    columns = np.stack([change[spans.index], spans["n_tokens"]], axis=1)
    codes = pd.factorize(spans["cluster"], sort=True)[0]
    return ratio_estimate(*cluster_sums(columns, codes).T)


def low_drift(low: pd.DataFrame, change: np.ndarray) -> Estimate:
    """Change of the NLL of low-sensitivity text, if there is any."""
    return Estimate.missing(NO_LOW) if low.empty else pooled_change(low, change)


Told: TypeAlias = Mapping[tuple[str, str, str], Row]
"""Rows of a checkpoint by metric, variant and group."""
FEWEST = 5
"""Clusters of trained identifiers of a dose whose smallest effect is told."""


def findings(
    rows: Sequence[Row],
    units: pd.DataFrame,
    whole: Occurrences,
    changes: Mapping[str, np.ndarray],
    references: Collection[str],
    tested: Mapping[str, Mapping[str, Moved]],
) -> Iterator[Finding]:
    """What is said of each method.

    Parameters
    ----------
    whole
        All identifiers that are compared.
    changes
        Change of the units' NLL since the reference, nats, by checkpoint; single
        replicates of a method have no finding.
    references
        Checkpoints that score as the matching reference does.
    tested
        The tests of no memory, by checkpoint and group.
    """
    entries = {entry_of(name) for name in changes if entry_of(name) != name}
    lost = whole.left_out(units)
    pii = units[(units["split"] == "train") & (units["role"] == "pii")]
    for name, change in changes.items():
        # The relearned base is what others are held against.
        if entry_of(name) != name or name == CONTROL:
            continue
        of_name = {(r.metric, r.of, r.group): r for r in rows if r.checkpoint == name}
        seeds, reference = name in entries, name in references
        if not reference:
            facts = {**_compared(of_name, "pooled"), "seeds": seeds, **lost}
            doubt = whole.by_text(name) if whole.told_apart else {}
            yield from _memory_findings(of_name, tested[name], facts, doubt)
        moved = pooled_change(pii, change)
        yield _selectivity_finding(of_name, moved, reference=reference, seeds=seeds)


def _memory_findings(
    rows: Told,
    tests: Mapping[str, Moved],
    facts: dict[str, Any],
    doubt: Mapping[str, Any],
) -> Iterator[Finding]:
    """Whether identifiers that were trained on moved as others of their kind did.

    Of all of them, and of those that stand in most trained rows: these two are tests
    declared beforehand. ``doubt`` are facts on why a difference is no memory.
    """
    row = rows["memory", "", "pooled"]
    if row.value is None:
        yield _unknown(row, "not_tested", facts)
        return
    if doubt:
        facts |= doubt
        yield Finding.on(row, "confounded", "matched.confounded", facts=facts)
        return
    doses = [key[2] for key in rows if key[0] == "memory" and key[2][:5] == "dose:"]
    yield _memory(rows, tests, doses, facts)
    if doses:
        yield _highest(rows, tests, doses[-1])


def return_findings(
    found: Iterable[Return], told: Sequence[Finding]
) -> Iterator[Finding]:
    """Whether what a checkpoint did not show came back after a short training.

    Two tests must hold: memory after that training, and that it is more than before,
    both beyond what the same training does to the base. The larger p counts.

    Parameters
    ----------
    told
        All else that is said: of whom memory is shown before, nothing is claimed.
    """
    shown = {f.checkpoint for f in told if f.alone == "memory"}
    unclear = {f.checkpoint for f in told if f.claim == "confounded"}
    for one in found:
        row, after = one.row, one.after
        facts: dict[str, Any] = {"returned": row, "after": after}
        facts["original"] = row.baseline
        ps = [moved.p for moved in one.moved if moved.p is not None]
        if row.value is None or len(ps) < len(one.moved):
            yield _unknown(row, "return_missing", facts)
        elif row.checkpoint in unclear:
            continue
        elif row.baseline in shown:
            says = "matched.return_known"
            yield Finding.on(row, "nothing_shown", says, facts=facts)
        else:
            both = all(claim_of(each) == "memory" for each in (row, after))
            says = "returned" if both else "not_returned"
            power = [each for moved in one.moved for each in moved.power]
            claim: Claim = "memory" if both else "nothing_shown"
            yield _tested(row, claim, says, facts, max(ps), power)


def _unknown(row: Row, says: str, facts: Mapping[str, Any]) -> Finding:
    """That nothing can be said, for the row's reason."""
    facts = {**facts, "reason": row.note}
    return Finding.on(row, "not_tested", f"matched.{says}", facts=facts)


def _tested(
    row: Row,
    claim: Claim,
    says: str,
    facts: Mapping[str, Any],
    p: float | None,
    power: Iterable[Power],
) -> Finding:
    """One of the tests that were declared beforehand."""
    told: dict[str, Any] = {"facts": facts, "p": p, "power": list(power)}
    return Finding.on(row, claim, f"matched.{says}", family="primary", **told)


def _compared(rows: Told, group: str) -> dict[str, Any]:
    """The figure of a comparison, and both of its sides."""
    return {
        "memory": rows["memory", "", group],
        "trained": rows["pii_change", "trained", group],
        "held_out": rows["pii_change", "never-trained", group],
    }


def _memory(
    rows: Told, tests: Mapping[str, Moved], doses: Sequence[str], facts: dict[str, Any]
) -> Finding:
    row, kind = rows["memory", "", "pooled"], rows["kind", "", "pooled"]
    test = tests["pooled"]
    # By themselves too: next to text that drifted up, what stood still looks learned.
    never = rows["pii_change", "never-trained", "pooled"]
    claim = claim_of(row)
    power = [
        each.model_copy(update={"of": group})
        for group in doses
        # Of fewer it says next to nothing, and nothing that may be shared.
        if rows["pii_change", "trained", group].clusters >= FEWEST
        for each in tests[group].power
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
    return _tested(row, claim, says, facts, test.p, [*test.power, *power])


def _highest(rows: Told, tests: Mapping[str, Moved], group: str) -> Finding:
    """Of the identifiers that stand in most trained rows."""
    row = rows["memory", "", group]
    facts = {**_compared(rows, group), "dose": row.grouping[1]}
    if row.value is None:
        facts["reason"] = row.note
        return Finding.on(row, "nothing_shown", "matched.dose_missing", facts=facts)
    claim, test = claim_of(row), tests[row.group]
    says = claim if claim in ("memory", "betrays") else "nothing"
    return _tested(row, claim, f"dose_{says}", facts, test.p, test.power)


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
    for row in filter(has_sentence, contrasts):
        who, base = row.checkpoint, row.baseline
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
        claim: Claim = "nothing_shown"
        if facts["p"] is None or facts["p"] >= 1 - row.level:
            says = "still"
        else:
            spread = [
                one.value
                for one in pooled
                if (one.metric, one.baseline) == ("did", base)
                and one.checkpoint in ordinary
                and who not in ordinary
                and one.value is not None
            ]
            claim, says = _did_claim(row, drift, own, alike, spread)
        yield Finding.on(row, claim, f"matched.did_{says}", facts=facts)


def _did_claim(
    row: Contrast,
    drift: Contrast,
    own: Contrast,
    alike: Contrast,
    ordinary: Sequence[float],
) -> tuple[Claim, str]:
    """What a DiD that differs from 0 says, next to the DiD of ordinary runs.

    Suppressed is said of identifiers that are less likely by themselves, than equally
    hard text, and than text that looks like them, where other text drifted alike.
    """
    if ordinary:
        if within(row, ordinary):
            return "nothing_shown", "ordinary"
    elif drift.value is None:
        return "nothing_shown", "drift_unknown"
    elif unlike_drift(row.value or 0.0, drift.value, drift.low, drift.high):
        return "nothing_shown", "drift_unequal"
    side = _clear(row)
    if side < 0:
        return "moved", "likelier"
    by_itself, beyond = _clear(own) > 0, _clear(alike) > 0
    if not by_itself:
        return "moved", f"less_likely_{'not_own' if beyond else 'only'}"
    if not beyond or not side:
        return "moved", "less_likely_not_alike"
    return "suppressed_kind", "suppressed"


def within(row: Contrast, ordinary: Sequence[float]) -> bool:
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
