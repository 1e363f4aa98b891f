"""The occurrences and texts that the matched audit measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context
from spark_audit.audits.identifiers import (
    MIN_CLUSTERS_FOR_CLASSIFIER,
    REPRODUCED,
    audited_spans,
    comparable,
    identifier_facts,
    sides_of,
)
from spark_audit.audits.supervision import COLUMN, by_supervision, trained_identifiers
from spark_audit.data.occurrences import dose_group
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE
from spark_audit.results import (
    Row,
)
from spark_audit.results.findings import Fact
from spark_audit.stats import matching, memory_contrast
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.estimate import Bound, Estimate, Power, side_of

ROW = ["example", "cluster", "task", "split"]
"""Columns of what a unit's row is."""


def row_of(
    estimate: Estimate,
    *,
    checkpoint: str,
    metric: str,
    of: str = "",
    group: str = "pooled",
    unit: str = "nats",
    null: float | None = None,
    null_low: float | None = None,
    null_high: float | None = None,
) -> Row:
    """Return a row of this audit with an estimate's figures."""
    return Row.of_estimate(
        estimate,
        audit="matched",
        checkpoint=checkpoint,
        metric=metric,
        of=of,
        group=group,
        unit=unit,
        null=null,
        null_low=null_low,
        null_high=null_high,
    )


def _row(metric: str, value: float, clusters: int) -> Row:
    """Return a figure that only a guard shows."""
    estimate = Estimate(float(value), clusters=clusters)
    return row_of(estimate, checkpoint=BASE, metric=metric)


def _spans(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Units that are ranges of tokens, without scores."""
    trained_on = trained_identifiers(manifest)
    facts = identifier_facts(manifest, trained_on)
    # By characters too: several spans may share a token.
    controls: dict[tuple[str, int, int, int, int], tuple[int, int]] = {}
    for k, pair in enumerate(manifest.pairs):
        one = pair.pii
        at = one.char_start, one.char_end, one.token_start, one.token_end
        controls[pair.example, *at] = k, pair.control.token_start
    for i, example, spans in audited_spans(manifest):
        for span, (start, end) in spans:
            known = facts[example.id, span.start, span.end]
            counts = Counter(example.classes[start:end])
            told: dict[str, Any] = {name: counts[c] for c, name in CLASS_NAMES.items()}
            told |= {"trained": int(known.dose > 0), **vars(known)}
            if trained_on.is_known:
                told[COLUMN] = trained_on.supervision_of(example, span)
            place = example.id, span.start, span.end, start, end
            number, control = controls.pop(place, (None, None))
            own = {"index": i, "type": span.type, "n_tokens": end - start}
            own["pair"] = number
            role = "unmatched" if control is None else "pii"
            yield {**own, "role": role, "start": start, **told}
            if control is not None:
                yield {**own, "role": "control", "start": control}
        for size in sorted({end - start for _, (start, end) in spans}):
            own = {"index": i, "role": "window", "n_tokens": size}
            starts = matching.non_overlapping_windows(example.eligible, size)
            for first in starts.tolist():
                yield {**own, "start": first}
    if controls:
        what = f"{len(controls)} of its pairs are of no annotated identifier"
        raise InputError(what, where=manifest.name, fix="build the manifest again")


def _texts(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """``low`` and ``alike`` units, with their ``tokens``, which are no range."""
    for i, example, _ in audited_spans(manifest):
        letters = np.array(list(example.classes))
        parts = [("low", "", np.array(example.low, np.int32))]
        for letter in CLASS_NAMES:
            at = np.flatnonzero(example.eligible & (letters == letter))
            parts.append(("alike", letter, at.astype(np.int32)))
        for role, kind, tokens in parts:
            if len(tokens):
                own = {"index": i, "role": role, "type": kind, "tokens": tokens}
                yield {**own, "n_tokens": len(tokens)}


def _filled(units: pd.DataFrame) -> pd.DataFrame:
    """The columns of the evidence but for scores; what units lack is 0 or empty."""
    words = dict.fromkeys((*ROW, "role", "type"), "")
    if COLUMN in units:
        words[COLUMN] = ""
    counts = ("trained", "dose", "form", "cue", "stratum")
    zeros = ("start", "n_tokens", *counts, *CLASS_NAMES.values())
    whole = {"pair": -1, **dict.fromkeys(zeros, 0)}
    units = units.reindex(columns=[*words, *whole, "text_auc"])
    units = units.astype(dict.fromkeys(words, object)).fillna({**words, **whole})
    return units.astype({**dict.fromkeys(whole, np.int64), "text_auc": np.float64})


CLASS_NAMES = {"d": "digits", "A": "capitals", "a": "letters", "-": "marks"}
"""Classes of tokens, and the columns that count an identifier's tokens of each."""

NO_CONTROL = (
    "no identifier with a control stands in trained rows",
    "no identifier with a control stands in rows never trained on",
)
"""Where the identifiers of either side have none."""

REFERENCE = "the checkpoint is the matching reference itself, so there is no change"

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
    bounds
        What memory that could still be there follows from.
    """

    own: memory_contrast.Memory
    beyond: memory_contrast.Memory
    reach: float = 0.0
    p: float | None = None
    power: tuple[Power, ...] = ()
    bounds: tuple[Bound, ...] = ()


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
            return {"fewest": MIN_CLUSTERS_FOR_CLASSIFIER}
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
        bounds = t_bound(
            own.difference.value,
            own.difference.low,
            df=own.freedom,
            direction=-1,
            beyond=self.reach,
        )
        return Moved(
            own=own,
            beyond=beyond,
            reach=self.reach,
            p=p,
            power=(test,) if se else (),
            bounds=tuple(bounds),
        )


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
