"""The audit of passages: how much of a row greedy decoding recites.

If every token of a run is the model's first guess, greedy decoding that is given the
text before the run writes all of it. The longest run of each row follows from the ranks
that the plain pass scores, so that no text is generated. A *passage* is a run of at
least so many tokens (``--passages``). Rows are the members and non-members of the
manifest: trained and held-out rows without near-duplicates on the other side.

Findings are those of ``findings.py``. A new metric goes into
:data:`PASSAGES_METRICS` and :meth:`Passages.conclude`, with its name in
``sentences/en/metrics.toml`` and a line in ``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd

from spark_audit.audits import ratio_rows
from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, scored
from spark_audit.audits.mia.score_tables import plan_of_rows, scored_text
from spark_audit.audits.mia.texts import without_model
from spark_audit.audits.passages.findings import passage_findings
from spark_audit.audits.rate_contrasts import bounded
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult, Contrast, Finding, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.runs import longest_run

TEXT_PERMUTATIONS = 99
"""Permutations of the classifier that reads texts alone."""

STEP_OF_RUNS = 10.0
"""Least rounding step of the length of the longest run in shared files.

It is the figure of a single row. It is rounded down, so that a run that is too short
never looks like a passage.
"""

FROM_TEXT_BEFORE = "by greedy decoding that is given the text before"
"""Note on the length of a run."""

PASSAGES_METRICS = (
    Metric(
        "passage_rate",
        rate=True,
        learned=1,
        missing=("",),
        glance=("",),
        headline=("",),
    ),
    Metric(
        "longest_tokens",
        "tokens",
        learned=1,
        alone=True,
        note=FROM_TEXT_BEFORE,
        least_step=STEP_OF_RUNS,
        rounds="down",
    ),
    Metric(
        "longest_words",
        "words",
        learned=1,
        alone=True,
        note="by the words per token of its row",
        least_step=STEP_OF_RUNS,
        rounds="down",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Passages(Audit):
    """Passages of rows that greedy decoding recites from the text before them.

    The evidence is one row per row of text. Its columns are:

    ================  ==============================================================
    column            meaning
    ================  ==============================================================
    example           id of the row
    split, task       those of the row, as is ``cluster``; ``type`` is empty
    n_tokens          tokens that were scored
    n_words           words of the text that these are of
    run               tokens of its longest run of first guesses, without ties
    run_won           the same, if ties for the first place are won
    ================  ==============================================================
    """

    name = "passages"
    metrics = PASSAGES_METRICS
    nothing = "the manifest has no trained and held-out rows to compare"
    covers = ("passage_rate", "n")
    sides = ("recited", "unseen")
    strongest_claim = "verbatim"

    passages: Annotated[
        int, "tokens that a recited passage has at least, all of them first guesses"
    ] = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.passages < 1:
            raise InputError(
                f"{self.passages} is not a number of tokens",
                where="--passages",
                fix="give a whole number of at least 1",
            )

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return the rows of both sides: those of the membership audit."""
        return plan_of_rows(manifest)

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return one unit per row, with the longest run of each checkpoint."""
        ids = self.plan(manifest).get(Pass(), [])
        if not ids:
            return Evidence()

        texts = [scored_text(manifest.by_id[key]) for key in ids]
        texts_alone = without_model(
            manifest,
            texts,
            ids,
            seed=context.seed,
            permutations=TEXT_PERMUTATIONS,
        )
        units = _units_of(manifest, ids, texts)

        # A near-duplicate of a trained row is no control.
        is_control = ~texts_alone.units["is_crossing"].to_numpy(bool)
        units = units[is_control].reset_index(drop=True)

        def measured() -> Measured:
            """Yield the longest runs of each checkpoint, in the order of the units."""
            for name, table in scored(tables):
                # Without ranks the output of greedy decoding is unknown.
                if "rank_lo" in table.columns:
                    yield name, _longest_runs(table, units["example"])

        facts = {
            "least_tokens": self.passages,
            "text_p": texts_alone.figures.get("blind_p"),
        }
        return Evidence.of(units, measured(), facts)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return shares of rows with a passage, the longest ones, and findings."""
        n_tokens = evidence.facts["least_tokens"]
        units = evidence.units
        can_hold_one = units["n_tokens"] >= n_tokens
        if not (can_hold_one & (units["split"] == "train")).any():
            reason = f"no trained row has {n_tokens} scored tokens"
            untested = Finding.not_tested("passages", "passages.missing", reason=reason)
            rows = self.missing(evidence.checkpoints, reason)
            return AuditResult(results=rows, findings=[untested])

        rows, contrasts = _rates(evidence, units[can_hold_one], context)
        rows += _longest_rows(evidence)
        rows = ratio_rows.beside_base(rows)
        findings = passage_findings(
            evidence, rows, n_tokens=n_tokens, text_p=evidence.facts["text_p"]
        )
        return AuditResult(results=rows, contrasts=contrasts, findings=list(findings))


def _units_of(manifest: Manifest, ids: list[str], texts: list[str]) -> pd.DataFrame:
    """Return one line per row, with all facts but scores."""
    records: list[dict[str, Any]] = []
    for key, text in zip(ids, texts, strict=True):
        example = manifest.by_id[key]
        records.append(
            {
                "example": key,
                "split": example.split,
                "task": example.task,
                "type": "",
                "cluster": example.cluster,
                "n_tokens": int(example.scored.sum()),
                "n_words": len(text.split()),
            }
        )
    return pd.DataFrame.from_records(records)


def _longest_runs(table: TokenTable, ids: pd.Series) -> dict[str, np.ndarray]:
    """Return the longest runs of first guesses of rows, ``(rows,)`` tokens each."""
    rank = table.columns["rank_lo"]
    is_first = rank == 1  # (tokens,), bool
    is_sure = is_first & (table.columns["ties"] == 0)
    lines = [table.rows(key) for key in ids]
    return {
        "run": np.array([longest_run(is_sure[rows]).length for rows in lines], float),
        "run_won": np.array(
            [longest_run(is_first[rows]).length for rows in lines], float
        ),
    }


def _rates(
    evidence: Evidence, units: pd.DataFrame, context: Context
) -> tuple[list[Row], list[Contrast]]:
    """Return shares of rows with a passage, and their contrasts.

    Parameters
    ----------
    units
        The units that are long enough for a passage.
    """
    n_tokens = evidence.facts["least_tokens"]
    cells = ratio_rows.cells_of_units(
        ratio_rows.groups_of(units),
        evidence,
        "run",
        metrics={"passage_rate": lambda run: run >= n_tokens},
        # Groups index all units of the evidence.
        variants=np.full(len(evidence.units), ""),
    )
    rows, contrasts = ratio_rows.ratio_figures(cells, context, Passages)
    note = f"a passage has at least {n_tokens} tokens"
    noted = [row.model_copy(update={"note": _joined(row.note, note)}) for row in rows]
    return noted, bounded(contrasts, ("passage_rate",))


def _joined(note: str, further: str) -> str:
    """Return two notes as one."""
    return f"{note}; {further}" if note else further


def _longest_rows(evidence: Evidence) -> Iterator[Row]:
    """Yield the longest run of trained and of held-out rows, by checkpoint.

    Its words are estimated by the words per token of its row.
    """
    for group in ratio_rows.groups_of(evidence.units):
        if group.name not in ("pooled", "split:test"):
            continue

        units = evidence.units.iloc[group.positions]
        for checkpoint in evidence.checkpoints:
            runs = evidence.row(checkpoint, "run")[group.positions]  # (rows,), tokens
            if np.isnan(runs).any():
                continue

            longest = int(runs.argmax())
            n_tokens = float(runs[longest])
            row_of_it = units.iloc[longest]
            words_per_token = row_of_it["n_words"] / max(row_of_it["n_tokens"], 1)
            n_words = float(round(n_tokens * words_per_token))
            lengths = {"longest_tokens": n_tokens, "longest_words": n_words}
            for metric, length in lengths.items():
                estimate = Estimate(length, n=len(runs), clusters=group.n_clusters)
                estimate = estimate.noting(Passages.metric(metric).note)
                yield Passages.row(estimate, checkpoint, metric, group=group.name)
