"""The state of its checkpoint in every row of a report, and which rows are void.

A failed setup guard voids an audit's results on a checkpoint. Frames and files must
mark this in each row, since no sentence is next to a figure there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from spark_audit.audits import about
from spark_audit.audits.setup_guards import faults
from spark_audit.report.checkpoint_states import CheckpointState, checkpoint_states
from spark_audit.report.tried import method_of
from spark_audit.results import Contrast, Finding, Report, Row

if TYPE_CHECKING:
    import pandas as pd
    from pandas._typing import ArrayLike

FigureT = TypeVar("FigureT", Row, Contrast, Finding)


class Marks:
    """States of checkpoints, and the guards that void an audit's figures on them."""

    def __init__(
        self, report: Report, all_checkpoint_states: Sequence[CheckpointState]
    ) -> None:
        self._guards = report.guards
        self._state_by_name: dict[str, str] = {}
        for checkpoint_state in all_checkpoint_states:
            self._state_by_name[checkpoint_state.name] = checkpoint_state.state

        # (audit, method) of each detection, which no guard can void.
        self._detections: set[tuple[str, str]] = set()
        for finding in report.findings:
            if finding.detected:
                self._detections.add((finding.audit, method_of(finding.checkpoint)))

        # (audit, checkpoint) -> name of the guard: a report has many rows of each.
        self._guard_by_place: dict[tuple[str, str], str] = {}

    def state(self, checkpoint: str) -> str:
        """Return the state of a checkpoint; empty for the base, which is not tested."""
        return self._state_by_name.get(method_of(checkpoint), "")

    def voided_by(self, audit: str, checkpoint: str) -> str:
        """Return the setup guard that voids an audit's figures of a checkpoint.

        Empty: no guard failed, or the audit detected something, which a fault of the
        setup cannot cause.
        """
        place = (audit, checkpoint)
        if place not in self._guard_by_place:
            self._guard_by_place[place] = self._failed_guard(audit, checkpoint)
        return self._guard_by_place[place]

    def _failed_guard(self, audit: str, checkpoint: str) -> str:
        """Return the result of :meth:`voided_by` without the cache."""
        if not checkpoint or not about(audit).voided_by_setup:
            return ""
        # Detections are of methods, figures may be of seeds and of stages.
        if (audit, method_of(checkpoint)) in self._detections:
            return ""

        failed_guards = faults(self._guards, checkpoint)
        return failed_guards[0].name if failed_guards else ""


def with_states(report: Report, marks: Marks | None = None) -> Report:
    """Return the report with ``state``, ``voided_by`` and status in every row.

    Parameters
    ----------
    marks
        Those of the report, where they are known.
    """
    if marks is None:
        marks = Marks(report, checkpoint_states(report))
    return report.copy_unchecked(
        results=_marked(report.results, marks),
        contrasts=_marked(report.contrasts, marks),
        findings=_marked(report.findings, marks),
    )


def _marked(figures: Iterable[FigureT], marks: Marks) -> list[FigureT]:
    """Return figures with the state of their checkpoint, the guard and the status."""
    marked = []
    for figure in figures:
        state = marks.state(figure.checkpoint)
        guard = _voiding_guard(figure, marks)

        # Other statuses, such as not estimable, say more than a faulty setup.
        status = figure.status
        if guard and status == "ok":
            status = "void"
        elif not guard and status == "void":
            # Another report marked it, which had other guards.
            status = "ok"

        is_marked = (figure.state, figure.voided_by, figure.status) == (
            state,
            guard,
            status,
        )
        if is_marked:
            marked.append(figure)
            continue

        # A void figure bounds nothing.
        at_most = None if guard else figure.at_most
        marked_figure = figure.copy_unchecked(
            state=state,
            voided_by=guard,
            status=status,
            at_most=at_most,
        )
        if isinstance(figure, Finding):
            # Its severity follows from its status: validating it works that out anew.
            marked_figure = type(figure).model_validate(vars(marked_figure))
        marked.append(marked_figure)
    return marked


def _voiding_guard(figure: Row | Finding, marks: Marks) -> str:
    """Return the guard that voids a figure; empty: none does.

    A finding may name its guard itself. One on nothing tested has no figure that could
    be void.
    """
    if isinstance(figure, Finding):
        if figure.voided_by:
            return figure.voided_by
        if figure.claim == "not_tested":
            return ""
    return marks.voided_by(figure.audit, figure.checkpoint)


def with_checkpoint_states(
    frame: pd.DataFrame, marks: Marks, name_column: str
) -> pd.DataFrame:
    """Return guards or checkpoints with the state of each checkpoint.

    They are no figures, so no guard voids them.

    Parameters
    ----------
    frame
        Columns ``state``, which is replaced, and ``name_column``: names of checkpoints.
    """
    states = [marks.state(name) for name in frame[name_column]]
    return frame.assign(state=_text_column(states))


def with_state_columns(frame: pd.DataFrame, marks: Marks, audit: str) -> pd.DataFrame:
    """Return a further table with the columns ``state``, ``voided_by`` and ``status``.

    Parameters
    ----------
    frame
        Records, with a column ``checkpoint``. Without it nothing is added. A status of
        its own stays, but for ``ok`` of what is void.
    audit
        The audit that the records are of. Empty: they are of none, so that no guard
        voids them.
    """
    if "checkpoint" not in frame:
        return frame

    # A record without a checkpoint has empty cells.
    checkpoints = frame["checkpoint"].fillna("")
    states = [marks.state(checkpoint) for checkpoint in checkpoints]
    guards = [
        marks.voided_by(audit, checkpoint) if audit else ""
        for checkpoint in checkpoints
    ]

    if "status" in frame:
        own_statuses = list(frame["status"].fillna("ok"))
    else:
        own_statuses = ["ok"] * len(frame)
    statuses = [
        "void" if guard and status == "ok" else status
        for guard, status in zip(guards, own_statuses, strict=True)
    ]

    # The table of stages has a column ``state`` of its own.
    state_column = "checkpoint_state" if "state" in frame else "state"
    return frame.assign(
        **{
            state_column: _text_column(states),
            "voided_by": _text_column(guards),
            "status": _text_column(statuses),
        }
    )


def _text_column(texts: list[str]) -> ArrayLike:
    """Return texts as a column of the nullable type, for a frame of their length."""
    # pandas takes long to import, and reading a report does not need it.
    import pandas as pd

    return pd.array(texts, dtype="string")
