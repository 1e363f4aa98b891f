"""The state of its checkpoint in every row of a report, and which rows are void.

A setup guard that fails voids what an audit shows of a checkpoint: also in a frame or
a file, where no sentence stands beside the figure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from spark_audit.audits import about
from spark_audit.audits.setup_guards import faults
from spark_audit.report.standings import standings
from spark_audit.report.tried import method_of
from spark_audit.results import Contrast, Finding, Report, Row

if TYPE_CHECKING:
    import pandas as pd

F = TypeVar("F", Row, Contrast, Finding)


class Marks:
    """States of checkpoints, and the guards that void their figures, by audit."""

    def __init__(self, report: Report) -> None:
        self._guards = report.guards
        self._states = {one.name: one.state for one in standings(report)}
        self._standing = {
            (one.audit, method_of(one.checkpoint))
            for one in report.findings
            if one.detected
        }
        self._voided_by: dict[tuple[str, str], str] = {}

    def state(self, checkpoint: str) -> str:
        """Return the state of a checkpoint; empty of the base, which is no suspect."""
        return self._states.get(method_of(checkpoint), "")

    def voided_by(self, audit: str, checkpoint: str) -> str:
        """Return the setup guard that voids an audit's figures of a checkpoint.

        Empty where none does: where no guard failed, and where a detection stands, that
        a fault of the setup cannot cause.
        """
        place = audit, checkpoint
        if place not in self._voided_by:
            self._voided_by[place] = self._failed(audit, checkpoint)
        return self._voided_by[place]

    def _failed(self, audit: str, checkpoint: str) -> str:
        stands = (audit, method_of(checkpoint)) in self._standing
        if stands or not checkpoint or not about(audit).voided_by_setup:
            return ""
        failed = faults(self._guards, checkpoint)
        return failed[0].name if failed else ""


def with_states(report: Report) -> Report:
    """Return the report with ``state``, ``voided_by`` and status in every row."""
    marks = Marks(report)
    return report.model_copy(
        update={
            "results": _marked(report.results, marks),
            "contrasts": _marked(report.contrasts, marks),
            "findings": _marked(report.findings, marks),
        }
    )


def _marked(rows: Iterable[F], marks: Marks) -> list[F]:
    marked = []
    for row in rows:
        state = marks.state(row.checkpoint)
        guard = row.voided_by if isinstance(row, Finding) else ""
        if not guard and not _says_nothing(row):
            guard = marks.voided_by(row.audit, row.checkpoint)

        status = row.status
        if guard and status == "ok":
            status = "void"
        elif not guard and status == "void":
            status = "ok"  # marked by another report, over other guards
        if (row.state, row.voided_by, row.status) != (state, guard, status):
            update: dict[str, Any] = {
                "state": state,
                "voided_by": guard,
                "status": status,
            }
            if guard:
                update["at_most"] = None
            row = row.model_copy(update=update)
        marked.append(row)
    return marked


def _says_nothing(row: Row | Finding) -> bool:
    """Return whether a finding has no figure that could be void."""
    return isinstance(row, Finding) and row.claim == "not_tested"


def with_state_columns(frame: pd.DataFrame, report: Report, audit: str) -> pd.DataFrame:
    """Return a table of records with the columns ``state`` and ``voided_by``.

    Parameters
    ----------
    frame
        Records; without a column ``checkpoint`` (or ``name``, of the checkpoints
        themselves) they are of none, and nothing is added.
    audit
        That the records are of; empty: of none, so that no guard voids them.
    """
    column = next((name for name in ("checkpoint", "name") if name in frame), "")
    if not column or "voided_by" in frame:
        return frame
    marks = Marks(report)
    names = [str(name or "") for name in frame[column]]
    # Stages have a column of this name of their own.
    state = "checkpoint_state" if "state" in frame else "state"
    guards = [marks.voided_by(audit, name) if audit else "" for name in names]
    columns = {state: [marks.state(name) for name in names], "voided_by": guards}
    return frame.assign(**columns)
