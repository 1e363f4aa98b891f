"""The audit of stages: memory by task after each stage of a series.

Evidence is made here. From it follow cells, a task after a stage each
(``memory_cells.py``), then their states (``states.py``), then findings
(``findings.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from spark_audit.audits.base import Context, Metric, Plan, Tables
from spark_audit.audits.identifiers import (
    audited_spans,
    identifier_facts,
    plan_of_identifiers,
)
from spark_audit.audits.of_series import OfSeries, tasks_in_order
from spark_audit.audits.stages.findings import (
    again_finding,
    gain_findings,
    remembered_finding,
)
from spark_audit.audits.stages.memory_cells import (
    SeriesGain,
    cells_of_all_series,
    gain_of_series,
    series_scores,
)
from spark_audit.audits.stages.states import TaskState, states_of_tasks
from spark_audit.audits.token_sums import Sums
from spark_audit.data.occurrences import finder, folded, string_of
from spark_audit.manifest.schema import Manifest
from spark_audit.names import ANY_NAME
from spark_audit.results import AuditResult, Finding, Guard
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.guards import guard
from spark_audit.results.rows import grouped
from spark_audit.scoring.table import Pass

MIN_CLUSTERS_TO_SHOW_P = 3
"""Fewest clusters of a figure whose p the table of states shows."""


@dataclass(frozen=True, kw_only=True)
class Stages(OfSeries):
    """Memory of a series by stage and task: learned, kept or forgotten.

    The evidence is one row per checkpoint (a stage of a series) and occurrence of an
    identifier. Columns are those of ``_spans`` but ``index``, and:

    ===========  ===================================================================
    column       meaning
    ===========  ===================================================================
    ref_sum      its summed NLL by the reference model, nats
    nll_sum      its summed NLL by the checkpoint, nats
    place        the stage that trained on its task; 0 if the order of tasks is not
                 known, because none was given or it is not as long as the series
    ===========  ===================================================================
    """

    name = "stages"
    metrics = (
        Metric("memory", "nats", learned=-1, variants=(ANY_NAME,)),
        Metric("step", "nats", variants=(ANY_NAME,)),
        Metric("memory_by_series", "nats", learned=-1),
        Metric("memory_by_last", "nats", learned=-1),
        Metric("memory_gain", "nats"),
    )
    # A report without a series leaves this audit out without a reason.
    nothing = ""
    unscored = ""
    why_not_alone = "no series of several stages was given"
    # Memory after each stage is compared with identifiers never trained on.
    sees_base = False
    over = "over the tasks trained on so far"
    memory = True
    example = (
        "stages --ckpt 'mine=[run/step1,run/step2]' --base models/base --order t1,t2"
    )
    claims = False

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return the rows with audited identifiers."""
        # This refuses an order with unknown tasks before anything is scored.
        tasks_in_order(manifest, self.order)
        return plan_of_identifiers(manifest)

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return one unit per occurrence of an identifier; empty without a series."""
        # Checkpoint -> task -> the stage that trained on it.
        training_stages = self.training_stages(tables, manifest)
        if not training_stages:
            return Evidence()

        # Units: audited identifiers, and where their tokens stand in the manifest.
        spans = _spans(manifest)
        examples = spans["index"].to_numpy()  # (spans,), indices in the manifest
        starts = spans["start"].to_numpy()
        lengths = spans["n_tokens"].to_numpy()
        units = spans.drop(columns="index")
        units["ref_sum"] = Sums(manifest)(examples, starts, lengths)

        def measured() -> Measured:
            """Yield the summed NLL by each stage, and the stage of each task."""
            for name, stage_by_task in training_stages.items():
                sums = Sums(manifest, tables[name][Pass()])
                trained_at = units["task"].map(stage_by_task).fillna(0)  # 0: not known
                nll = sums(examples, starts, lengths)  # (spans,), nats
                yield name, {"nll_sum": nll, "trained_at": trained_at}

        return Evidence.of(units, measured())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return rows, findings and guards of every series, and states by task."""
        # Memory of each task after each stage, and the state that follows.
        all_series = series_scores(evidence)
        cells = [*cells_of_all_series(all_series.values())]
        states = states_of_tasks([cell for cell in cells if cell.task])

        rows = [cell.memory for cell in cells]
        # The first stage has no step: only the reference comes before it.
        rows += [state.cell.step for state in states if state.cell.stage > 1]

        # Findings and guards by series.
        findings = list[Finding]()
        guards = list[Guard]()
        gains: dict[str, SeriesGain] = {}
        states_by_series = grouped(states, lambda state: state.cell.series)
        cells_by_series = grouped(cells, lambda cell: cell.series)
        for name, series in all_series.items():
            states_of_series = states_by_series[name]
            cells_of_all_tasks = [
                cell for cell in cells_by_series[name] if not cell.task
            ]
            findings.append(
                remembered_finding(states_of_series, cells_of_all_tasks, states)
            )
            findings.append(again_finding(states_of_series, states))

            differing = _tasks_that_differed(states_of_series)
            guards += _early_guards(name, states_of_series, differing)

            # Tasks whose sides differed before training cannot show a gain.
            gain = gain_of_series(series, without=differing)
            if gain is not None:
                gains[name] = gain
                rows += [gain.best, gain.last, gain.gain]

        # Gains are corrected over all series.
        findings += gain_findings(gains)
        return AuditResult(
            results=rows,
            guards=guards,
            findings=findings,
            tables={"stages_states": [*_state_records(states)]},
        )


def _spans(manifest: Manifest) -> pd.DataFrame:
    """Return every occurrence of an audited identifier, without scores.

    Columns: those of :class:`~spark_audit.audits.identifiers.Facts`, and ``index``
    (place of its row in the manifest), ``example`` (id of the row), ``cluster``,
    ``task``, ``split``, ``type``, ``start`` (its first token), ``n_tokens``, and
    ``elsewhere`` (number of other tasks whose trained rows contain the same string).
    """
    facts = identifier_facts(manifest)
    tasks_by_string = _tasks_by_string(manifest)

    records = []
    for number, example, spans in audited_spans(manifest):
        for span, (start, end) in spans:
            tasks = tasks_by_string[string_of(example, span)]
            record = {
                "index": number,
                "example": example.id,
                "cluster": example.cluster,
                "task": example.task,
                "split": example.split,
                "type": span.type,
                "start": start,
                "n_tokens": end - start,
                **vars(facts[example.id, span.start, span.end]),
                "elsewhere": len(tasks - {example.task}),
            }
            records.append(record)
    return pd.DataFrame.from_records(records)


def _tasks_by_string(manifest: Manifest) -> dict[str, set[str]]:
    """Map each string to the tasks whose trained rows contain it, annotated or not."""
    strings_by_row: list[set[str]] = []
    all_strings = set[str]()
    for row in manifest.examples:
        strings = {string_of(row, span) for span in row.spans}
        strings_by_row.append(strings)
        all_strings |= strings

    # A string counts wherever it occurs, even without an annotation.
    find = finder(all_strings)
    tasks_by_string: dict[str, set[str]] = defaultdict(set)
    for row, strings in zip(manifest.examples, strings_by_row, strict=True):
        if row.split != "train":
            continue
        for string in strings | find(folded(row.text)):
            tasks_by_string[string].add(row.task)
    return tasks_by_string


def _tasks_that_differed(states: Sequence[TaskState]) -> list[str]:
    """Return the tasks whose sides differed before they were trained on."""
    tasks = set[str]()
    for state in states:
        if state.cell.is_before_training and state.is_significant:
            tasks.add(state.cell.task)
    return sorted(tasks)


def _early_guards(
    name: str, states: Sequence[TaskState], differing: Collection[str]
) -> Iterator[Guard]:
    """Yield one guard on whether sides differed before their tasks were trained on.

    It warns (``passed`` is None) if some did. There is none if no task was tested
    before its training.

    Parameters
    ----------
    name
        Name of the series.
    states
        Single tasks of the series.
    differing
        Tasks of :func:`_tasks_that_differed`.
    """
    n_tested = 0
    for state in states:
        if state.cell.is_before_training and state.memory_p is not None:
            n_tested += 1
    if not n_tested:
        return

    says = "early_alike"
    passed: bool | None = True
    if differing:
        says = "early_apart"
        passed = None
    yield guard(
        "tasks not yet trained on",
        says,
        {"figures": n_tested, "tasks": [*differing]},
        passed=passed,
        checkpoint=name,
        further=["early_figures"],
    )


def _state_records(states: Sequence[TaskState]) -> Iterator[dict[str, Any]]:
    """Yield the records of the table of states, in the order of stages.

    They have no figures, which are rows of the report.
    """
    for state in sorted(states, key=lambda state: state.cell.stage):
        cell = state.cell
        # The p of a few clusters says nothing and may not be shared.
        n_clusters = cell.memory.clusters
        shows_p = n_clusters >= MIN_CLUSTERS_TO_SHOW_P
        yield {
            "checkpoint": cell.series,
            "task": cell.task,
            "stage": cell.stage,
            "trained_at": cell.trained_at or None,
            "state": state.state,
            "p_adjusted": state.memory_p if shows_p else None,
            "likelier_again": state.is_likelier_again,
            "step_p_adjusted": state.step_p if shows_p else None,
            "clusters": n_clusters,
        }
