"""Canaries of known ranks: what is planted, and tables that score it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import audited
import numpy as np
from audited import the_one

from spark_audit.manifest.encodings import key_of
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult
from spark_audit.scoring.table import Pass, TokenTable

PARTS = ("full", "password", "ssn")
CANDIDATES = Pass("candidates")
Shift = Callable[[dict[str, Any]], float]
"""Standard deviations by which a canary's true string is likelier (below 0: less)."""


@dataclass(frozen=True)
class Planted:
    """A manifest with canaries, and tables whose true strings are shifted."""

    manifest: Manifest
    size: int

    def table(self, shift: float | Shift = 0.0, *, seed: int = 0) -> TokenTable:
        """Candidates' mean NLL is normal around 4 nats, 6 tokens each."""
        rng = np.random.default_rng(seed)
        items = []
        for one in self.manifest.canaries:
            if not one.candidates:
                continue
            by = shift(one.model_dump()) if callable(shift) else shift
            own = rng.normal(0, 0.5, self.size)
            assert one.true_index is not None
            own[one.true_index] -= 0.5 * by
            for context in one.contexts:
                key = key_of("canary", one.canary_id, one.part, context.example)
                mean = 4 + own + rng.normal(0, 0.1, self.size)
                columns = {"nll_mean": mean, "nll_sum": 6 * mean}
                where = np.arange(self.size, dtype=np.int32)
                items.append(
                    (key, where, {k: v.astype(np.float32) for k, v in columns.items()})
                )
        return TokenTable.from_items(items)

    def tables(self, **shifts: Any) -> dict[str, dict[Pass, TokenTable]]:
        return {
            name: {CANDIDATES: self.table(shift, seed=i)}
            for i, (name, shift) in enumerate(shifts.items())
        }


figure = partial(audited.figure, variant="full")
change = partial(audited.change, variant="full")


def guard(result: AuditResult, name: str) -> Any:
    return the_one(result.guards, name=name)


def trained_only(shift: float) -> Shift:
    return lambda canary: 0.0 if canary["held_out"] else shift


def by_split(trained: float, held_out: float) -> Shift:
    return lambda canary: held_out if canary["held_out"] else trained
