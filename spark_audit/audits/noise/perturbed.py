"""Tokens under noise: their probabilities, and the figures that they give."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.base import Tables
from spark_audit.audits.metric import Metric
from spark_audit.audits.spans import Places
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.names import ANY
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.intervals import Statistic

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

    def __init__(self, part: pd.DataFrame, clusters: Sequence[str]) -> None:
        code = {name: i for i, name in enumerate(clusters)}
        draws = part["draw"].nunique()
        self.sums = np.zeros((len(clusters), 4))
        self.tokens: dict[str, int] = {}
        for i, kind in enumerate(("pii", "low")):
            own = part[part["kind"] == kind]
            at = own["cluster"].map(code).to_numpy(np.int64)
            np.add.at(self.sums[:, 2 * i], at, own["noisy"].to_numpy() / draws)
            np.add.at(self.sums[:, 2 * i + 1], at, own["clean"].to_numpy() / draws)
            self.tokens[kind] = round(own["n"].sum() / draws)

    def of(self, metric: str) -> tuple[np.ndarray, int]:
        """Sums that a metric is made of, zeros elsewhere, and its number of tokens."""
        sums = self.sums.copy()
        if metric == "dp_pii":
            sums[:, 2:] = 0.0
        elif metric == "dp_nonpii":
            sums[:, :2] = 0.0
        return sums, sum(self.tokens[kind] for kind in KINDS[metric])

    def lacks(self, metric: str) -> str | None:
        """Why a metric has no value."""
        names = {"pii": "identifier", "low": "low-sensitivity"}
        lost = [names[kind] for kind in KINDS[metric] if not self.tokens[kind]]
        return f"there is no {lost[0]} token in this group" if lost else None


def _change(noisy: np.ndarray, clean: np.ndarray) -> np.ndarray:
    """Relative change of the mean probability in percent."""
    return np.asarray(100 * (noisy / clean - 1))


def _gap(sums: np.ndarray) -> np.ndarray:
    low = _change(sums[..., 2], sums[..., 3])
    return np.asarray(low - _change(sums[..., 0], sums[..., 1]))


STATISTICS: Mapping[str, Statistic] = {
    "dp_pii": lambda sums: _change(sums[..., 0], sums[..., 1]),
    "dp_nonpii": lambda sums: _change(sums[..., 2], sums[..., 3]),
    "gap": _gap,
}


def gap_difference(sums: np.ndarray) -> np.ndarray:
    """How much more one side falls than the other, from sums of both."""
    return np.asarray(_gap(sums[..., :4]) - _gap(sums[..., 4:]))
