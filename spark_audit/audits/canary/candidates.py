"""Candidates of canaries: what the canary audit scores, and the ranks that gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Plan, Tables
from spark_audit.manifest.prompts import canary_key
from spark_audit.manifest.schema import CanaryContext, Manifest, ManifestCanary
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.exposure import (
    candidate_ranks,
    extrapolated_exposure,
    posterior_bits,
)

CANDIDATES = Pass("candidates")
COLUMNS = (
    *("checkpoint", "kind", "canary_id", "part", "example", "format", "dose"),
    *("contexts", "n_candidates", "ties", "rank", "held_out"),
    *("nll_sum", "nll_mean", "posterior_bits", "extrapolated", "extrapolated_ks"),
    *("extrapolated_clipped", "pair"),
)
_FILLED = {"rank": 0, "ties": 0, "extrapolated_clipped": False}
_TYPES: dict[str, Any] = {
    **dict.fromkeys("dose contexts n_candidates rank ties".split(), np.int64),
    **dict.fromkeys(("held_out", "extrapolated_clipped"), bool),
    **dict.fromkeys("nll_sum nll_mean posterior_bits".split(), np.float64),
    **dict.fromkeys(("extrapolated", "extrapolated_ks"), np.float64),
}


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


def frames(
    tables: Tables, manifest: Manifest, *, paper: bool
) -> Iterator[pd.DataFrame]:
    """One row per canary, part and context, and one over its contexts.

    ``kind`` is ``context``; ``canary``, ranked once by each candidate's NLL averaged
    over contexts; ``unrankable`` or ``unscored``, without figures. ``rank`` is strict;
    ``nll_mean`` (nats per token), ``nll_sum`` and ``posterior_bits`` are the true
    string's; ``extrapolated`` is given to canaries at rank 1.
    """
    for name, passes in tables.items():
        table = passes.get(CANDIDATES)
        records: list[dict[str, Any]] = []
        for canary in manifest.canaries:
            head = {
                "checkpoint": name,
                "canary_id": canary.canary_id,
                "part": canary.part,
                "example": "",
                "format": canary.format,
                "dose": canary.dose,
                "held_out": canary.held_out,
                "pair": canary.pair or "",
                "contexts": 0,
                "n_candidates": len(canary.candidates),
            }
            contexts = _contexts(canary, paper=paper)
            if not canary.candidates or canary.true_index is None or not contexts:
                records.append(head | {"kind": "unrankable"})
                continue
            keys = [
                canary_key(canary.canary_id, canary.part, context.example)
                for context in contexts
            ]
            if table is None or any(key not in table for key in keys):
                records.append(head | {"kind": "unscored"})
                continue
            records += _records(head, contexts, keys, canary.true_index, table)
        frame = pd.DataFrame.from_records(records, columns=[*COLUMNS])
        empty = frame.astype(dict.fromkeys(_FILLED, object)).fillna(_FILLED)
        yield empty.astype(_TYPES)


def _contexts(canary: ManifestCanary, *, paper: bool) -> list[CanaryContext]:
    contexts = sorted(canary.contexts, key=lambda context: context.example)
    return contexts if paper else contexts[:1]


def _records(
    head: dict[str, Any],
    contexts: Sequence[CanaryContext],
    keys: Sequence[str],
    true: int,
    table: TokenTable,
) -> Iterator[dict[str, Any]]:
    """The rows of one canary part: one a context, then the one over contexts."""
    sums, means = (
        np.stack([table.columns[column][table.rows(key)] for key in keys]).astype(
            np.float64
        )
        for column in ("nll_sum", "nll_mean")
    )
    for context, total, mean in zip(contexts, sums, means, strict=True):
        yield head | {
            "kind": "context",
            "example": context.example,
            "contexts": 1,
            **_figures(total, mean, true),
        }
    whole = head | {
        "kind": "canary",
        "contexts": len(keys),
        **_figures(sums.mean(axis=0), means.mean(axis=0), true),
    }
    others = np.delete(means.mean(axis=0), true)
    first = whole["rank"] == 1 and not whole["ties"]
    if first and len(others) >= 20 and np.ptp(others) > 0:
        tail = extrapolated_exposure(whole["nll_mean"], others)
        whole |= {
            "extrapolated": tail.exposure,
            "extrapolated_ks": tail.ks,
            "extrapolated_clipped": tail.clipped,
        }
    yield whole


def _figures(total: np.ndarray, mean: np.ndarray, true: int) -> dict[str, Any]:
    ranks = candidate_ranks(mean, true)
    return {
        "rank": int(ranks.low[0]),
        "ties": int(ranks.high[0] - ranks.low[0]),
        "nll_sum": float(total[true]),
        "nll_mean": float(mean[true]),
        "posterior_bits": float(posterior_bits(total, true)[0]),
    }
