"""Checkpoints whose identifiers moved by known amounts, and their matched audits."""

from collections.abc import Callable
from typing import Any

import numpy as np
from audited import (
    matched,
)

from spark_audit.results import AuditResult


def same(key: str, nll: np.ndarray) -> np.ndarray:
    return nll


def moved(
    case: Any,
    *,
    trained: float,
    never: float,
    other: float,
    spread: float = 0.0,
    seed: int = 0,
) -> Callable[[str, np.ndarray], np.ndarray]:
    """Identifiers of either side and other text moved by so much, spans by a draw."""
    rng = np.random.default_rng(seed)
    draws = {key: rng.normal(0, spread, 2) for key in case.reference}

    def change(key: str, nll: np.ndarray) -> np.ndarray:
        out = nll + other
        by = trained if case.manifest.by_id[key].split == "train" else never
        for (start, end), draw in zip(case.spans(key), draws[key], strict=False):
            out[start:end] = nll[start:end] + by + draw
        return out

    return change


def silent(result: AuditResult) -> None:
    """No sentence says memory or suppression of what shows neither."""
    for line in result.verdict:
        assert "remember" not in line
        assert "uppress" not in line


def audit(case: Any, /, *, baseline: str | None = None, **changes: Any) -> AuditResult:
    result = matched(
        case.tables(**changes),
        case.manifest,
        baseline=baseline,
        placebo_draws=2,
        rematched=False,
    )
    # Every sentence has its facts, also where the correction withdrew the claim.
    for finding in result.findings:
        assert finding.sentence
        if finding.detected and finding.family == "primary":
            withdrawn = finding.model_copy(update={"claim": "nothing_shown"})
            assert withdrawn.sentence
    assert all(guard.detail for guard in result.guards)
    return result
