"""How likely identifiers, other text and canaries are, unmatched, in nats per token.

SPARK's NLL of PII, low-sensitivity and canary tokens. Identifiers are harder than
other text for any model: the figures are for comparison between checkpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, scored
from spark_audit.audits.ratio_rows import (
    beside_base,
    cells_of_units,
    groups_of,
    ratio_figures,
)
from spark_audit.audits.spans import summed
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.results import AuditResult, Contrast, Finding, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass

KINDS = ("pii", "low", "canary")
METRICS = (
    Metric(
        "nll",
        "nats",
        bounds=(0.0, np.inf),
        learned=-1,
        variants=KINDS,
        missing=KINDS,
        headline=("pii",),
    ),
)
NOTHING = "the manifest has no scored token of this kind"


@dataclass(frozen=True, kw_only=True)
class NLL(Audit):
    """Mean NLL of identifiers, other text and canaries, without matching.

    The evidence is the summed NLL ``num`` of ``den`` tokens per example, kind and PII
    type. ``pii`` are annotated identifiers of rows without a canary, ``low``
    low-sensitivity tokens as the manifest lists them, ``canary`` the tokens from the
    first to the last secret part of a canary; canaries of test rows were held out. For
    canaries, ``num`` is the mean over the tokens of one planted string, and ``den`` is
    1 divided by the number of strings of the canary, so that every canary counts once.
    """

    name = "nll"
    metrics = METRICS
    nothing = NOTHING
    unscored = NOTHING

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """All examples that hold a scored token of any of the three kinds."""
        ids = sorted({example.id for example, *_ in _sets(manifest)})
        return {Pass(): ids} if ids else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        sets = list(_sets(manifest))
        if not sets:
            return Evidence()
        tokens = [(example.id, tokens) for example, *_, tokens in sets]
        sizes = [len(each) for _, each in tokens]
        copies = Counter(key for _, of, key, _ in sets if of == "canary")
        units = pd.DataFrame.from_records(
            [
                # A canary may stand in several tasks, and is of no one type.
                (of, example.split, "", "", f"canary {key}", 1 / copies[key])
                if of == "canary"
                else (of, example.split, example.task, key, example.cluster, n)
                for (example, of, key, _), n in zip(sets, sizes, strict=True)
            ],
            columns=["of", "split", "task", "type", "cluster", "den"],
        ).astype({"den": np.float64})
        scale = units["den"].to_numpy() / sizes

        def measured() -> Measured:
            for name, table in scored(tables):
                nll = summed(table, tokens, table.columns["nll"])
                yield name, {"num": nll * scale}

        return Evidence.of(units, measured())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        units, names = evidence.units, evidence.checkpoints
        den, of = units["den"].to_numpy(), units["of"].to_numpy()
        groups, nll = groups_of(units), {"nll": np.asarray}
        cells = cells_of_units(groups, evidence, "num", metrics=nll, of=of, den=den)
        rows, contrasts = ratio_figures(cells, context, NLL)
        return AuditResult(
            rows=[*beside_base(rows), *self.missing(names, NOTHING, beside=rows)],
            contrasts=contrasts,
            findings=[*_findings(rows, contrasts)],
        )


def _sets(manifest: Manifest) -> Iterator[tuple[ManifestExample, str, str, np.ndarray]]:
    """Example, kind, PII type or canary, and tokens of all that is averaged."""
    for example in manifest.examples:
        if example.canary_id is not None:
            planted = [
                tokens for span, tokens in example.identifiers if span.part is not None
            ]
            # A canary that was cut or lies in part outside the context is no canary.
            parts = sum(span.part is not None for span in example.spans)
            if planted and len(planted) == parts:
                tokens = np.arange(np.min(planted), np.max(planted))
                yield example, "canary", example.canary_id, tokens
            continue
        for kind in sorted({span.type for span, _ in example.identifiers}):
            yield example, "pii", kind, example.identifier_tokens(kind)
        if example.low:
            yield example, "low", "", np.asarray(example.low)


def _findings(rows: Sequence[Row], contrasts: Sequence[Contrast]) -> Iterator[Finding]:
    pooled = [r for r in rows if r.group == "pooled" and r.value is not None]
    for checkpoint in dict.fromkeys(row.checkpoint for row in pooled):
        levels = [row for row in pooled if row.checkpoint == checkpoint]
        yield Finding.on(levels[0], "moved", "nll.levels", facts={"levels": levels})
    for row in contrasts:
        if row.group == "pooled":
            says = f"nll.change_{row.direction(up='less', down='more')}"
            yield Finding.on(row, "moved", says, facts={"change": row})
