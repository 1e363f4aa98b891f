"""Tokens under noise: their probabilities, and the figures that they give."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.base import Tables
from spark_audit.audits.metric import Metric
from spark_audit.audits.spans import Places
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.names import ANY
from spark_audit.results import Estimate
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.intervals import Estimand, Statistic

TokenSet: TypeAlias = tuple[ManifestExample, str, np.ndarray]
"""An example, the kind of tokens, and their positions."""

SIGMAS, DRAWS = "0.01,0.05,0.1,0.5", 3
METRICS = (
    Metric("dp_pii", "%", variants=(ANY,)),
    Metric("dp_nonpii", "%", variants=(ANY,)),
    Metric("gap", "points", learned=1, variants=(ANY,), headline=("0.1",)),
)
KINDS = {"dp_pii": ("pii",), "dp_nonpii": ("low",), "gap": ("pii", "low")}


def scales(sigmas: str) -> list[float]:
    """The scales of a comma-separated list, each once, in its order."""
    try:
        found = [float(part) for part in sigmas.split(",")]
    except ValueError:
        found = []
    if not found or not all(math.isfinite(s) and s > 0 for s in found):
        raise InputError(
            "must be positive numbers separated by commas",
            where="--sigmas",
            fix=f"write, for example, {SIGMAS}",
        )
    return list(dict.fromkeys(found))


def noise_evidence(
    tables: Tables, manifest: Manifest, *, sigmas: str = SIGMAS, draws: int = DRAWS
) -> Evidence:
    """One unit per example, kind, scale and draw.

    ``clean`` and ``noisy`` are the summed probabilities of the ``n`` tokens without
    and with noise, ``relative`` is sigma over the RMS of the embedding matrix.
    """
    sets = list(token_sets(manifest))
    if not sets:
        return Evidence()
    places = Places([one.id for one, *_ in sets], [tokens for *_, tokens in sets])
    passes = noise_passes(sigmas, draws)
    facts = pd.DataFrame(
        {
            "kind": [kind for _, kind, _ in sets],
            "task": [example.task for example, *_ in sets],
            "cluster": [example.cluster for example, *_ in sets],
            "n": places.sizes,
        }
    )
    units = pd.concat(
        [facts.assign(sigma=one.sigma, draw=one.draw) for one in passes],
        ignore_index=True,
    )

    def measured() -> Measured:
        for name, scored in tables.items():
            if Pass() not in scored or not any(one in scored for one in passes):
                continue
            clean = _summed(places, scored[Pass()])
            values = np.full((3, len(passes), len(sets)), np.nan)
            for i, wanted in enumerate(passes):
                if (table := scored.get(wanted)) is not None:
                    relative = table.columns["relative"][places.first(table)]
                    values[:, i] = clean, _summed(places, table), relative
            columns = values.reshape(3, -1)
            yield name, dict(zip(("clean", "noisy", "relative"), columns, strict=True))

    return Evidence.of(units, measured())


def noise_passes(sigmas: str, draws: int) -> list[Pass]:
    """The passes that score every scale with every draw."""
    return [Pass("noise", s, d) for s in scales(sigmas) for d in range(draws)]


def _summed(places: Places, table: TokenTable) -> np.ndarray:
    """Summed probability of each set."""
    nll = table.columns["nll"][places.of(table)].astype(np.float64)
    return places.summed(np.exp(-nll))


def token_sets(manifest: Manifest) -> Iterator[TokenSet]:
    """Example, kind and tokens of all that is averaged."""
    for example in manifest.examples:
        if example.split != "train" or example.canary_id is not None:
            continue
        if example.identifiers:
            yield example, "pii", example.identifier_tokens()
        if example.low:
            yield example, "low", np.asarray(example.low)


@dataclass(frozen=True)
class Sums:
    """Probabilities of one checkpoint and scale, summed by cluster.

    Attributes
    ----------
    sums
        Shape ``(C, 4)``: noisy and clean of identifiers, noisy and clean of
        low-sensitivity tokens; under noise, means over draws.
    tokens
        How many there are, by kind.
    """

    sums: np.ndarray
    tokens: Mapping[str, int]

    @classmethod
    def of(cls, part: pd.DataFrame, size: int) -> Sums:
        """Of scored units with ``noisy``, ``clean`` and their cluster's ``code``."""
        held = {kind: part[part["kind"] == kind] for kind in ("pii", "low")}
        draws = part["draw"].nunique()
        sums = [
            cluster_sums(kept[["noisy", "clean"]] / draws, kept["code"], size)
            for kept in held.values()
        ]
        tokens = {kind: round(kept["n"].sum() / draws) for kind, kept in held.items()}
        return cls(np.concatenate(sums, axis=1), tokens)

    def of_metric(self, metric: str) -> Estimand | Estimate:
        """What a metric is estimated from, or why it has no value."""
        names = {"pii": "identifier", "low": "low-sensitivity"}
        if lost := [names[k] for k in KINDS[metric] if not self.tokens[k]]:
            return Estimate.missing(f"there is no {lost[0]} token in this group")
        columns = {"dp_pii": slice(0, 2), "dp_nonpii": slice(2, 4), "gap": slice(0, 4)}
        return Estimand(
            self.sums[:, columns[metric]],
            STATISTICS[metric],
            sum(self.tokens[kind] for kind in KINDS[metric]),
            None if metric == "gap" else (-100.0, np.inf),
        )


def by_scale(units: pd.DataFrame) -> Iterator[tuple[float, pd.DataFrame]]:
    """The scored units of one checkpoint by scale, in their order."""
    scored = units.dropna(subset="noisy")
    for sigma in scored["sigma"].unique().tolist():
        yield sigma, scored[scored["sigma"] == sigma]


def _change(sums: np.ndarray) -> np.ndarray:
    """Relative change of the mean probability in percent."""
    return np.asarray(100 * (sums[..., 0] / sums[..., 1] - 1))


def _gap(sums: np.ndarray) -> np.ndarray:
    return np.asarray(_change(sums[..., 2:]) - _change(sums[..., :2]))


STATISTICS: Mapping[str, Statistic] = {
    "dp_pii": _change,
    "dp_nonpii": _change,
    "gap": _gap,
}


def gap_difference(sums: np.ndarray) -> np.ndarray:
    """How much more one side falls than the other, from sums of both."""
    return np.asarray(_gap(sums[..., :4]) - _gap(sums[..., 4:]))
