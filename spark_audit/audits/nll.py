"""How likely identifiers, low-sensitivity text and canaries are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_audit.audits import identifiers, ratio_rows
from spark_audit.audits.base import (
    Audit,
    Context,
    LatexColumn,
    Metric,
    Plan,
    Tables,
    scored,
)
from spark_audit.audits.rank import _tokens_by_state
from spark_audit.audits.supervision import (
    COLUMN,
    canary_supervision,
    is_known,
    trained_identifiers,
)
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult, Finding
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass

NLL_SETS = ("pii", "low", "canary")


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
    metrics = (
        Metric(
            "nll",
            "nats",
            bounds=(0.0, np.inf),
            learned=-1,
            variants=NLL_SETS,
            missing=NLL_SETS,
            headline=("pii",),
        ),
    )
    latex_table = "ablations"
    latex_place = 1
    latex = (
        LatexColumn("Last ↑", "last", counted="answers", audit="utility"),
        LatexColumn("Avg ↑", "avg", counted="answers", audit="utility"),
        LatexColumn("BWT ↑", "bwt", counted="answers", audit="utility"),
        LatexColumn("PII NLL ↑", "nll", "pii"),
        LatexColumn("Low-sens. NLL ↓", "nll", "low"),
        LatexColumn("Canary NLL ↑", "nll", "canary", "canaries"),
    )
    nothing = unscored = "the manifest has no scored token of this kind"

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """All examples that hold a scored token of any of the three kinds."""
        ids = sorted({manifest.examples[i].id for i, *_ in _sets(manifest)})
        return {Pass(): ids} if ids else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        sets = list(_sets(manifest))
        if not sets:
            return Evidence()
        columns = ["of", "split", "task", "type", "cluster", COLUMN]
        units = pd.DataFrame([unit for *_, unit in sets], columns=columns)
        if not is_known(manifest):
            units = units.drop(columns=COLUMN)
        sizes = np.array([len(tokens) for _, tokens, _ in sets])
        copies = units.groupby(["of", "cluster"])["of"].transform("size")
        units["den"] = np.where(units["of"] == "canary", 1 / copies, sizes)
        scale = units["den"].to_numpy() / sizes

        def measured() -> Measured:
            for name, table in scored(tables):
                nll = identifiers.Sums(manifest, table)
                yield name, {"num": scale * nll.over(each[:2] for each in sets)}

        return Evidence.of(units, measured())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        units, names = evidence.units, evidence.checkpoints
        den, of = units["den"].to_numpy(), units["of"].to_numpy()
        groups, nll = ratio_rows.groups_of(units), {"nll": np.asarray}
        cells = ratio_rows.cells_of_units(
            groups, evidence, "num", metrics=nll, of=of, den=den
        )
        rows, contrasts = ratio_rows.ratio_figures(cells, context, NLL)
        lost = self.missing(names, self.nothing, beside=rows)
        findings = []
        pooled = [r for r in rows if r.group == "pooled" and r.value is not None]
        for name in dict.fromkeys(row.checkpoint for row in pooled):
            levels = [row for row in pooled if row.checkpoint == name]
            level_finding = Finding.on(
                levels[0],
                "moved",
                "nll.levels",
                facts={"levels": levels},
                further=["nll.levels_further"] if len(levels) > 2 else [],
            )
            findings.append(level_finding)
        for row in contrasts:
            if row.group == "pooled":
                says = f"nll.change_{row.direction(up='less', down='more')}"
                findings.append(Finding.on(row, "moved", says, facts={"change": row}))
        rows = [*ratio_rows.beside_base(rows), *lost]
        return AuditResult(rows=rows, contrasts=contrasts, findings=findings)


def _sets(manifest: Manifest) -> Iterator[tuple[int, np.ndarray, tuple[str, ...]]]:
    """Place of an example, tokens, and facts of the unit, of all that is averaged."""
    trained_on = trained_identifiers(manifest) if is_known(manifest) else None
    canaries = canary_supervision(manifest)
    for i, example in enumerate(manifest.examples):
        if example.canary_id is not None:
            parts = [span for span in example.spans if span.part is not None]
            planted = [at for span, at in example.identifiers if span.part is not None]
            # A canary that was cut or lies in part outside the context is no canary.
            if planted and len(planted) == len(parts):
                tokens = np.arange(np.min(planted), np.max(planted))
                # It may stand in several tasks, and is of no one type.
                state: str = canaries.get(example.canary_id, "")
                cluster = f"canary {example.canary_id}"
                yield i, tokens, ("canary", example.split, "", "", cluster, state)
            continue
        place = (example.split, example.task)
        for kind in sorted({span.type for span, _ in example.identifiers}):
            tokens_by_state = {"": example.identifier_tokens(kind)}
            if trained_on is not None:
                tokens_by_state = _tokens_by_state(example, kind, trained_on)
            for state, tokens in tokens_by_state.items():
                yield i, tokens, ("pii", *place, kind, example.cluster, state)
        if example.low:
            yield i, np.asarray(example.low), ("low", *place, "", example.cluster, "")
