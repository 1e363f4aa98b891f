"""The manifest's spans matched again: other settings, and placebos.

A manifest keeps the reference NLL of every token, so what the pairs would have been
under another caliper, distance or rule needs neither a model nor a network. Nothing
here changes the manifest: these are sensitivity runs in addition to its pairs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.spans import Group, Sums, audited_spans, group_of
from spark_audit.audits.stored_evidence import Evidence, part_of
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.provenance import seed_for
from spark_audit.results import Estimate
from spark_audit.stats.intervals import left_out, ratio
from spark_audit.stats.matching import match_spans, placebo_spans
from spark_audit.stats.selectivity import delta_sel, rtm_bias_estimate

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


@dataclass(frozen=True)
class Pairs:
    """Matched pairs as arrays of one length, one entry a pair.

    ``example`` indexes ``manifest.examples``; ``pii``, ``control`` are first tokens,
    ``length`` the tokens of either side; ``draw`` numbers placebo draws.
    """

    example: np.ndarray
    pii: np.ndarray
    control: np.ndarray
    length: np.ndarray
    draw: np.ndarray

    def __len__(self) -> int:
        return len(self.example)

    @classmethod
    def of(cls, records: Iterable[tuple[int, int, int, int, int]]) -> Pairs:
        """From ``(example, pii, control, length, draw)`` records."""
        # Millions of tuples would take five times the room.
        table = np.array(array("q", chain.from_iterable(records))).reshape(-1, 5)
        return cls(*table.T)


def rematch(
    manifest: Manifest,
    *,
    split: str = "train",
    same_class: bool = False,
    **settings: Any,
) -> Pairs:
    """Pairs under other settings than the manifest's.

    Parameters
    ----------
    same_class
        A control must have the span's digit and capital classes.
    settings
        Options of :func:`spark_audit.stats.matching.match_spans`; what is not given
        is the manifest's.
    """
    options: dict[str, Any] = {
        "caliper_u": round(1e6 * manifest.settings.caliper),
        "distance": manifest.settings.distance,
        "controls": manifest.settings.controls,
        **settings,
    }

    def records() -> Iterator[tuple[int, int, int, int, int]]:
        for i, example, spans in audited_spans(manifest, split=split):
            classes = _classes(example) if same_class else None
            found = match_spans(
                example.unll, example.eligible, spans, classes=classes, **options
            )
            for pair in found.pairs:
                start = spans[pair.span][0]
                yield i, start, pair.start, pair.end - pair.start, 0

    return Pairs.of(records())


def placebo(
    manifest: Manifest,
    *,
    draws: int,
    seed: int,
    split: str = "train",
    same_class: bool = False,
) -> Pairs:
    """Random non-PII windows in the place of the matched PII spans.

    Each draw replaces every matched span by a random eligible window of its length (of
    its digit and capital class, if asked) and matches that as the manifest does. The
    placebo has no gap in difficulty: it shows spread and matching quality and is no
    null for a Delta_sel (see :func:`spark_audit.stats.selectivity`).
    """
    matched = {(p.example, p.pii.token_start, p.pii.token_end) for p in manifest.pairs}
    caliper_u = round(1e6 * manifest.settings.caliper)
    distance = manifest.settings.distance

    def records() -> Iterator[tuple[int, int, int, int, int]]:
        for i, example, spans in audited_spans(manifest, split=split):
            spans = [span for span in spans if (example.id, *span) in matched]
            if not spans:
                continue
            classes = _classes(example) if same_class else None
            wanted = None if classes is None else [classes[a:b] for a, b in spans]
            lengths = [end - start for start, end in spans]
            text = example.unll, example.eligible
            rng = np.random.default_rng(
                seed_for(seed, "placebo", same_class, example.id)
            )
            for draw in range(draws):
                windows, _ = placebo_spans(
                    *text, lengths, rng, classes=classes, wanted=wanted
                )
                found = match_spans(
                    *text, windows, caliper_u=caliper_u, distance=distance
                )
                for pair in found.pairs:
                    window = windows[pair.span]
                    yield i, window.start, pair.start, pair.end - pair.start, draw

    return Pairs.of(records())


def sensitivity_table(
    manifest: Manifest, sums: Mapping[str, Sums]
) -> list[dict[str, Any]]:
    """Delta_sel under other matching settings; the manifest's pairs stay primary."""
    labels = sorted({example.cluster for example in manifest.examples})
    code = {label: i for i, label in enumerate(labels)}
    clusters = np.array([code[example.cluster] for example in manifest.examples])
    reference = Sums.of_reference(manifest)
    matched = {name: rematch(manifest, **one) for name, one in VARIANTS.items()}
    found: dict[str, list[dict[str, Any]]] = {variant: [] for variant in matched}
    for name, of_checkpoint in sums.items():
        for variant, pairs in matched.items():
            raw = change = Estimate.missing("no pair under this setting")
            if len(pairs):
                where = (pairs.length, clusters[pairs.example])
                apart, nothing = _apart(of_checkpoint, pairs), np.zeros(len(pairs))
                raw = delta_sel(apart, nothing, *where)
                change = delta_sel(apart - _apart(reference, pairs), nothing, *where)
            found[variant].append(
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
    return [record for records in found.values() for record in records]


def placebo_table(
    manifest: Manifest,
    sums: Mapping[str, Sums],
    spans: Evidence,
    *,
    draws: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Delta_sel of random non-PII windows, minus that on the reference.

    ``any window`` centres on 0 whatever regression to the mean does: it shows the
    spread that matching leaves, and is no null. ``same class`` (the PII's digits and
    capitals) keeps its gap: comparing its mean with its R1 checks R1.
    """
    reference = Sums.of_reference(manifest)
    ids = np.array([example.id for example in manifest.examples])
    rows = len({pair.example for pair in manifest.pairs})
    draws = min(draws, max(FEWEST_DRAWS, MATCHINGS // max(rows, 1)))
    draws *= rows <= MOST_ROWS
    kinds = {"any window": False, "same class": True}
    drawn = {
        kind: placebo(manifest, draws=draws, seed=seed, same_class=same)
        for kind, same in kinds.items()
    }
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for name, of_checkpoint in sums.items():
        own = _train(part_of(spans, name), name)
        for kind, pairs in drawn.items():
            record: dict[str, Any] = {
                "placebo": kind,
                "checkpoint": name,
                "draws": 0,
                "mean": None,
                "sd": None,
                "own_rtm_bias": None,
                "note": "",
            }
            found[kind].append(record)
            if not draws:
                record["note"] = f"more than {MOST_ROWS:,} rows: not drawn"
                continue
            if own.is_reference:
                record["note"] = "the checkpoint is the matching reference"
                continue
            change = _apart(of_checkpoint, pairs) - _apart(reference, pairs)
            values = _by_draw(pairs, change, draws)
            record["draws"] = len(values)
            if len(values) < 2:
                continue
            record["mean"] = float(values.mean())
            if np.ptp(values) <= 1e-9:
                record["note"] = "all draws are equal, because there is no other window"
                continue
            record["sd"] = float(values.std(ddof=1))
            if kinds[kind]:
                means = reference(pairs.example, pairs.pii, pairs.length)
                record["own_rtm_bias"] = _bias_of(
                    own, ids[pairs.example], pairs.length, means / pairs.length
                )
    return [record for records in found.values() for record in records]


def _apart(sums: Sums, pairs: Pairs) -> np.ndarray:
    """Summed NLL of the first sides minus that of their controls, nats."""
    first = sums(pairs.example, pairs.pii, pairs.length)
    control = sums(pairs.example, pairs.control, pairs.length)
    return np.asarray(first - control)


def _by_draw(pairs: Pairs, values: np.ndarray, draws: int) -> np.ndarray:
    """Token-pooled mean of summed values in each draw that has pairs."""
    tokens = np.bincount(pairs.draw, pairs.length, minlength=draws)
    totals = np.bincount(pairs.draw, values, minlength=draws)
    return np.asarray(totals[tokens > 0] / tokens[tokens > 0])


def _bias_of(
    found: Group, examples: np.ndarray, lengths: np.ndarray, means: np.ndarray
) -> float | None:
    """R1 with other windows in the place of the PII spans, nats."""
    windows = found.windows
    assert windows.pool_cells is not None
    cells = np.array(
        [found.cells[key] for key in zip(examples, lengths.tolist(), strict=True)]
    )
    inside = np.isin(cells, windows.pool_cells)
    cells, lengths, means = cells[inside], lengths[inside], means[inside]
    cluster = dict(zip(windows.pool_cells, windows.pool_clusters, strict=True))
    instead = replace(
        windows,
        spans=means,
        span_tokens=lengths.astype(float),
        span_clusters=np.array([cluster[cell] for cell in cells], dtype=np.int64),
        span_cells=cells,
    )
    return rtm_bias_estimate(instead, found.checkpoint_windows).value


def diagnostics(spans: pd.DataFrame) -> list[dict[str, Any]]:
    """How much one cluster or the controls' place could matter."""
    records = []
    for name in dict.fromkeys(spans["checkpoint"]):
        found = _train(spans, str(name))
        held = found.den > 0
        if held.sum() < 2:
            continue
        _, without = left_out(np.stack([found.num, found.den], axis=1)[held], ratio)
        chosen = spans[(spans["checkpoint"] == name) & (spans["split"] == "train")]
        pii, control = (
            chosen[chosen["role"] == role].sort_values("pair")["start"].to_numpy()
            for role in ("pii", "control")
        )
        records.append(
            {
                "checkpoint": name,
                "leave_one_cluster_out_low": float(without.min()),
                "leave_one_cluster_out_high": float(without.max()),
                "controls_after_share": float(np.mean(control > pii)),
            }
        )
    return records


def _train(spans: pd.DataFrame, name: str) -> Group:
    chosen = spans[(spans["checkpoint"] == name) & (spans["split"] == "train")]
    return group_of(chosen, sorted(set(chosen["cluster"])))


def _classes(example: ManifestExample) -> np.ndarray:
    return np.frombuffer(example.classes.encode("ascii"), dtype=np.uint8)
