"""Candidates of canaries: what the canary audit scores, and the ranks that gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Plan, Tables
from spark_audit.manifest.prompts import canary_key
from spark_audit.manifest.schema import CanaryContext, Manifest, ManifestCanary
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.candidate_ranks import (
    candidate_ranks,
    extrapolated_exposure,
    posterior_bits,
)

CANDIDATES = Pass("candidates")
VALUES = (
    *("rank", "ties", "nll_sum", "nll_mean", "posterior_bits"),
    *("extrapolated", "extrapolated_ks", "extrapolated_clipped"),
)


def plan(manifest: Manifest, *, paper: bool) -> Plan:
    """Candidates of every canary that can be ranked.

    A canary is ranked in its first row by id, with ``paper`` in all that the manifest
    lists.
    """
    keys = [
        canary_key(canary.canary_id, canary.part, context.example)
        for canary in manifest.canaries
        if canary.candidates
        for context in _contexts(canary, paper=paper)
    ]
    return {CANDIDATES: sorted(keys)} if keys else {}


def rank_evidence(tables: Tables, manifest: Manifest, *, paper: bool) -> Evidence:
    """One unit per canary, part and context, and one over its contexts.

    ``kind`` is ``context``; ``canary``, ranked once by each candidate's NLL averaged
    over contexts; or ``unrankable``. ``rank`` is strict; ``nll_mean`` (nats per token),
    ``nll_sum`` and ``posterior_bits`` are the true string's; ``extrapolated`` is given
    to canaries at rank 1.
    """
    ranked = [(one, _keys(one, paper=paper)) for one in manifest.canaries]
    units = pd.DataFrame.from_records(
        [unit for canary, keys in ranked for unit in _units(canary, keys)]
    )

    def measured() -> Measured:
        for name, passes in tables.items():
            table = passes.get(CANDIDATES)
            rows = [x for canary, keys in ranked for x in _scores(canary, keys, table)]
            scores = np.array(rows, np.float64).reshape(-1, len(VALUES))
            yield name, dict(zip(VALUES, scores.T, strict=True))

    kept = manifest.settings.canary_contexts if paper else None
    return Evidence.of(units, measured(), {"kept_contexts": kept})


def canary_frame(evidence: Evidence) -> pd.DataFrame:
    """One row per checkpoint and unit; canaries without ranks are ``unscored``."""
    parts = []
    for name in evidence.checkpoints:
        part = evidence.whole(name)
        lost = part["rank"].isna()
        unscored = lost & (part["kind"] == "canary")
        part.loc[unscored, "kind"] = "unscored"
        part = part[~(lost & (part["kind"] == "context"))]
        parts.append(part.fillna({"rank": 0, "ties": 0, "extrapolated_clipped": 0}))
    frame = pd.concat(parts, ignore_index=True)
    kinds = {"rank": np.int64, "ties": np.int64, "extrapolated_clipped": bool}
    return frame.astype(kinds)


def _units(canary: ManifestCanary, keys: dict[str, str]) -> Iterator[dict[str, Any]]:
    head = {
        "canary_id": canary.canary_id,
        "part": canary.part,
        "example": "",
        "format": canary.format,
        "dose": canary.dose,
        "held_out": canary.held_out,
        "pair": canary.pair or "",
        "contexts": len(keys),
        "n_candidates": len(canary.candidates),
    }
    for example in keys:
        yield head | {"kind": "context", "example": example, "contexts": 1}
    yield head | {"kind": "canary" if keys else "unrankable"}


def _keys(canary: ManifestCanary, *, paper: bool) -> dict[str, str]:
    """Key of the candidates in each context; none if it cannot be ranked."""
    if not canary.candidates or canary.true_index is None:
        return {}
    return {
        context.example: canary_key(canary.canary_id, canary.part, context.example)
        for context in _contexts(canary, paper=paper)
    }


def _contexts(canary: ManifestCanary, *, paper: bool) -> list[CanaryContext]:
    contexts = sorted(canary.contexts, key=lambda context: context.example)
    return contexts if paper else contexts[:1]


def _scores(
    canary: ManifestCanary, keys: dict[str, str], table: TokenTable | None
) -> Iterator[list[float]]:
    """:data:`VALUES` of the units of one canary part; NaN if it was not scored."""
    true = canary.true_index
    if (
        not keys
        or true is None
        or table is None
        or not all(k in table for k in keys.values())
    ):
        yield from [[np.nan] * len(VALUES)] * (len(keys) + 1)
        return
    sums, means = (
        np.stack([table.columns[column][table.rows(key)] for key in keys.values()])
        for column in ("nll_sum", "nll_mean")
    )
    sums, means = sums.astype(np.float64), means.astype(np.float64)
    for total, mean in zip(sums, means, strict=True):
        yield [*_figures(total, mean, true), np.nan, np.nan, 0.0]
    mean = means.mean(axis=0)
    whole = _figures(sums.mean(axis=0), mean, true)
    others = np.delete(mean, true)
    tail = [np.nan, np.nan, 0.0]
    if whole[:2] == [1, 0] and len(others) >= 20 and np.ptp(others) > 0:
        found = extrapolated_exposure(mean[true], others)
        tail = [found.exposure, found.ks, found.clipped]
    yield [*whole, *tail]


def _figures(total: np.ndarray, mean: np.ndarray, true: int) -> list[float]:
    ranks = candidate_ranks(mean, true)
    low, high = int(ranks.low[0]), int(ranks.high[0])
    bits = float(posterior_bits(total, true)[0])
    return [low, high - low, float(total[true]), float(mean[true]), bits]
