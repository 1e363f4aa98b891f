"""How noise on input embeddings changes identifiers' probability.

SPARK's table of embedding perturbation: the relative change of the mean probability of
identifier tokens and of low-sensitivity tokens, and the gap between the two, here with
its sign (SPARK prints the absolute value).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from spark_audit.audits.base import Audit, Context, Plan, Tables, missing_rows
from spark_audit.audits.metric import Metric
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.names import ANY
from spark_audit.results import AuditResult
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.table import Pass

SIGMAS, DRAWS = "0.01,0.05,0.1,0.5", 3
METRICS = (
    Metric("dp_pii", "%", variants=(ANY,)),
    Metric("dp_nonpii", "%", variants=(ANY,)),
    Metric("gap", "points", learned=1, variants=(ANY,), headline=("0.1",)),
)
NOTHING = "the manifest has no identifier and no low-sensitivity token in a train row"
NOT_SCORED = "the texts were not scored both with and without noise"


@dataclass(frozen=True, kw_only=True)
class Noise(Audit):
    """Identifiers' probability under noise on the input embeddings.

    The evidence is one row per checkpoint, example, kind of token, scale and draw.
    Probabilities under noise are averaged over draws, token by token. Tokens are those
    of train rows without a canary: annotated identifiers, and low-sensitivity tokens
    as the manifest lists them.
    """

    name = "noise"
    metrics = METRICS
    nothing = NOTHING
    unscored = NOT_SCORED
    on_request = True

    sigmas: Annotated[str, "scales of the noise (sigma), separated by commas"] = SIGMAS
    draws: Annotated[int, "random draws of noise per scale"] = DRAWS

    def __post_init__(self) -> None:
        self._scales()
        if self.draws < 1:
            raise InputError(
                f"{self.draws} draws are too few",
                where="--draws",
                fix="give at least 1",
            )

    def _scales(self) -> list[float]:
        """The scales, each once, in their order."""
        try:
            found = [float(part) for part in self.sigmas.split(",")]
        except ValueError:
            found = []
        if not found or not all(math.isfinite(s) and s > 0 for s in found):
            raise InputError(
                "must be positive numbers separated by commas",
                where="--sigmas",
                fix=f"write, for example, {SIGMAS}",
            )
        return list(dict.fromkeys(found))

    def _passes(self) -> list[Pass]:
        """The passes that score every scale with every draw."""
        draws = range(self.draws)
        return [Pass("noise", s, d) for s in self._scales() for d in draws]

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Train rows without a canary that hold a token of either kind."""
        ids = sorted({example.id for example, *_ in _token_sets(manifest)})
        return dict.fromkeys((Pass(), *self._passes()), ids) if ids else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        from spark_audit.audits.noise.perturbed import noise_evidence

        return noise_evidence(tables, [*_token_sets(manifest)], self._passes())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        from spark_audit.audits.noise.perturbed import conclude

        result = conclude(evidence, context)
        scored = {(row.checkpoint, row.of) for row in result.rows}
        scales = [f"{sigma:g}" for sigma in evidence.units["sigma"].unique()]
        missing = [
            row
            for name in evidence.checkpoints
            for row in missing_rows(
                "noise",
                [name],
                METRICS,
                NOT_SCORED,
                variants=[of for of in scales if (name, of) not in scored],
            )
        ]
        return replace(result, rows=[*result.rows, *missing])

    def unmeasured(
        self, result: AuditResult, names: Sequence[str], reason: str
    ) -> AuditResult:
        """The result with a row per scale for checkpoints that have no figure."""
        every = [f"{sigma:g}" for sigma in self._scales()]
        rows = missing_rows("noise", names, METRICS, reason, variants=every)
        return replace(result, rows=[*result.rows, *rows])


def _token_sets(
    manifest: Manifest,
) -> Iterator[tuple[ManifestExample, str, np.ndarray]]:
    """Example, kind and tokens of all that is averaged."""
    for example in manifest.examples:
        if example.split != "train" or example.canary_id is not None:
            continue
        if example.identifiers:
            yield example, "pii", example.identifier_tokens()
        if example.low:
            yield example, "low", np.asarray(example.low)
