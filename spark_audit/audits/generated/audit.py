"""The audit of generated text: what of trained rows stands in files that a model wrote.

Synthetic data and replay buffers are handed on in the place of the data that they
imitate. A file takes the place of a checkpoint here: no model is opened, and there are
no scores. Its evidence is made by :mod:`~spark_audit.audits.generated.found`, for
``spark_audit/pipeline/generated_files.py``; findings are those of ``findings.py`` and
``nearest.py``.

A new metric goes into :data:`GENERATED_METRICS` and :func:`generated_figures`, with its
name in ``sentences/en/metrics.toml`` and a line in ``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pandas as pd

from spark_audit.audits import ratio_rows
from spark_audit.audits.base import Audit, Context, LatexColumn, Metric, Plan, Tables
from spark_audit.audits.generated.findings import generated_findings
from spark_audit.audits.generated.nearest import nearest_results
from spark_audit.audits.generated.units import CANARY, IDENTIFIER, ROW
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult, Row
from spark_audit.results.evidence import Evidence
from spark_audit.stats.estimate import Estimate

STEP_OF_LENGTHS = 5.0
"""Least rounding step of the length of the longest passage in shared files.

It is the figure of a single row.
"""

GENERATED_METRICS = (
    Metric(
        "identifier_rate",
        rate=True,
        learned=1,
        alone=True,
        missing=("",),
        glance=("",),
        headline=("",),
    ),
    Metric("near_rate", rate=True, alone=True),
    Metric("passage_rate", rate=True, learned=1, alone=True),
    Metric(
        "longest_words",
        "words",
        learned=1,
        alone=True,
        least_step=STEP_OF_LENGTHS,
        rounds="down",
    ),
    Metric("nearer_rate", rate=True, learned=1, alone=True),
    Metric("closer", "similarity", learned=1, alone=True, no_effect=0.0),
)


@dataclass(frozen=True, kw_only=True)
class Generated(Audit):
    """What of trained rows stands in files that a model wrote.

    The evidence has four sets of units
    (:mod:`~spark_audit.audits.generated.units`). Its columns are:

    ================  ==============================================================
    column            meaning
    ================  ==============================================================
    set               the set of the unit
    example, start    row and character of the unit; of a text its file and number
    split, task       those of the row, as are ``type``, ``origin`` and ``cluster``; of
                      a text the cluster of the row that it is nearest to
    part              part of a canary that the unit is
    dose              trained rows in which training read the string; 0: held out
    stratum           see :class:`~spark_audit.audits.identifiers.Facts`
    compared          whether a claim may rest on it
    n_words           words of the row
    (scores)          :data:`~spark_audit.audits.generated.found.SCORES`
    ================  ==============================================================
    """

    name = "generated"
    metrics = GENERATED_METRICS
    nothing = "it is about files of text that a model wrote, not about models"
    of_files = True
    example = "generated synthetic.jsonl --manifest manifests/reviews.json"
    covers = ("identifier_rate", "n")
    sides = ("standing", "unseen")
    attacks_identifiers = True
    strongest_claim = "verbatim"
    memory = True
    voided_by_setup = False
    counts = "identifiers"
    latex = (
        LatexColumn("Identifiers ↓", "identifier_rate", counted="strings"),
        LatexColumn("Passages ↓", "passage_rate", counted="rows"),
        LatexColumn("Closer ↓", "closer", counted="texts"),
    )

    passage_words: Annotated[
        int, "words that a passage has at least, which no row of another source holds"
    ] = 10
    field: Annotated[
        str | None, "the column of text; default: that of a usual name, or all messages"
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.passage_words < 2:
            raise InputError(
                f"{self.passage_words} words are no passage",
                where="--passage-words",
                fix="give a whole number of at least 2",
            )

    @classmethod
    def found_places(cls, evidence: Evidence) -> pd.DataFrame:
        """Return what stands where of trained rows, the first place of each."""
        return found_places(evidence)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return nothing: no text is scored by a model."""
        return {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return no evidence: that of files is made without scores."""
        return Evidence()

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return what stands in each file of trained and of held-out rows."""
        rows = [*generated_figures(evidence, context)]
        findings = [*generated_findings(evidence, rows)]
        for nearest in nearest_results(evidence, Generated):
            rows += [nearest.nearer, nearest.closer]
            findings.append(nearest.finding)
        return AuditResult(results=rows, findings=findings)


def found_places(evidence: Evidence) -> pd.DataFrame:
    """Return a line for each string and passage of trained rows in a file.

    Returns
    -------
    pandas.DataFrame
        ``checkpoint``, the file; ``text``, the number of the first of its texts that
        holds it, from 1; ``what``; ``row`` of the manifest, and ``start``, the
        character of an identifier there; its ``type``; ``words`` of a passage.
    """
    units = evidence.frame()
    units = units[(units["split"] == "train") & units["holder"].notna()]
    is_string = units["set"].isin((IDENTIFIER, CANARY))
    what = units["set"].where(units["set"] != ROW, "passage")
    what = what.where(~is_string | (units["hit"] > 0), "near miss")
    return pd.DataFrame(
        {
            "checkpoint": units["checkpoint"],
            "text": units["holder"].astype("int64"),
            "what": what,
            "row": units["example"],
            "start": units["start"].where(is_string).astype("Int64"),
            "type": units["type"],
            "words": units["words"].astype("Int64"),
        }
    ).sort_values(["checkpoint", "text", "row"], kind="stable")


def generated_figures(evidence: Evidence, context: Context) -> Iterator[Row]:
    """Yield the figures of strings and passages of each file, by group of units."""
    units = evidence.units
    identifiers = units[units["set"] == IDENTIFIER]
    long_rows = units[
        (units["set"] == ROW) & (units["n_words"] >= evidence.facts["least_words"])
    ]
    yield from _rates(evidence, identifiers, "hit", "identifier_rate", context)
    yield from _rates(evidence, identifiers, "near", "near_rate", context)
    yield from _rates(evidence, long_rows, "words", "passage_rate", context)
    yield from _longest_rows(evidence, long_rows)


def _rates(
    evidence: Evidence,
    units: pd.DataFrame,
    column: str,
    metric: str,
    context: Context,
) -> list[Row]:
    """Return the share of units whose score is above 0, by group."""
    cells = ratio_rows.cells_of_units(
        ratio_rows.groups_of(units),
        evidence,
        column,
        metrics={metric: lambda scores: (scores > 0).astype(np.float64)},
        # Groups index all units of the evidence.
        variants=np.full(len(evidence.units), ""),
    )
    rows, _ = ratio_rows.ratio_figures(cells, context, Generated)
    return rows


def _longest_rows(evidence: Evidence, long_rows: pd.DataFrame) -> Iterator[Row]:
    """Yield the longest passage of trained and of held-out rows in each file."""
    for group in ratio_rows.groups_of(long_rows):
        if group.name not in ("pooled", "split:test"):
            continue
        for name in evidence.checkpoints:
            n_words = evidence.row(name, "words")[group.positions]  # (rows,)
            estimate = Estimate(
                float(n_words.max()), n=len(n_words), clusters=group.n_clusters
            )
            yield Generated.row(estimate, name, "longest_words", group=group.name)
