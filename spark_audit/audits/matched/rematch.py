"""The manifest's spans matched again: other settings, and placebos.

A manifest keeps the reference NLL of every token, so what the pairs would have been
under another caliper, distance or rule needs neither a model nor a network. Nothing
here changes the manifest: these are sensitivity runs in addition to its pairs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.spans import Group, Sums, audited_spans, cells_of
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.provenance import seed_for
from spark_audit.results import Estimate
from spark_audit.results.evidence import Evidence
from spark_audit.stats.intervals import Estimand
from spark_audit.stats.matching import match_spans, placebo_spans
from spark_audit.stats.selectivity import delta_sel, rtm_bias

VARIANTS: dict[str, dict[str, Any]] = {
    "caliper 0.1": {"caliper_u": 100_000},
    "caliper 0.25": {"caliper_u": 250_000},
    "caliper 1.0": {"caliper_u": 1_000_000},
    "distance profile": {"distance": "profile"},
    "controls before": {"controls": "before"},
    "same digit and capital class": {"same_class": True},
}
"""Sensitivity runs: what differs from the manifest's own settings."""


MATCHINGS, FEWEST_DRAWS = 100_000, 40
"""Examples are matched at most so often for one placebo (seconds), and the draws that
a large manifest is left with; the table says how many there were."""


MOST_ROWS = 25_000
"""With more rows placebos take hours, and show a spread of next to nothing."""


Span: TypeAlias = tuple[int, int]
Record: TypeAlias = tuple[int, int, int, int, int]
PAIRS = ["example", "pii", "control", "length", "draw"]
"""Columns of matched pairs: place in ``manifest.examples``, first token of either side,
their tokens, and number of the placebo draw."""


def _pairs(records: Iterable[Record]) -> pd.DataFrame:
    """Pairs as a frame with :data:`PAIRS`."""
    # Millions of tuples would take ten times the room.
    table = np.asarray(array("i", chain.from_iterable(records))).reshape(-1, len(PAIRS))
    return pd.DataFrame(table, columns=PAIRS, copy=False)


def rematch(
    manifest: Manifest, *, same_class: bool = False, **settings: Any
) -> pd.DataFrame:
    """Pairs of train rows under other settings than the manifest's.

    Parameters
    ----------
    same_class
        A control must have the span's digit and capital classes.
    settings
        Options of :func:`spark_audit.stats.matching.match_spans`; what is not given
        is the manifest's.
    """

    def records() -> Iterator[Record]:
        for i, example, spans in audited_spans(manifest):
            classes = _classes(example) if same_class else None
            yield from _matched(
                manifest, i, spans, 0, classes=classes, **_settings(manifest, settings)
            )

    return _pairs(records())


def placebo(
    manifest: Manifest, *, draws: int, seed: int, same_class: bool = False
) -> pd.DataFrame:
    """Random non-PII windows in the place of the matched PII spans of train rows.

    Each draw replaces every matched span by a random eligible window of its length (of
    its digit and capital class, if asked) and matches that as the manifest does. The
    placebo has no gap in difficulty: it shows spread and matching quality and is no
    null for a Delta_sel (see :func:`spark_audit.stats.selectivity`).
    """
    paired = {(p.example, p.pii.token_start, p.pii.token_end) for p in manifest.pairs}
    settings = _settings(manifest, {"controls": "any"})

    def records() -> Iterator[Record]:
        for i, example, spans in audited_spans(manifest):
            spans = [span for span in spans if (example.id, *span) in paired]
            if not spans:
                continue
            classes = _classes(example) if same_class else None
            text = example.unll, example.eligible
            seeds = seed_for(seed, "placebo", same_class, example.id)
            rng = np.random.default_rng(seeds)
            for draw in range(draws):
                windows = placebo_spans(*text, spans, rng, classes=classes)
                yield from _matched(manifest, i, windows, draw, **settings)

    return _pairs(records())


def _settings(manifest: Manifest, other: Mapping[str, Any]) -> dict[str, Any]:
    """How spans are matched: as the manifest's were, but for other settings."""
    first = manifest.settings
    kept = {"distance": first.distance, "controls": first.controls}
    return {"caliper_u": round(1e6 * first.caliper), **kept, **other}


def _matched(
    manifest: Manifest, i: int, spans: list[Span], draw: int, **settings: Any
) -> Iterator[Record]:
    example = manifest.examples[i]
    found = match_spans(example.unll, example.eligible, spans, **settings)
    for pair in found.pairs:
        yield i, spans[pair.span][0], pair.start, pair.end - pair.start, draw


PLACEBOS = {"any window": False, "same class": True}
"""Kinds of placebo: whether a window must have the class of the identifier."""
Part: TypeAlias = tuple[pd.DataFrame, Callable[[Sums], np.ndarray]]
"""Units without a split, and what gives their summed NLL, nats."""


def other_pairs(
    manifest: Manifest, *, rematched: bool, draws: int, seed: int
) -> Iterator[Part]:
    """Pairs under :data:`VARIANTS`, and placebo pairs, as units of the evidence.

    ``rematched``: a pair under the setting ``type``; its sums are identifier minus
    control. ``placebo``: draw ``start`` of the kind ``type``, summed likewise over all
    its pairs. ``drawn``: the ``start`` windows of ``n_tokens`` tokens that all draws of
    the same class took from an example.
    """
    name, cluster = np.array([(e.id, e.cluster) for e in manifest.examples], object).T
    for of, settings in VARIANTS.items() if rematched else ():
        pairs = rematch(manifest, **settings)
        units = pd.DataFrame({"n_tokens": pairs["length"]})
        held = cluster[pairs["example"]]
        yield units.assign(cluster=held, role="rematched", type=of), _sums(pairs)
    for of, same in PLACEBOS.items() if draws else ():
        pairs = placebo(manifest, draws=draws, seed=seed, same_class=same)
        units = pairs.groupby("draw")["length"].sum().reset_index()
        units = units.rename(columns={"length": "n_tokens", "draw": "start"})
        yield units.assign(role="placebo", type=of), _sums(pairs, ["draw"])
        if same:
            windows = ["example", "length"]
            units = pairs.groupby(windows).size().reset_index(name="start")
            units = units.rename(columns={"length": "n_tokens"}).assign(role="drawn")
            units = units.assign(example=name[units["example"]])
            yield units, _sums(pairs, windows, control=False)


def _sums(
    pairs: pd.DataFrame, by: Sequence[str] = (), *, control: bool = True
) -> Callable[[Sums], np.ndarray]:
    """What sums the pairs' NLL, minus that of their controls, by some columns."""

    def of(sums: Sums, side: str) -> np.ndarray:
        return sums(*(pairs[k].to_numpy() for k in ("example", side, "length")))

    def summed(sums: Sums) -> np.ndarray:
        found = of(sums, "pii") - of(sums, "control") if control else of(sums, "pii")
        if not by:
            return found
        return pd.Series(found).groupby([pairs[k] for k in by]).sum().to_numpy()

    return summed


def affordable(manifest: Manifest, draws: int) -> int:
    """So many placebo draws; of a large manifest fewer, or none."""
    rows = len({pair.example for pair in manifest.pairs})
    if rows > MOST_ROWS:
        return 0
    return min(draws, max(FEWEST_DRAWS, MATCHINGS // max(rows, 1)))


def sensitivity_table(evidence: Evidence) -> list[dict[str, Any]]:
    """Delta_sel under other matching settings; the manifest's pairs stay primary."""
    records = []
    units = evidence.units[evidence.units["role"] == "rematched"]
    for variant in VARIANTS:
        pairs = units[units["type"] == variant]
        where = (pairs["n_tokens"], pd.factorize(pairs["cluster"])[0])
        for name in evidence.checkpoints:
            raw = change = Estimate.missing("no pair under this setting")
            if len(pairs):
                apart = evidence.row(name, "nll_sum")[pairs.index]
                raw = delta_sel(apart, 0.0, *where).estimate()
                change = delta_sel(apart, pairs["ref_sum"], *where).estimate()
            records.append(
                {
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
            )
    return records


def placebo_table(evidence: Evidence, pooled: Group | None) -> list[dict[str, Any]]:
    """Delta_sel of random non-PII windows, minus that on the reference.

    ``any window`` centres on 0 whatever regression to the mean does: it shows the
    spread that matching leaves, and is no null. ``same class`` (the PII's digits and
    capitals) keeps its gap: comparing its mean with its R1 checks R1. ``pooled`` are
    the pairs of train rows.
    """
    records = []
    units = evidence.units
    nothing = {"draws": 0, "mean": None, "sd": None, "own_rtm_bias": None, "note": ""}
    for kind, same in PLACEBOS.items():
        drawn = units[(units["role"] == "placebo") & (units["type"] == kind)]
        for name in evidence.checkpoints:
            record: dict[str, Any] = {"placebo": kind, "checkpoint": name, **nothing}
            records.append(record)
            nll = evidence.row(name, "nll_sum")
            if not evidence.facts["draws"]:
                record["note"] = f"more than {MOST_ROWS:,} rows: not drawn"
            elif pooled is not None and pooled.is_reference(nll):
                record["note"] = "the checkpoint is the matching reference"
            else:
                change = nll[drawn.index] - drawn["ref_sum"]
                values = (change / drawn["n_tokens"]).to_numpy()
                record["draws"] = len(values)
                if len(values) > 1:
                    record |= _spread(values)
                if record["sd"] is not None and same and pooled is not None:
                    record["own_rtm_bias"] = _bias_of(pooled, units, nll)
    return records


def _spread(values: np.ndarray) -> dict[str, Any]:
    """Mean and spread of the draws, as columns."""
    mean = float(values.mean())
    if np.ptp(values) <= 1e-9:
        note = "all draws are equal, because there is no other window"
        return {"mean": mean, "note": note}
    return {"mean": mean, "sd": float(values.std(ddof=1))}


def _bias_of(pooled: Group, units: pd.DataFrame, nll: np.ndarray) -> float | None:
    """R1 with other windows in the place of the PII spans, nats."""
    windows = pooled.windows
    drawn = units[units["role"] == "drawn"]
    cells = cells_of(units)[drawn.index]
    inside = np.isin(cells, windows.pool_cells)
    tokens = (drawn["start"] * drawn["n_tokens"]).to_numpy(np.float64)
    means = drawn["ref_sum"].to_numpy() / tokens
    cluster = dict(zip(windows.pool_cells, windows.pool_clusters, strict=True))
    instead = replace(
        windows,
        spans=means[inside],
        span_tokens=tokens[inside],
        span_clusters=np.array([cluster[cell] for cell in cells[inside]], np.int64),
        span_cells=cells[inside],
    )
    bias = rtm_bias(instead, pooled.means(nll))
    return bias.estimate().value if isinstance(bias, Estimand) else None


def _classes(example: ManifestExample) -> np.ndarray:
    return np.frombuffer(example.classes.encode("ascii"), dtype=np.uint8)
