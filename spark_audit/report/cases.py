"""Single rows as cases: how likely each checkpoint finds their identifiers.

The paper shows such a case, a row of FOMC: two checkpoints answer alike, and one finds
the identifiers of the row less likely. Cases follow from the evidence in the report
folder, without a model or texts. They are figures of single rows, so that they are for
the owner of the data alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.audits import Matched, Utility, about
from spark_audit.names import BASE, series_of
from spark_audit.report.named import evidence_of
from spark_audit.results import Report

if TYPE_CHECKING:
    import pandas as pd

IDENTIFIER_ROLE = "pii"
"""Role of the annotated identifiers among the units of the matched audit."""

CASE_COLUMNS = {
    "row": "string",
    "task": "string",
    "split": "string",
    "source": "string",
    "types": "string",
    "identifiers": "Int64",
    "tokens": "Int64",
    "checkpoint": "string",
    "nll": "Float64",
    "nll_reference": "Float64",
    "is_right": "boolean",
}
"""Columns of the cases, with their types."""


def cases_of(report: Report, folder: Path) -> pd.DataFrame:
    """Return a line for each row with matched identifiers and each checkpoint.

    Returns
    -------
    pandas.DataFrame
        ``row`` (its id), ``task``, ``split``, ``source`` (the group of rows that share
        a source or a person); ``types``, ``identifiers`` and ``tokens`` of its matched
        identifiers; the ``checkpoint``; ``nll``, their mean NLL in nats per token, and
        ``nll_reference``, that of the manifest's reference; and ``is_right``, whether
        the row's question was answered rightly, missing if it was not asked. Rows in
        which checkpoints differ most come first. Empty if the report has no evidence of
        matched identifiers.

    Raises
    ------
    OutputError
        If the evidence differs from that of the report.
    """
    import pandas as pd

    if not has_cases(report):
        return pd.DataFrame(columns=[*CASE_COLUMNS]).astype(CASE_COLUMNS)

    # One line for each checkpoint and identifier, then for each checkpoint and row.
    units = evidence_of(report, folder, Matched.name).frame()
    identifiers = units[units["role"] == IDENTIFIER_ROLE]
    by_row = identifiers.groupby(["checkpoint", "example"], sort=False)
    cases = by_row.agg(
        task=("task", "first"),
        split=("split", "first"),
        source=("cluster", "first"),
        types=("type", lambda types: ", ".join(sorted(set(types)))),
        identifiers=("start", "size"),
        tokens=("n_tokens", "sum"),
        nll_sum=("nll_sum", "sum"),
        ref_sum=("ref_sum", "sum"),
    ).reset_index()
    cases = cases.rename(columns={"example": "row"})
    cases["nll"] = cases["nll_sum"] / cases["tokens"]
    cases["nll_reference"] = cases["ref_sum"] / cases["tokens"]

    cases = cases.merge(_answers(report, folder), how="left", on=["checkpoint", "row"])
    return _most_different_first(cases)[[*CASE_COLUMNS]].astype(CASE_COLUMNS)


def has_cases(report: Report) -> bool:
    """Return whether a report states the evidence that cases are made of."""
    return _has_evidence(report, Matched.name)


def _has_evidence(report: Report, audit: str) -> bool:
    """Return whether the report states evidence of an audit."""
    return about(audit).evidence_file() in report.evidence


def _answers(report: Report, folder: Path) -> pd.DataFrame:
    """Return whether each checkpoint answered each row's question rightly.

    Of a series of stages, the last one stands for the checkpoint.

    Returns
    -------
    pandas.DataFrame
        Columns ``checkpoint``, ``row`` and ``is_right``.
    """
    import pandas as pd

    if not _has_evidence(report, Utility.name):
        columns = {"checkpoint": "string", "row": "string", "is_right": "boolean"}
        return pd.DataFrame(columns=[*columns]).astype(columns)

    evidence = evidence_of(report, folder, Utility.name)
    last_stages = {series_of(name): name for name in evidence.checkpoints}
    answers = evidence.frame()
    # Units without a question have neither 0 nor 1.
    is_asked = answers["correct"].isin([0.0, 1.0])
    is_last = answers["checkpoint"].isin(last_stages.values())
    answers = answers[is_asked & is_last]
    return pd.DataFrame(
        {
            "checkpoint": answers["checkpoint"].map(series_of),
            "row": answers["example"],
            "is_right": answers["correct"] == 1.0,
        }
    )


def _most_different_first(cases: pd.DataFrame) -> pd.DataFrame:
    """Return cases by row, those first in whose NLL checkpoints differ most."""
    trained = cases[cases["checkpoint"] != BASE]
    nll_by_row = trained.groupby("row")["nll"]
    spreads = nll_by_row.max() - nll_by_row.min()  # (rows,), nats per token
    spread = cases["row"].map(spreads).fillna(0.0)
    order = cases.assign(spread=spread).sort_values(
        ["spread", "row"], ascending=[False, True], kind="stable"
    )
    return order.reset_index(drop=True)
