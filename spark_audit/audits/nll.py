"""How likely identifiers, low-sensitivity text and canaries are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits import ratio_rows
from spark_audit.audits.base import (
    Audit,
    Context,
    LatexColumn,
    Metric,
    Plan,
    Tables,
    scored,
)
from spark_audit.audits.rank import tokens_by_state
from spark_audit.audits.supervision import (
    COLUMN,
    canary_supervision,
    is_known,
    trained_identifiers,
)
from spark_audit.audits.token_sums import Sums, TokenSet
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.results import AuditResult, Contrast, Finding, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass

NLL_SETS = ("pii", "low", "canary")


class SetFacts(NamedTuple):
    """What is known of a set of tokens: columns of the evidence.

    ``of`` is one of :data:`NLL_SETS`; ``supervision`` is what training did with it.
    """

    of: str
    split: str
    task: str
    type: str
    cluster: str
    supervision: str


@dataclass(frozen=True, kw_only=True)
class NLL(Audit):
    """Mean NLL of identifiers, other text and canaries, without matching.

    The evidence is the summed NLL ``num`` of ``den`` tokens per example, kind and PII
    type. ``pii`` are annotated identifiers of rows without a canary, ``low``
    low-sensitivity tokens as the manifest lists them, ``canary`` the tokens from the
    first to the last secret part of a canary; canaries of test rows were held out. For
    canaries, ``den`` is 1 divided by the number of planted strings of the canary, and
    ``num`` the mean NLL over the tokens of one string times ``den``: so every canary
    counts once, however often it was planted.
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
        """Return all examples that hold a scored token of any of the three kinds."""
        examples = {token_set.example for token_set in _token_sets(manifest)}
        if not examples:
            return {}
        return {Pass(): sorted(manifest.examples[i].id for i in examples)}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return the summed NLL of each set of tokens by each checkpoint."""
        sets = list(_token_sets(manifest))
        if not sets:
            return Evidence()

        units = pd.DataFrame([token_set.facts for token_set in sets])
        if not is_known(manifest):
            units = units.drop(columns=COLUMN)

        # Every canary counts once, however many strings of it were planted.
        n_tokens = np.array([len(token_set.tokens) for token_set in sets])
        n_copies = units.groupby(["of", "cluster"])["of"].transform("size")
        units["den"] = np.where(units["of"] == "canary", 1 / n_copies, n_tokens)
        scale = units["den"].to_numpy() / n_tokens  # (units,)

        def measured() -> Measured:
            for name, table in scored(tables):
                nll = Sums(manifest, table)
                sums = nll.over(
                    (token_set.example, token_set.tokens) for token_set in sets
                )
                yield name, {"num": scale * sums}

        return Evidence.of(units, measured())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return rows and contrasts of the mean NLL, and findings on pooled ones."""
        units = evidence.units
        # Every figure is a sum of NLL over a sum of tokens, or of canaries.
        cells = ratio_rows.cells_of_units(
            ratio_rows.groups_of(units),
            evidence,
            "num",
            metrics={"nll": np.asarray},
            of=units["of"].to_numpy(),
            den=units["den"].to_numpy(),
        )
        rows, contrasts = ratio_rows.ratio_figures(cells, context, NLL)
        rows_without_figure = self.missing(
            evidence.checkpoints, self.nothing, beside=rows
        )
        findings = [*_findings(rows, contrasts)]
        rows = [*ratio_rows.beside_base(rows), *rows_without_figure]
        return AuditResult(rows=rows, contrasts=contrasts, findings=findings)


def _findings(rows: list[Row], contrasts: list[Contrast]) -> Iterator[Finding]:
    """Yield one finding on the levels of each checkpoint, and one on each change."""
    pooled = [row for row in rows if row.group == "pooled" and row.value is not None]
    for name in dict.fromkeys(row.checkpoint for row in pooled):
        levels = [row for row in pooled if row.checkpoint == name]
        yield Finding.on(
            levels[0],
            "moved",
            "nll.levels",
            facts={"levels": levels},
            further=["nll.levels_further"] if len(levels) > 2 else [],
        )

    for contrast in contrasts:
        if contrast.group == "pooled":
            direction = contrast.direction(up="less", down="more")
            yield Finding.on(
                contrast,
                "moved",
                f"nll.change_{direction}",
                facts={"change": contrast},
            )


def _token_sets(manifest: Manifest) -> Iterator[TokenSet[SetFacts]]:
    """Yield all sets of tokens: of canaries, of identifiers by type, of other text."""
    trained_on = trained_identifiers(manifest) if is_known(manifest) else None
    supervision_of_canaries = canary_supervision(manifest)
    for i, example in enumerate(manifest.examples):
        if example.canary_id is not None:
            supervision = supervision_of_canaries.get(example.canary_id, "")
            yield from _canary_set(i, example, supervision)
            continue

        # Where training is known, tokens in the loss and those only read are apart.
        for pii_type in sorted({span.type for span, _ in example.identifiers}):
            by_state = {"": example.identifier_tokens(pii_type)}
            if trained_on is not None:
                by_state = tokens_by_state(example, pii_type, trained_on)
            for state, tokens in by_state.items():
                facts = SetFacts(
                    of="pii",
                    split=example.split,
                    task=example.task,
                    type=pii_type,
                    cluster=example.cluster,
                    supervision=state,
                )
                yield TokenSet(i, tokens, facts)

        if example.low:
            facts = SetFacts(
                of="low",
                split=example.split,
                task=example.task,
                type="",
                cluster=example.cluster,
                supervision="",
            )
            yield TokenSet(i, np.asarray(example.low), facts)


def _canary_set(
    place: int, example: ManifestExample, supervision: str
) -> Iterator[TokenSet[SetFacts]]:
    """Yield the tokens of a canary, from its first to its last secret part.

    A canary that was cut or lies in part outside the context is no canary.
    """
    parts_planted = [span for span in example.spans if span.part is not None]
    parts_scored = [
        tokens for span, tokens in example.identifiers if span.part is not None
    ]
    if not parts_scored or len(parts_scored) != len(parts_planted):
        return

    # It may stand in several tasks, and is of no one type.
    facts = SetFacts(
        of="canary",
        split=example.split,
        task="",
        type="",
        cluster=f"canary {example.canary_id}",
        supervision=supervision,
    )
    tokens = np.arange(np.min(parts_scored), np.max(parts_scored))
    yield TokenSet(place, tokens, facts)
