"""Changes since the reference and against a baseline: rows and contrasts by group.

Of matched pairs (Delta_sel and DiD), of identifiers on either side, and of
low-sensitivity text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context
from spark_audit.audits.identifier_facts import ENOUGH, Moved, comparable, sides_of
from spark_audit.audits.spans import Group
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
from spark_audit.results import Contrast, Estimate, Family, Hits, Row, side_of
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
    ratio_estimate,
    replicates_of,
)
from spark_audit.stats.matching import reweighted, rtm_bias, slope
from spark_audit.stats.memory_contrast import (
    Memory,
    Sides,
    dose_trend,
    least_p,
    memory,
    permutation_p,
)
from spark_audit.stats.power import mde, with_mde

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
        sums = dict(_against(group, nll, context.baselines))
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


def _against(
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
FEWEST = 2
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
    letters = [letter for letter in CLASSES if held.get(letter, 0) >= FEWEST]
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
