"""The report class for users of Python, with figures, states, rules and files.

:class:`~spark_audit.results.Report` holds only the data, so that lower layers need not
import this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import PrivateAttr

from spark_audit.arguments import checked_call
from spark_audit.cells_html import CellList
from spark_audit.manifest.schema import Manifest
from spark_audit.report import folder as report_folder
from spark_audit.report.at_a_glance import Glance
from spark_audit.report.cell_lists import (
    COLUMNS_OF_FIELDS,
    field_html,
    outcomes_html,
    states_html,
)
from spark_audit.report.checkpoint_states import CheckpointState, checkpoint_states
from spark_audit.report.disclosure.shared import rounded_for_owner
from spark_audit.report.figures import drawing
from spark_audit.report.figures.report_figure import ReportFigure
from spark_audit.report.frames import report_frame
from spark_audit.report.gate.judge import RuleOutcome, check
from spark_audit.report.gate.rules import DEFAULT_RULES, parse_rule
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.writers.pages import notebook_html
from spark_audit.results import Report

if TYPE_CHECKING:
    import pandas as pd


class AuditReport(Report):
    """A report with methods for its readers.

    ``sa.audit``, ``sa.compare`` and ``sa.read_report`` return one. Its fields are those
    of ``report.json``.

    Examples
    --------
    >>> report = sa.read_report("reports/mine")
    >>> isinstance(report, sa.AuditReport), {*report.to_frame()["audit"]}
    (True, {'nll'})
    """

    _folder: Path | None = PrivateAttr(default=None)
    """The folder that it was read from, which has its evidence; None: not known."""

    def model_post_init(self, context: Any) -> None:
        """Let notebooks show its lists as tables."""
        for name in COLUMNS_OF_FIELDS:
            html = partial(field_html, self, name)
            # The report is frozen, and its content stays the same.
            self.__dict__[name] = CellList(getattr(self, name), html)

    def copy_unchecked(self, **changed: Any) -> Self:
        """Return a copy with changed fields, whose lists notebooks show as tables."""
        copied = super().copy_unchecked(**changed)
        # Tables of the lists that were copied are those of this report.
        copied.model_post_init(None)
        return copied

    @classmethod
    def of(cls, report: Report) -> AuditReport:
        """Return a report with these methods, without a new check of its content."""
        if isinstance(report, AuditReport):
            return report

        fields = {name: getattr(report, name) for name in Report.model_fields}
        return cls.model_construct(set(report.model_fields_set), **fields)

    @checked_call
    def to_frame(self, of: str = "results") -> pd.DataFrame:
        """Return the rows as a frame, one figure per line.

        Records on a checkpoint have the columns ``state`` and ``voided_by`` (a setup
        guard).

        Parameters
        ----------
        of
            ``results``, ``contrasts``, ``guards``, ``findings``, ``checkpoints``, or
            the name of a further table.
        """
        return report_frame(self, of)

    @checked_call
    def plot(self, name: str, *, width: float | None = None) -> ReportFigure:
        """Draw one of the report's figures; :attr:`plots` lists those that it has.

        Its figures are rounded as those of the pages.

        Parameters
        ----------
        name
            Name of its file in ``figures/``: that of an audit (``matched``, ``canary``,
            ``twins``, ``mia``, ``extract``, ``series``, ``erasure``, ``stages``,
            ``rank``, ``nll``, ``utility``, ``noise``), ``selectivity``, ``draws``, or
            ``manifest``. ``memory`` means ``matched``, ``exposure`` ``canary``, ``roc``
            ``mia``, and ``accuracy`` ``utility``. Those of SPARK's paper are
            ``paper-selectivity``, ``paper-top1``, ``paper-likelihood``,
            ``paper-utility``, ``paper-orders``, ``paper-sweep``, ``paper-time``,
            ``paper-canary`` and ``paper-noise``.
        width
            Inches of a figure of the paper, from a column's 3.3 to a text's 6.9, the
            default. All others have a width of their own.

        Returns
        -------
        ReportFigure
            A notebook shows it as a picture; ``.figure`` is matplotlib's figure, and
            ``.axes`` its panels.

        Raises
        ------
        InputError
            If there is no such figure, or the report has no data for it (the message
            names those that can be drawn, or what a figure of the paper needs), or the
            width is not one that the figure can have.
        ArgumentError
            If the name is no text.
        """
        return drawing.plot(rounded_for_owner(self), name, width)

    @property
    def plots(self) -> dict[str, str]:
        """The figures that :meth:`plot` can draw of this report, with their titles."""
        return drawing.titles_of_figures(rounded_for_owner(self))

    @property
    def glance(self) -> Glance | None:
        """The first screen: answer, matrix and next steps; None where no audit attacks.

        Its figures are rounded as those of the pages.
        """
        return PreparedReport(rounded_for_owner(self)).answer

    def _repr_html_(self) -> str:
        """Return the answer as a notebook shows it."""
        html = notebook_html(PreparedReport(rounded_for_owner(self)))
        if html:
            return html
        return f"<pre>{escape(repr(self))}</pre>"

    @property
    def states(self) -> list[CheckpointState]:
        """The state of each checkpoint, with its evidence, the worst first."""
        return CellList(checkpoint_states(self), partial(states_html, self))

    @checked_call
    def gate(self, rules: str | Sequence[str] = ()) -> list[RuleOutcome]:
        """Return the outcome of rules on each checkpoint, as ``spark-audit gate`` does.

        Parameters
        ----------
        rules
            Rules as in ``--fail-if``; none: the default rules of the command.

        Raises
        ------
        InputError
            If a text is no rule, or names an unknown checkpoint.
        """
        if isinstance(rules, str):
            rules = [rules]
        outcomes = check(self, [parse_rule(rule) for rule in rules or DEFAULT_RULES])
        return CellList(outcomes, partial(outcomes_html, outcomes))

    @checked_call
    def save(
        self,
        folder: str | Path,
        formats: str | Sequence[str] = (),
        *,
        manifest: Manifest | None = None,
        show_text: bool = False,
        exact: bool = False,
    ) -> list[Path]:
        """Write it to a folder, as :func:`spark_audit.report.folder.write_report` does.

        A report about something else that the folder holds is kept in a dated folder
        beside it.

        Parameters
        ----------
        formats
            One or several formats; none: all that are not on request only.
        manifest, show_text
            The manifest gives formats the texts of examples. ``show_text`` allows them
            to show identifiers.
        exact
            Write ``csv`` and ``latex`` with exact figures into ``exact/``, for the
            owner of the report alone.
        """
        if isinstance(formats, str):
            formats = [formats]
        return report_folder.write_report(
            self,
            Path(folder),
            formats=formats,
            manifest=manifest,
            show_text=show_text,
            evidence_folder=self._folder,
            keeps_replaced=True,
            exact=exact,
        )


@checked_call
def read_report(folder: str | Path) -> AuditReport:
    """Read ``report.json`` of a report folder.

    Raises
    ------
    InputError
        If the folder has no report or an unreadable one, or a part of it is a link to a
        place outside.

    Examples
    --------
    >>> report = sa.read_report("reports/mine")
    >>> report.manifest.name
    'notes'
    """
    report = AuditReport.of(report_folder.read_report(folder))
    report._folder = Path(folder).resolve()
    return report
