"""The manifest's spans matched again: other settings, and a placebo.

A manifest keeps the reference NLL of every token, so what the pairs would have been
under another caliper, distance or rule needs neither a model nor a network. Nothing
here changes the manifest: these are sensitivity runs in addition to its pairs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.matched.changes import pooled_change
from spark_audit.audits.spans import Sums, audited_spans
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.provenance import seed_for
from spark_audit.results.evidence import Evidence
from spark_audit.stats.matching import match_spans, placebo_spans

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
MOST_ROWS = 25_000
"""With more rows a placebo takes hours, and shows a spread of next to nothing."""
PAIRS = ["example", "pii", "control", "length", "draw"]
"""Columns of matched pairs: place in ``manifest.examples``, first token of either side,
their tokens, and number of the placebo draw."""
Spans: TypeAlias = list[tuple[int, int]]


def rematch(
    manifest: Manifest,
    *,
    drawn: Callable[[ManifestExample, Spans], Iterable[Spans]] | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Pairs of train rows under other settings than the manifest's: :data:`PAIRS`.

    Parameters
    ----------
    drawn
        What is matched in the place of an example's identifiers, by draw.
    settings
        Options of :func:`spark_audit.stats.matching.match_spans`; what is not given
        is the manifest's.
    """
    first = manifest.settings
    kept = {"distance": first.distance, "controls": first.controls}
    options = {"caliper_u": round(1e6 * first.caliper), **kept, **settings}
    # Millions of tuples would take ten times the room.
    records = array("i")
    for i, example, identifiers in audited_spans(manifest):
        draws = [identifiers] if drawn is None else drawn(example, identifiers)
        for draw, spans in enumerate(draws):
            found = match_spans(example.unll, example.eligible, spans, **options)
            for pair in found.pairs:
                start, size = spans[pair.span][0], pair.end - pair.start
                records.extend((i, start, pair.start, size, draw))
    table = np.asarray(records).reshape(-1, len(PAIRS))
    return pd.DataFrame(table, columns=PAIRS, copy=False)


def placebo(manifest: Manifest, *, draws: int, seed: int) -> pd.DataFrame:
    """Random non-PII windows in the place of the matched PII spans of train rows.

    Each draw replaces every matched span by a random eligible window of its length and
    matches that as the manifest does. The placebo has no gap in difficulty: it shows
    spread and matching quality and is no null for a Delta_sel (see
    :func:`spark_audit.stats.matching`).
    """
    paired = {(p.example, p.pii.token_start, p.pii.token_end) for p in manifest.pairs}

    def windows(example: ManifestExample, spans: Spans) -> Iterator[Spans]:
        spans = [span for span in spans if (example.id, *span) in paired]
        rng = np.random.default_rng(seed_for(seed, "placebo", example.id))
        for _ in range(draws if spans else 0):
            yield placebo_spans(example.unll, example.eligible, spans, rng)

    return rematch(manifest, drawn=windows, controls="any")


Part: TypeAlias = tuple[pd.DataFrame, Callable[[Sums], np.ndarray]]
"""Units without a split, and what gives their summed NLL, nats."""


def other_pairs(
    manifest: Manifest, *, rematched: bool, draws: int, seed: int
) -> Iterator[Part]:
    """Pairs under :data:`VARIANTS`, and placebo pairs, as units of the evidence.

    Sums are those of identifiers minus those of controls. ``rematched``: a pair under
    the setting ``type``. ``placebo``: all pairs of the draw ``start``; of a large
    manifest are fewer draws, or none.
    """
    clusters = np.array([example.cluster for example in manifest.examples], object)
    for of, settings in VARIANTS.items() if rematched else ():
        pairs = rematch(manifest, **settings)
        units = pd.DataFrame({"n_tokens": pairs["length"], "type": of})
        held = clusters[pairs["example"]]
        yield units.assign(cluster=held, role="rematched"), partial(_apart, pairs)
    rows = len({pair.example for pair in manifest.pairs})
    if draws and rows <= MOST_ROWS:
        most = max(FEWEST_DRAWS, MATCHINGS // max(rows, 1))
        pairs = placebo(manifest, draws=min(draws, most), seed=seed)
        tokens = pairs.groupby("draw")["length"].sum()
        units = pd.DataFrame({"start": tokens.index, "n_tokens": tokens.to_numpy()})

        def summed(sums: Sums) -> np.ndarray:
            apart = pd.Series(_apart(pairs, sums))
            return apart.groupby(pairs["draw"]).sum().to_numpy()

        yield units.assign(role="placebo"), summed


def _apart(pairs: pd.DataFrame, sums: Sums) -> np.ndarray:
    """Summed NLL of each pair's identifier minus that of its control, nats."""
    ours, theirs = (
        sums(*(pairs[name].to_numpy() for name in ("example", side, "length")))
        for side in ("pii", "control")
    )
    return np.asarray(ours - theirs)


def sensitivity_table(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Delta_sel under other matching settings; the manifest's pairs stay primary."""
    units = evidence.units[evidence.units["role"] == "rematched"]
    reference = evidence.units["ref_sum"].to_numpy()
    for variant, name in product(VARIANTS, evidence.checkpoints):
        pairs, apart = units[units["type"] == variant], evidence.row(name, "nll_sum")
        raw, change = (pooled_change(pairs, x) for x in (apart, apart - reference))
        yield {
            "variant": variant,
            "checkpoint": name,
            "pairs": len(pairs),
            "clusters": raw.clusters,
            "delta_sel": raw.value,
            "low": raw.low,
            "high": raw.high,
            "change": change.value,
            "change_low": change.low,
            "change_high": change.high,
            "note": raw.note,
        }


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
