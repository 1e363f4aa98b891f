"""What the formats of one report share, each worked out once.

A page, its text and its tables begin with the same states and show the same tables. A
:class:`PreparedReport` owns them: each is worked out when a format first asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from spark_audit.report.at_a_glance import Glance, glance_of
from spark_audit.report.attacks import AttackSummary, attacks
from spark_audit.report.cells import ReportTable
from spark_audit.report.checkpoint_states import CheckpointState, checkpoint_states
from spark_audit.report.finding_groups import AuditFindings, findings_by_audit
from spark_audit.report.glance import glance
from spark_audit.report.tables import further_tables, tables
from spark_audit.report.void_rows import Marks, with_states
from spark_audit.results import Report


@dataclass(frozen=True)
class PreparedReport:
    """A report with what its formats share; the report MUST not change meanwhile."""

    report: Report

    @cached_property
    def checkpoint_states(self) -> Sequence[CheckpointState]:
        """The state of each checkpoint, the worst first."""
        return checkpoint_states(self.report)

    @cached_property
    def attacks(self) -> Sequence[AttackSummary]:
        """A summary of each attack over all checkpoints."""
        return attacks(self.report, self.checkpoint_states)

    @cached_property
    def answer(self) -> Glance | None:
        """The report at a glance; None where no audit of it attacks anything."""
        return glance_of(self.report, self.checkpoint_states)

    @cached_property
    def key_figures(self) -> ReportTable | None:
        """The table of one main figure per audit; None: there are no figures."""
        return glance(self.report)

    @cached_property
    def tables(self) -> Sequence[ReportTable]:
        """All tables of figures, then those of records."""
        return [*tables(self.report), *further_tables(self.report)]

    @cached_property
    def pooled_tables(self) -> Sequence[ReportTable]:
        """The tables of figures with their pooled rows alone."""
        return tables(self.report, brief=True)

    @cached_property
    def findings_by_audit(self) -> Mapping[str, AuditFindings]:
        """The findings of each audit, in groups and a table."""
        return findings_by_audit(self.report)

    @cached_property
    def marks(self) -> Marks:
        """States of checkpoints, and the guards that void figures on them."""
        return Marks(self.report, self.checkpoint_states)

    @cached_property
    def marked(self) -> Report:
        """The report with state, guard and status in every row."""
        return with_states(self.report, self.marks)
