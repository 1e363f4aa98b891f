"""Which rows a checkpoint is shown to have been trained on, as a frame."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.arguments import checked_call
from spark_audit.errors import InputError
from spark_audit.report.folder import read_report
from spark_audit.report.named import NAMED_SHARE, evidence_of, named_rows

if TYPE_CHECKING:
    import pandas as pd

NAMED_COLUMNS = {
    "checkpoint": "string",
    "row": "string",
    "task": "string",
    "source": "string",
    "named": "boolean",
    "why": "string",
}
"""Columns of the frame, with their types."""


@checked_call
def read_named_rows(folder: str | Path, *, share: float = NAMED_SHARE) -> pd.DataFrame:
    """Read which trained rows of a report are shown to have been used for training.

    This is ``spark-audit persons``: it follows from the evidence of the membership
    audit (``mia``) in the report's folder, and needs neither model nor texts.

    Parameters
    ----------
    folder
        Folder of the report.
    share
        Expected share of false ones among the named rows of a checkpoint.

    Returns
    -------
    pandas.DataFrame
        A line for each checkpoint and trained row: ``checkpoint``, ``row`` (its id),
        ``task``, ``source`` (the group of rows that share a source or a person),
        ``named``, and ``why`` no row of the checkpoint can be named, empty if some can.

    Raises
    ------
    InputError
        If the share is not between 0 and 1, or the folder has no report or no evidence
        of membership.
    OutputError
        If the evidence differs from that of the report.

    Examples
    --------
    >>> checkpoints, audits = {"mine": "runs/mine"}, ["mia"]
    >>> report = sa.audit(checkpoints, "m.json", base=base, audits=audits, output="mia")
    >>> rows = sa.read_named_rows("mia")
    >>> len(rows), int(rows["named"].sum())
    (12, 0)
    """
    import pandas as pd

    if not 0 < share < 1:
        raise InputError("is not between 0 and 1", where=f"share={share}")

    folder = Path(folder)
    report = read_report(folder)
    tables = []
    for named in named_rows(report, evidence_of(report, folder), share=share):
        rows = named.rows.rename(columns={"group": "source"})
        tables.append(rows.assign(checkpoint=named.checkpoint, why=named.why))

    # A report on the base alone has no trained rows.
    if not tables:
        return pd.DataFrame(columns=[*NAMED_COLUMNS]).astype(NAMED_COLUMNS)
    table = pd.concat(tables, ignore_index=True)
    return table[[*NAMED_COLUMNS]].astype(NAMED_COLUMNS)
