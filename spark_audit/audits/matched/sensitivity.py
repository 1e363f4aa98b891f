"""Placebo pairs, and pairs of other matchings."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.identifiers import (
    audited_spans,
)
from spark_audit.audits.matched import drift
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
"""Sensitivity runs: what differs from the manifest's own settings."""

MATCHINGS, FEWEST_DRAWS = 100_000, 40
"""Examples are matched at most so often for the placebo (seconds), and the draws that
a large manifest is left with; the table says how many there were."""

MAX_ROWS_FOR_PLACEBO = 25_000
"""With more rows a placebo takes hours, and shows a spread of next to nothing."""

PAIRS = ["example", "pii", "control", "length", "setting"]
"""Columns of matched pairs: place in ``manifest.examples``, first token of either side,
their tokens, and number of the variant, or of the placebo draw behind all variants."""


def other_pairs(
    manifest: Manifest, variants: Mapping[str, Any], *, draws: int, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pairs of train rows under other settings, and placebo pairs.

    Each placebo draw replaces every matched span by a random eligible window of its
    length and matches that as the manifest does; of a large manifest are fewer draws,
    or none. It has no gap in difficulty: it shows spread and matching quality, and is
    no null for a Delta_sel (see :mod:`spark_audit.stats.selectivity`).

    Parameters
    ----------
    variants
        Options of :func:`spark_audit.stats.matching.match_spans` by name; what is not
        given is the manifest's.

    Returns
    -------
    units
        Of the evidence, without scores. ``rematched``: a pair under the setting
        ``type``; ``placebo``: all pairs of the draw ``start``.
    pairs
        :data:`PAIRS`, and ``unit``, the place of the one that a pair is of.
    """
    first = manifest.settings
    own: dict[str, Any] = {"distance": first.distance, "controls": first.controls}
    own |= {"caliper_u": round(1e6 * first.caliper)}
    matched = defaultdict[str, set[tuple[int, int]]](set)
    for known in manifest.pairs:
        matched[known.example].add((known.pii.token_start, known.pii.token_end))
    rows = len(matched)
    count = min(draws, max(FEWEST_DRAWS, MATCHINGS // max(rows, 1)))
    # Millions of tuples would take ten times the room.
    records = array("i")
    for i, example, spans in audited_spans(manifest, ["train"]):
        ranges = [tokens for _, tokens in spans]
        paired = [tokens for tokens in ranges if tokens in matched[example.id]]
        scores = example.unll, example.eligible
        rng = np.random.default_rng(seed_for(seed, "placebo", example.id))
        tried = [(ranges, own | more) for more in variants.values()]
        for _ in range(count if paired and rows <= MAX_ROWS_FOR_PLACEBO else 0):
            windows = matching.placebo_spans(*scores, paired, rng)
            tried.append((windows, own | {"controls": "any"}))
        for setting, (matching_of, options) in enumerate(tried):
            for pair in matching.match_spans(*scores, matching_of, **options).pairs:
                start, size = matching_of[pair.span][0], pair.end - pair.start
                records.extend((i, start, pair.start, size, setting))
    pairs = pd.DataFrame(np.asarray(records).reshape(-1, len(PAIRS)), columns=PAIRS)
    # A pair is a unit, and so are all pairs of a draw: of a draw d all are -1 - d, of
    # the others each is its own place.
    draw = pairs["setting"] - len(variants)
    pairs["unit"] = pd.factorize(pairs.index.where(draw < 0, -1 - draw))[0]
    # Of many pairs all columns of units would not fit.
    heads = pairs[~pairs["unit"].duplicated()]
    draw = draw[heads.index]
    names = np.array([*variants, *[""] * count], object)
    clusters = np.array([example.cluster for example in manifest.examples], object)
    units = pd.DataFrame(
        {
            "role": np.where(draw < 0, "rematched", "placebo"),
            "type": names[heads["setting"]],
            "cluster": np.where(draw < 0, clusters[heads["example"]], ""),
            "start": draw.clip(lower=0),
            "n_tokens": np.bincount(pairs["unit"], pairs["length"], len(heads)),
        }
    )
    return units, pairs


def sensitivity_table(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Delta_sel under other matching settings; the manifest's pairs stay primary."""
    units = evidence.units[evidence.units["role"] == "rematched"]
    reference = evidence.units["ref_sum"].to_numpy()
    for variant, name in product(VARIANTS, evidence.checkpoints):
        pairs, apart = units[units["type"] == variant], evidence.row(name, "nll_sum")
        record = {"variant": variant, "checkpoint": name, "pairs": len(pairs)}
        raw = drift.pooled_change(pairs, apart)
        record |= {"clusters": raw.clusters, "delta_sel": raw.value}
        record |= {"low": raw.low, "high": raw.high}
        change = drift.pooled_change(pairs, apart - reference)
        record |= {"change": change.value, "change_low": change.low}
        yield record | {"change_high": change.high, "note": raw.note}


def placebo_table(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Delta_sel of random non-PII windows, minus that on the reference, by checkpoint.

    It centres on 0 whatever regression to the mean does: it shows the spread that
    matching leaves, and is no null. Nats per token.
    """
    drawn = evidence.units[evidence.units["role"] == "placebo"]
    for name in evidence.checkpoints:
        change = evidence.row(name, "nll_sum")[drawn.index] - drawn["ref_sum"]
        values = change / drawn["n_tokens"]
        sd = float(values.std()) if len(values) > 1 else None
        figures = {"draws": len(values), "mean": float(values.mean()), "sd": sd}
        yield {"checkpoint": name, **figures}
