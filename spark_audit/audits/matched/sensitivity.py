"""Placebo pairs and pairs of other matchings, which show the effect of the matching.

The evidence gets their sums (:func:`other_pairs`), from which two tables are made: one
of Delta_sel under other settings of the matching (:data:`VARIANTS`), and one of the
placebo, whose pairs are random windows and their controls. No claim rests on them.

A new setting of the matching goes into :data:`VARIANTS`; a new column of a table into
the records of :func:`sensitivity_table` or :func:`placebo_table`.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.identifiers import audited_spans
from spark_audit.audits.matched.drift import pooled_change
from spark_audit.audits.token_sums import Sums
from spark_audit.manifest.example_schema import ManifestExample, TokenRange
from spark_audit.manifest.schema import Manifest
from spark_audit.provenance import seed_for
from spark_audit.results.evidence import Evidence
from spark_audit.stats import matching

VARIANTS: dict[str, dict[str, Any]] = {
    "caliper 0.1": {"caliper_u": 100_000},
    "caliper 0.25": {"caliper_u": 250_000},
    "caliper 1.0": {"caliper_u": 1_000_000},
    "distance profile": {"distance": "profile"},
    "controls before": {"controls": "before"},
}
"""Name of a variant -> options of :func:`~spark_audit.stats.matching.match_spans` that
differ from the manifest's settings. ``caliper_u`` is in micro-nats per token."""

MAX_MATCHINGS = 100_000
"""Largest number of matched examples for the placebo, which takes seconds."""

FEWEST_DRAWS = 40
"""A large manifest has at least so many draws (if they are asked for), which keeps a
spread; the table states the number."""

MAX_ROWS_FOR_PLACEBO = 25_000
"""With more rows a placebo takes hours and shows almost no spread."""

PAIR_RECORD = ["example", "pii", "control", "length", "setting"]
"""Columns of pairs, all whole numbers.

===========  =========================================================================
example      index in ``manifest.examples``
pii          first token of the identifier, or of the window that replaces it
control      first token of its control
length       number of tokens of each of the two
setting      number of the variant, or of the placebo draw plus the number of variants
===========  =========================================================================
"""


@dataclass(frozen=True)
class OtherPairs:
    """Pairs of other matchings, and the units of the evidence that they make up.

    Attributes
    ----------
    units
        Units without scores. ``rematched``: one pair under the variant ``type``;
        ``placebo``: all pairs of the draw with the number ``start``.
    pairs
        :data:`PAIR_RECORD`, and ``unit``: the index in ``units``.
    """

    units: pd.DataFrame
    pairs: pd.DataFrame

    def sums(self, nll: Sums) -> np.ndarray:
        """Return NLL of identifiers minus that of controls, ``(units,)``, nats.

        Parameters
        ----------
        nll
            Returns the summed NLL of ranges of tokens by one checkpoint, or by the
            reference.
        """
        # A unit is one pair or all pairs of a draw, so add the gaps by unit.
        example, pii, control, length, _ = self.pairs[PAIR_RECORD].to_numpy().T
        gaps = nll(example, pii, length) - nll(example, control, length)  # (pairs,)
        return np.bincount(self.pairs["unit"], gaps, len(self.units))


class MatchingTask(NamedTuple):
    """Spans of one example to match, and the options of ``match_spans``."""

    spans: Sequence[TokenRange]
    options: Mapping[str, Any]


PlacedPair: TypeAlias = tuple[int, matching.MatchedPair]
"""First token of a span, and its pair."""


def other_pairs(
    manifest: Manifest, variants: Mapping[str, Any], *, draws: int, seed: int
) -> OtherPairs:
    """Return pairs of train rows under other settings, and placebo pairs.

    Each placebo draw replaces every matched span by a random eligible window of its
    length and matches that as the manifest does; a large manifest has fewer draws, or
    none. Random windows have no gap in difficulty. The placebo therefore shows spread
    and matching quality, but is no null for a Delta_sel (see
    :mod:`spark_audit.stats.selectivity`).

    Parameters
    ----------
    variants
        Options of :func:`spark_audit.stats.matching.match_spans` by name. Missing
        options are taken from the manifest.
    """
    matched = _matched_ranges(manifest)
    n_draws = min(draws, max(FEWEST_DRAWS, MAX_MATCHINGS // max(len(matched), 1)))
    has_placebo = len(matched) <= MAX_ROWS_FOR_PLACEBO

    # A flat list of PAIR_RECORD values: millions of tuples would take ten times the
    # room.
    values = array("i")
    for index, example, spans in audited_spans(manifest, ["train"]):
        ranges = [tokens for _, tokens in spans]
        paired = [tokens for tokens in ranges if tokens in matched[example.id]]
        tasks = _matching_tasks(
            manifest,
            example,
            ranges,
            paired,
            variants=variants,
            n_draws=n_draws if paired and has_placebo else 0,
            seed=seed,
        )

        # The number of a task is that of its setting.
        unll = example.reference_micronats  # (tokens,), micro-nats
        eligible = example.eligible  # (tokens,), bool; worked out at each access
        for setting, pairs_of_task in enumerate(_matched_tasks(unll, eligible, tasks)):
            for pii_start, pair in pairs_of_task:
                # `start` and `end` are those of the control.
                length = pair.end - pair.start
                values.extend((index, pii_start, pair.start, length, setting))

    table = np.asarray(values).reshape(-1, len(PAIR_RECORD))  # (pairs, columns)
    pairs = pd.DataFrame(table, columns=PAIR_RECORD)
    return _with_units(manifest, pairs, names=[*variants], n_draws=n_draws)


def _matched_ranges(manifest: Manifest) -> defaultdict[str, set[TokenRange]]:
    """Return the tokens of identifiers with a control, by id of the example.

    Asking for an id without any gives (and adds) the empty set.
    """
    matched = defaultdict[str, set[TokenRange]](set)
    for pair in manifest.pairs:
        matched[pair.example].add((pair.pii.token_start, pair.pii.token_end))
    return matched


def _matching_tasks(
    manifest: Manifest,
    example: ManifestExample,
    ranges: Sequence[TokenRange],
    paired: Sequence[TokenRange],
    *,
    variants: Mapping[str, Any],
    n_draws: int,
    seed: int,
) -> Iterator[MatchingTask]:
    """Yield one task per variant, then one per placebo draw.

    Parameters
    ----------
    ranges, paired
        Tokens of the identifiers of the example, and of those that have a control in
        the manifest.
    """
    settings = manifest.settings
    options_of_manifest: dict[str, Any] = {
        "distance": settings.distance,
        "controls": settings.controls,
        "caliper_u": round(matching.MICRO_NATS_PER_NAT * settings.caliper),
    }
    for options in variants.values():
        yield MatchingTask(ranges, options_of_manifest | options)

    # One task per draw, in which windows replace identifiers. Their controls may stand
    # anywhere, whatever the manifest's setting is.
    rng = np.random.default_rng(seed_for(seed, "placebo", example.id))
    unll = example.reference_micronats  # (tokens,), micro-nats
    eligible = example.eligible  # (tokens,), bool; worked out at each access
    options_of_draws = options_of_manifest | {"controls": "any"}
    known_windows: dict[tuple[bytes, int], np.ndarray] = {}
    for _ in range(n_draws):
        windows = matching.placebo_spans(
            unll, eligible, paired, rng, known_windows=known_windows
        )
        yield MatchingTask(windows, options_of_draws)


def _matched_tasks(
    unll: np.ndarray, eligible: np.ndarray, tasks: Iterable[MatchingTask]
) -> Iterator[list[PlacedPair]]:
    """Yield the pairs of each task of one example.

    Parameters
    ----------
    unll, eligible
        As for :func:`~spark_audit.stats.matching.match_spans`.
    """
    # A short example has few windows, so that most draws repeat an earlier one.
    known_pairs: dict[tuple[Any, ...], list[PlacedPair]] = {}
    for task in tasks:
        key = (*task.spans, *task.options.items())
        if key not in known_pairs:
            matched_spans = matching.match_spans(
                unll, eligible, task.spans, **task.options
            )
            known_pairs[key] = [
                (task.spans[pair.span][0], pair) for pair in matched_spans.pairs
            ]
        yield known_pairs[key]


def _with_units(
    manifest: Manifest, pairs: pd.DataFrame, *, names: Sequence[str], n_draws: int
) -> OtherPairs:
    """Return pairs with their units: each pair of a variant, and each placebo draw.

    Parameters
    ----------
    pairs
        :data:`PAIR_RECORD`, a line per pair.
    names
        Names of the variants, in the order of their settings.
    """
    # Pairs with the same key are one unit: a pair of a variant has its own index (0 or
    # more) as key, pairs of a draw share a key below 0.
    draw = pairs["setting"] - len(names)  # below 0: a pair of a variant
    keys = pairs.index.where(draw < 0, -1 - draw)
    pairs = pairs.assign(unit=pd.factorize(keys)[0])

    # Units are numbered as they first occur. Their facts are those of their first pair:
    # text columns for all pairs would not fit into memory.
    firsts = pairs[~pairs["unit"].duplicated()]
    draw_of_unit = draw[firsts.index]
    is_variant = draw_of_unit < 0
    name_by_setting = np.array([*names, *[""] * n_draws], object)
    clusters = np.array([example.cluster for example in manifest.examples], object)

    units = pd.DataFrame(
        {
            "role": np.where(is_variant, "rematched", "placebo"),
            "type": name_by_setting[firsts["setting"]],
            "cluster": np.where(is_variant, clusters[firsts["example"]], ""),
            "start": draw_of_unit.clip(lower=0),
            "n_tokens": np.bincount(pairs["unit"], pairs["length"], len(firsts)),
        }
    )
    return OtherPairs(units=units, pairs=pairs)


def sensitivity_table(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Yield Delta_sel and its change since the reference, by variant and checkpoint.

    Both are in nats per token. The manifest's pairs stay primary.
    """
    units = evidence.units[evidence.units["role"] == "rematched"]
    reference = evidence.units["ref_sum"].to_numpy()  # (units,), nats
    for variant in VARIANTS:
        pairs = units[units["type"] == variant]
        for name in evidence.checkpoints:
            # The sum of such a unit is identifier minus control.
            gaps = evidence.row(name, "nll_sum")  # (units,), nats
            delta_sel = pooled_change(pairs, gaps)
            change = pooled_change(pairs, gaps - reference)

            yield {
                "setting": variant,
                "checkpoint": name,
                "pairs": len(pairs),
                "clusters": delta_sel.clusters,
                "delta_sel": delta_sel.value,
                "low": delta_sel.low,
                "high": delta_sel.high,
                "change_value": change.value,
                "change_low": change.low,
                "change_high": change.high,
                "note": delta_sel.note,
            }


def placebo_table(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Yield Delta_sel of random non-PII windows, minus that on the reference.

    There is one record per checkpoint, in nats per token. Its centre is 0 whatever
    regression to the mean does, so it shows the spread of matching and is no null.
    """
    draws = evidence.units[evidence.units["role"] == "placebo"]
    for name in evidence.checkpoints:
        gaps = evidence.row(name, "nll_sum")[draws.index]  # (draws,), nats
        values = (gaps - draws["ref_sum"]) / draws["n_tokens"]  # (draws,)
        sd = float(values.std()) if len(values) > 1 else None
        yield {
            "checkpoint": name,
            "draws": len(values),
            "mean": float(values.mean()),
            "sd": sd,
        }
