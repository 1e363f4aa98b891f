"""The audit of NLL levels: identifiers, low-sensitivity text and canaries.

It gives mean NLL in nats per token, by group, next to that of the base model and as
changes from a baseline. It claims no memory, since any fine-tuning moves these levels.
"""

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
    Trained,
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
"""Identifiers, low-sensitivity text, and canaries."""


class SetFacts(NamedTuple):
    """Facts on a set of tokens, which are columns of the evidence.

    Attributes
    ----------
    of
        One of :data:`NLL_SETS`.
    split, task, cluster
        Those of its example; a canary has no task, and is a cluster of its own.
    type
        Type of the identifiers; empty: it has none.
    supervision
        What training did with the identifiers or the canary, one of the states of
        :mod:`spark_audit.audits.supervision`; empty: it is not known, or the text is no
        identifier.
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

    The evidence is one row per set of tokens, with the columns of ``SetFacts``,
    ``num`` and ``den``; a mean NLL is a sum of ``num`` over a sum of ``den``.

    ==========  ======================================  ==============  ===============
    ``of``      tokens                                  ``num``         ``den``
    ==========  ======================================  ==============  ===============
    ``pii``     identifiers of one type in a row        summed NLL      tokens
                without a canary
    ``low``     low-sensitivity tokens of such a row    summed NLL      tokens
    ``canary``  one planted string, from its first to   mean NLL per    1 / number of
                its last secret part                    token * den     strings of it
    ==========  ======================================  ==============  ===============

    Every canary therefore counts once, however often it was planted. Canaries of test
    rows were held out: their figures are those of ``canary`` in the group
    ``split:test``, and never in ``pooled``.
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
        """Return the sets of tokens, and ``num`` of each by each checkpoint."""
        sets = list(_token_sets(manifest))
        if not sets:
            return Evidence()

        units = pd.DataFrame([token_set.facts for token_set in sets])
        if not is_known(manifest):
            units = units.drop(columns=COLUMN)

        # Each planted string of a canary is a set; the canary is its own cluster.
        n_tokens = np.array([len(token_set.tokens) for token_set in sets])
        n_strings = units.groupby(["of", "cluster"])["of"].transform("size")
        is_canary = units["of"] == "canary"
        units["den"] = np.where(is_canary, 1 / n_strings, n_tokens)
        num_per_nat = units["den"].to_numpy() / n_tokens  # (units,), 1 but of canaries

        def measured() -> Measured:
            """Yield ``num`` of all sets by each checkpoint, nats."""
            for name, table in scored(tables):
                nll = Sums(manifest, table)
                summed_nll = nll.over(sets)  # (units,), nats
                yield name, {"num": num_per_nat * summed_nll}

        return Evidence.of(units, measured())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return rows and contrasts of the mean NLL, and findings on pooled ones."""
        units = evidence.units

        # Sums of ``num`` over sums of ``den``, by group of units.
        cells = ratio_rows.cells_of_units(
            ratio_rows.groups_of(units),
            evidence,
            "num",
            metrics={"nll": np.asarray},
            of=units["of"].to_numpy(),
            den=units["den"].to_numpy(),
        )
        rows, contrasts = ratio_rows.ratio_figures(cells, context, NLL)
        findings = [*_findings(rows, contrasts)]

        # Add the level of the base to each row, and rows for sets without tokens.
        rows_without_figure = self.missing(
            evidence.checkpoints, self.nothing, beside=rows
        )
        rows = [*ratio_rows.beside_base(rows), *rows_without_figure]
        return AuditResult(rows=rows, contrasts=contrasts, findings=findings)


def _findings(rows: list[Row], contrasts: list[Contrast]) -> Iterator[Finding]:
    """Yield one finding on the levels of each checkpoint, and one on each change.

    All findings are on pooled train rows, and claim at most that figures moved. A level
    is a mean NLL in nats per token; a change is above 0 where text became less likely
    than under the baseline.
    """
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
        if contrast.group != "pooled":
            continue
        direction = contrast.direction(up="less", down="more")
        yield Finding.on(
            contrast,
            "moved",
            f"nll.change_{direction}",
            facts={"change": contrast},
        )


def _token_sets(manifest: Manifest) -> Iterator[TokenSet[SetFacts]]:
    """Yield the sets of tokens of all examples of a manifest, one after the other.

    An example with a canary has those of the canary; any other has its identifiers by
    type, and its low-sensitivity text.
    """
    trained_on = trained_identifiers(manifest) if is_known(manifest) else None
    supervision_of_canaries = canary_supervision(manifest)
    for i, example in enumerate(manifest.examples):
        if example.canary_id is not None:
            supervision = supervision_of_canaries.get(example.canary_id, "")
            yield from _canary_set(i, example, supervision)
        else:
            yield from _identifier_sets(i, example, trained_on)
            yield from _low_set(i, example)


def _identifier_sets(
    index: int, example: ManifestExample, trained_on: Trained | None
) -> Iterator[TokenSet[SetFacts]]:
    """Yield the tokens of an example's identifiers, by type and by what training did.

    Parameters
    ----------
    index
        Index of the example in ``manifest.examples``.
    trained_on
        What training did with the identifiers; ``None``: it is not known.
    """
    types = {span.type for span, _ in example.identifiers}
    for pii_type in sorted(types):
        # Where training is known, tokens in the loss and tokens only read are two sets.
        if trained_on is None:
            tokens_by_supervision = {"": example.identifier_tokens(pii_type)}
        else:
            tokens_by_supervision = tokens_by_state(example, pii_type, trained_on)

        for supervision, tokens in tokens_by_supervision.items():
            facts = SetFacts(
                of="pii",
                split=example.split,
                task=example.task,
                type=pii_type,
                cluster=example.cluster,
                supervision=supervision,
            )
            yield TokenSet(index, tokens, facts)


def _low_set(index: int, example: ManifestExample) -> Iterator[TokenSet[SetFacts]]:
    """Yield the low-sensitivity tokens of an example, if it has any."""
    if not example.low:
        return

    facts = SetFacts(
        of="low",
        split=example.split,
        task=example.task,
        type="",
        cluster=example.cluster,
        supervision="",
    )
    yield TokenSet(index, np.asarray(example.low), facts)


def _canary_set(
    index: int, example: ManifestExample, supervision: str
) -> Iterator[TokenSet[SetFacts]]:
    """Yield the tokens of a canary, from its first to its last secret part.

    A canary that was cut, or that is partly outside of the context, gives none.
    """
    planted_parts = [span for span in example.spans if span.part is not None]
    tokens_of_parts = [
        tokens for span, tokens in example.identifiers if span.part is not None
    ]
    if not tokens_of_parts or len(tokens_of_parts) != len(planted_parts):
        return

    # A canary may stand in examples of several tasks, and its parts have several types.
    facts = SetFacts(
        of="canary",
        split=example.split,
        task="",
        type="",
        cluster=f"canary {example.canary_id}",
        supervision=supervision,
    )
    start = np.min(tokens_of_parts)
    end = np.max(tokens_of_parts)
    yield TokenSet(index, np.arange(start, end), facts)
