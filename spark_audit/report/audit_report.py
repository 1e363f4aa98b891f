"""A report as Python's users have it: its figures, states, rules and files at hand.

:class:`~spark_audit.results.Report` is the data alone, so that nothing below reports
imports what stands on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.manifest.schema import Manifest
from spark_audit.report import folder as report_folder
from spark_audit.report.at_a_glance import Glance, glance_of
from spark_audit.report.disclosure.shared import rounded_for_owner
from spark_audit.report.figures import drawing
from spark_audit.report.frames import report_frame
from spark_audit.report.gate.judge import RuleOutcome, check
from spark_audit.report.gate.rules import DEFAULT_RULES, parse_rule
from spark_audit.report.standings import Standing, standings
from spark_audit.report.writers.pages import notebook_html
from spark_audit.results import Report

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class AuditReport(Report):
    """A report, with what its readers ask of it.

    ``sa.audit``, ``sa.compare`` and ``sa.read_report`` return one. Its fields are those
    of ``report.json``.
    """

    @classmethod
    def of(cls, report: Report) -> AuditReport:
        """Return a report with these methods; its content is not checked again."""
        if isinstance(report, AuditReport):
            return report

        fields = {name: getattr(report, name) for name in Report.model_fields}
        return cls.model_construct(set(report.model_fields_set), **fields)

    def to_frame(self, of: str = "results") -> pd.DataFrame:
        """Return the rows as a frame, one figure per line.

        A record of a checkpoint has its ``state`` and the setup guard that it is
        ``voided_by``.

        Parameters
        ----------
        of
            ``results``, ``contrasts``, ``guards``, ``findings``, ``checkpoints``, or
            the name of a further table.
        """
        return report_frame(self, of)

    def plot(self, name: str) -> Axes:
        """Draw one of the report's figures.

        Parameters
        ----------
        name
            As its file in ``figures/`` is called, for instance ``selectivity``.

        Returns
        -------
        Axes
            Of the figure's first panel; ``.figure`` is the whole.

        Raises
        ------
        InputError
            If there is no such figure, or the report holds nothing for it.
        """
        return drawing.plot(self, name)

    @property
    def glance(self) -> Glance | None:
        """The first screen: answer, matrix and next steps; None where no audit attacks.

        Its figures are rounded as those of the pages.
        """
        return glance_of(rounded_for_owner(self))

    def _repr_html_(self) -> str:
        """Return the answer as a notebook shows it."""
        html = notebook_html(rounded_for_owner(self))
        if html:
            return html
        return f"<pre>{escape(repr(self))}</pre>"

    @property
    def standings(self) -> list[Standing]:
        """The state of each checkpoint, with its evidence, the worst first."""
        return standings(self)

    def gate(self, rules: str | Sequence[str] = ()) -> list[RuleOutcome]:
        """Return the outcome of rules on each checkpoint, as ``spark-audit gate`` does.

        Parameters
        ----------
        rules
            As ``--fail-if`` has them; none: those of the command.

        Raises
        ------
        InputError
            If a text is no rule, or names a checkpoint that the report has not.
        """
        if isinstance(rules, str):
            rules = [rules]
        return check(self, [parse_rule(rule) for rule in rules or DEFAULT_RULES])

    def save(
        self,
        folder: str | Path,
        formats: str | Sequence[str] = (),
        *,
        manifest: Manifest | None = None,
        show_text: bool = False,
    ) -> list[Path]:
        """Write it to a folder, as :func:`spark_audit.report.folder.write_report` does.

        Parameters
        ----------
        formats
            One or several; none: all that are not only on request.
        manifest, show_text
            For the words of examples, in formats that show some; whether identifiers
            among them may be shown.
        """
        if isinstance(formats, str):
            formats = [formats]
        return report_folder.write_report(
            self,
            Path(folder),
            formats=formats,
            manifest=manifest,
            show_text=show_text,
        )


def read_report(folder: str | Path) -> AuditReport:
    """Read ``report.json`` of a report folder.

    Raises
    ------
    InputError
        If the folder holds no report, or one that this version cannot read, or what
        should be in it is a link out of it.
    """
    return AuditReport.of(report_folder.read_report(folder))
