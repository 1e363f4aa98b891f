"""The audit of utility: task accuracy of a checkpoint, stage by stage.

Rows of the manifest's test split are asked as questions. A scorer says which answers
are right: ``normalised`` and ``strict`` compare generated text with the row's response,
and ``likelihood`` takes the likeliest label of the task. The evidence is made here;
``answers.py`` puts it together by series, and ``figures.py`` has figures and finding.

A new scorer is a name in :data:`SCORERS`; one of generated text also is a column of the
pass ``generate`` (:mod:`spark_audit.scoring.answers`), and needs the comparison of
labels in :meth:`Utility.evidence`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context, LatexColumn, Metric, Plan, Tables, scored
from spark_audit.audits.of_series import OfSeries, tasks_in_order
from spark_audit.audits.utility.answers import all_series
from spark_audit.audits.utility.figures import (
    Drawer,
    accuracy_finding,
    matrix_records,
    series_contrasts,
    series_rows,
)
from spark_audit.errors import one_of
from spark_audit.manifest.encodings import key_of, task_labels
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.schema import Manifest
from spark_audit.names import ANY_NAME, series_of
from spark_audit.results import AuditResult, Contrast, Finding, Guard, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.guards import guard
from spark_audit.results.report_checks import ACCURACY_MATRIX
from spark_audit.scoring.answers import normalised
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats import accuracy_intervals
from spark_audit.stats.bootstrap import Weights, draw_in_strata

NEWLINE = 1
"""The code of the column ``stop`` for an answer that a newline ended."""

NO_TEST_ROW = "has no test row without a canary"

NO_LABELS = "has no set of labels for the scorer `likelihood`"
"""Why a task has no question. The name of the task stands in front."""

NOT_ASKED_SCORE = -1.0
"""Score of a unit that is a task without a question; 1 is a right answer, 0 a wrong
one."""

SCORERS = ("normalised", "strict", "likelihood")

RANGE_OF_SHARE = (0.0, 1.0)
"""Range of an accuracy."""


class Question(NamedTuple):
    """A test row that is asked, or a task without one: columns of the evidence.

    Attributes
    ----------
    example
        Id of the row; empty: the task has no question.
    task, cluster
        Those of the row; without a question the cluster is empty.
    answer
        The right one, as the scorer compares it; None: no question.
    reason
        Why the task has no question; empty: this is one.
    """

    example: str
    task: str
    cluster: str
    answer: str | None
    reason: str


class Asked(NamedTuple):
    """The rows of the manifest that are asked as questions.

    Attributes
    ----------
    tasks
        Names of the tasks in training order.
    rows
        The rows that are asked, a task at a time.
    reasons
        Task -> why none of its rows is asked.
    """

    tasks: list[str]
    rows: list[ManifestExample]
    reasons: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Utility(OfSeries):
    """Task accuracy after every stage: Last, Avg, BWT, forgetting.

    The evidence is one line per checkpoint (a stage of a series) and test row, without
    text. Its columns are those of ``_units``, ``correct`` (1, 0, or -1: not asked)
    and ``empty`` (1: a wrong answer that ended before a word). The default order is
    that in which tasks first appear in the manifest; the command line reads the order
    from the runs of ``spark-train``.
    """

    name = "utility"
    metrics = (
        Metric(
            "last",
            bounds=RANGE_OF_SHARE,
            learned=1,
            known_as="accuracy",
            is_useful=True,
            missing=("",),
            glance=("",),
            headline=("",),
        ),
        Metric("avg", bounds=RANGE_OF_SHARE, missing=("",)),
        Metric("bwt", missing=("",)),
        Metric("forgetting", missing=("",)),
        Metric("learning_accuracy", bounds=RANGE_OF_SHARE, missing=("",)),
        Metric("accuracy", bounds=RANGE_OF_SHARE, rate=True, variants=(ANY_NAME,)),
    )
    unscored = "no answer of this checkpoint was scored"
    over = "over test rows"
    chance = True
    voided_by_setup = False
    table_rules = {ACCURACY_MATRIX: "digits"}
    latex = (
        LatexColumn("BWT ↑", "bwt", counted="answers"),
        LatexColumn("Last ↑", "last", counted="answers"),
        LatexColumn("Avg ↑", "avg", counted="answers"),
    )
    latex_records = (ACCURACY_MATRIX,)
    latex_place = 1
    example = "utility --ckpt runs/mine --data data/test.jsonl"

    scorer: Annotated[str, f"how an answer is scored: {', '.join(SCORERS)}"] = (
        "normalised"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.scorer, "--scorer", SCORERS)

    @classmethod
    def is_of_nobody(cls, unit: str) -> bool:
        """Return True: answers are counted, of tasks and not of people."""
        return True

    @classmethod
    def latex_columns(
        cls, rows: Sequence[Row], findings: Sequence[Finding], *, paper: bool
    ) -> Sequence[LatexColumn]:
        """Return a column per task with its last accuracy, then the others."""
        # Each task has a row for each stage; its group is `task:` and its name.
        tasks = dict.fromkeys(
            row.group_value for row in rows if row.metric == "accuracy"
        )
        columns = []
        for task in tasks:
            if not task:
                continue
            column = LatexColumn(
                header=task,
                metric="accuracy",
                variant="last",
                counted="answers",
                group=f"task:{task}",
            )
            columns.append(column)
        return [*columns, *cls.latex]

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return test rows of the order's tasks that have a response and no canary."""
        ids = sorted(row.id for row in self._asked(manifest).rows)
        if not ids:
            return {}
        if self.scorer == "likelihood":
            return {Pass("candidates"): [key_of("labels", key) for key in ids]}
        return {Pass("generate"): ids}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return one unit per question, and one per task without any.

        Facts of the evidence: the ``order`` of tasks, whether it is ``assumed``, the
        ``scorer``, tasks whose labels it cannot tell apart (``clash``), and how many
        test rows have no response (``blank``).
        """
        # Choose the rows to ask, and the comparison of answers.
        asked = self._asked(manifest)
        labels = task_labels(manifest)
        compare = normalised if self.scorer == "normalised" else str.strip
        is_by_likelihood = self.scorer == "likelihood"
        wanted = Pass("candidates" if is_by_likelihood else "generate")

        def measured() -> Measured:
            """Yield the answers of each checkpoint: asked rows, then other tasks."""
            n_asked = len(asked.rows)
            n_units = n_asked + len(asked.reasons)
            for name, table in scored(tables, wanted):
                correct = np.full(n_units, NOT_ASKED_SCORE)  # (units,)
                empty = np.zeros(n_units)  # (units,), 1: empty
                if is_by_likelihood:
                    correct[:n_asked] = _right_by_likelihood(table, asked.rows, labels)
                else:
                    answers = _answers(table, asked.rows, self.scorer)
                    correct[:n_asked] = answers.is_right
                    empty[:n_asked] = answers.is_empty
                yield name, {"correct": correct, "empty": empty}

        # If there are fewer series than checkpoints, some checkpoints are stages: then
        # the order of tasks matters.
        has_stages = len({series_of(name) for name in tables}) < len(tables)
        has_several_tasks = len(asked.tasks) > 1
        facts = {
            "order": asked.tasks,
            "assumed": self.order is None and has_stages and has_several_tasks,
            "scorer": self.scorer,
            "clash": _tasks_with_like_labels(asked.tasks, labels, compare),
            "blank": _n_without_response(manifest, asked.tasks),
        }
        return Evidence.of(self._units(asked, compare), measured(), facts)

    def _units(self, asked: Asked, compare: Callable[[str], str]) -> pd.DataFrame:
        """Return the units of the evidence: the questions, then tasks without any.

        Parameters
        ----------
        compare
            Brings an answer into the form in which the scorer compares it.

        Returns
        -------
        Columns of :class:`Question`, with ``chance`` instead of ``answer``: the share
        of the most common answer of the task. Also ``scorer``, and ``task_index``: the
        task's number in training order, from 0.
        """
        questions = [
            Question(row.id, row.task, row.cluster, compare(row.answer), reason="")
            for row in asked.rows
        ]
        for task, reason in asked.reasons.items():
            questions.append(Question("", task, cluster="", answer=None, reason=reason))
        units = pd.DataFrame(questions, columns=[*Question._fields])

        # Accuracy of always giving the most common response.
        shares = units.groupby("task")["answer"].value_counts(normalize=True)
        chance_of_task = shares.groupby("task").max()
        chance = units["task"].map(chance_of_task).fillna(0.0)

        index_of_task = {task: i for i, task in enumerate(asked.tasks)}
        # Answers are text, which evidence has not: the chance takes their column.
        units = units.rename(columns={"answer": "chance"})
        return units.assign(
            chance=chance,
            scorer=self.scorer,
            task_index=units["task"].map(index_of_task),
        )

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return rows, contrasts and findings; names are those of series."""
        series_by_name = dict(all_series(evidence))
        draws = _drawer(context)

        # First the figures and the finding of each series by itself.
        rows: list[Row] = []
        findings: list[Finding] = []
        matrices: list[dict[str, Any]] = []
        for name, series in series_by_name.items():
            rows_of_series = [
                *series_rows(name, series, draws, audit=Utility, paper=context.paper)
            ]
            findings.append(accuracy_finding(series, rows_of_series))
            rows += rows_of_series
            matrices += matrix_records(name, series)

        # Then each series next to its baseline.
        contrasts: list[Contrast] = []
        for name, baseline in context.baselines.items():
            if name in series_by_name and baseline in series_by_name:
                contrasts += series_contrasts(
                    (name, baseline), series_by_name, draws, context
                )
        findings += _change_findings(contrasts)

        if not series_by_name:
            findings = [_nothing_finding(evidence.units)]

        settings = {
            "order": ",".join(evidence.facts["order"]),
            "scorer": evidence.facts["scorer"],
        }
        return AuditResult(
            results=rows,
            contrasts=contrasts,
            guards=[*_guards(evidence.facts), *_empty_answer_guards(evidence)],
            findings=findings,
            tables={ACCURACY_MATRIX: matrices} if matrices else {},
            settings=settings,
        )

    def why_nothing(self, manifest: Manifest) -> str:
        """Return why no task has a question."""
        reasons = self._asked(manifest).reasons
        return "; ".join(f"{task} {text}" for task, text in reasons.items())

    def _asked(self, manifest: Manifest) -> Asked:
        """Return the rows that are asked: those of tasks in order, a task at a time."""
        tasks = tasks_in_order(manifest, self.order)

        # Rows that can be asked: they need a prompt and an answer.
        rows_by_task: dict[str, list[ManifestExample]] = {}
        for row in manifest.examples:
            is_question = row.answer.strip() and row.response_token > 0
            if row.split == "test" and row.canary_id is None and is_question:
                rows_by_task.setdefault(row.task, []).append(row)

        # The scorer by likelihood compares an answer with all labels of its task.
        labels: Mapping[str, Sequence[str]] | None = None
        if self.scorer == "likelihood":
            labels = task_labels(manifest)

        questions: list[ManifestExample] = []
        reasons: dict[str, str] = {}
        for task in tasks:
            # An empty label has no tokens to score.
            can_be_scored = labels is None or all(
                label.strip() for label in labels.get(task, [""])
            )
            if not can_be_scored:
                reasons[task] = NO_LABELS
            elif task not in rows_by_task:
                reasons[task] = NO_TEST_ROW
            else:
                questions += rows_by_task[task]
        return Asked(tasks, questions, reasons)


def _drawer(context: Context) -> Drawer:
    """Return a function that gives sums of answers in resamples of their clusters.

    All series of the same strata share the resamples, so that their figures are
    comparable. It is a :data:`~spark_audit.audits.utility.figures.Drawer`.
    """

    @cache
    def weights(strata: tuple[int, ...]) -> Weights:
        """Return the resamples of clusters in these strata, drawn once."""
        return draw_in_strata(
            np.array(strata), replicates=context.replicates, seed=context.seed
        )

    def draws(*answers_of_series: accuracy_intervals.Answers) -> np.ndarray:
        """Return the sums of one or two series, ``(replicates, sums of all)``."""
        sums = np.concatenate([answers.sums for answers in answers_of_series], axis=1)
        # Two series are resampled by the strata of the first.
        strata = tuple(answers_of_series[0].strata())
        return weights(strata).totals(sums)

    return draws


class ScoredAnswers(NamedTuple):
    """Answers of a checkpoint, shape ``(questions,)`` each, bool.

    ``is_empty`` is true of answers that are wrong and end before a word.
    """

    is_right: np.ndarray
    is_empty: np.ndarray


def _answers(
    table: TokenTable, rows: Sequence[ManifestExample], scorer: str
) -> ScoredAnswers:
    """Return which generated answers are right, and which are wrong and empty.

    Parameters
    ----------
    scorer
        ``normalised`` or ``strict``: columns of the table.
    """
    # The table has one line for each generated answer.
    lines = [table.rows(row.id).start for row in rows]
    # The scorer's column holds 1 for a right answer and 0 for a wrong one.
    is_right = table.columns[scorer][lines] > 0.5  # (questions,), bool
    n_tokens = table.columns["n_tokens"][lines]
    stop = table.columns["stop"][lines]

    # An empty answer stopped at once: no token, or only a newline.
    has_stopped = (n_tokens == 0) | ((n_tokens == 1) & (stop == NEWLINE))
    return ScoredAnswers(is_right=is_right, is_empty=has_stopped & ~is_right)


def _right_by_likelihood(
    table: TokenTable,
    rows: Sequence[ManifestExample],
    labels: Mapping[str, Sequence[str]],
) -> list[bool]:
    """Return whether the likeliest label of each row's task is its answer."""
    is_right = []
    for row in rows:
        lines = table.rows(key_of("labels", row.id))
        nll = table.columns["nll_sum"][lines]  # (labels of the task,), nats
        likeliest = labels[row.task][int(nll.argmin())]
        is_right.append(likeliest.strip() == row.answer.strip())
    return is_right


def _tasks_with_like_labels(
    tasks: Sequence[str],
    labels: Mapping[str, Sequence[str]],
    compare: Callable[[str], str],
) -> list[str]:
    """Return the tasks with labels that the scorer cannot tell apart."""
    clashing = []
    for task in tasks:
        distinct = {label.strip() for label in labels.get(task, ())}
        compared = {compare(label) for label in distinct}
        if len(compared) < len(distinct):
            clashing.append(task)
    return clashing


def _n_without_response(manifest: Manifest, tasks: Sequence[str]) -> int:
    """Count the test rows of some tasks that have no response."""
    without_response = [
        row
        for row in manifest.examples
        if row.split == "test" and row.task in tasks and not row.answer.strip()
    ]
    return len(without_response)


def _change_findings(contrasts: Iterable[Contrast]) -> Iterator[Finding]:
    """Yield how the last accuracy of each series differs from its baseline's."""
    for contrast in contrasts:
        if contrast.metric != "last":
            continue
        direction = contrast.direction(up="higher", down="lower")
        yield Finding.on(
            contrast,
            "moved",
            f"utility.change_{direction}",
            facts={"change": contrast},
        )


def _nothing_finding(units: pd.DataFrame) -> Finding:
    """Return the finding that no series has an answer, with the reason of each task.

    Parameters
    ----------
    units
        Columns ``task`` and ``reason``.
    """
    pairs = units[["task", "reason"]].itertuples(index=False)
    tasks = list(dict.fromkeys(f"{task} {reason}" for task, reason in pairs))

    # Without units no answer was scored at all.
    says = "utility.nothing" if tasks else "utility.nothing_scored"
    return Finding.not_tested("utility", says, tasks=tasks)


def _guards(facts: Mapping[str, Any]) -> Iterator[Guard]:
    """Yield warnings on labels, on rows without a response, and on the order.

    Parameters
    ----------
    facts
        Those of the evidence, see :meth:`Utility.evidence`.
    """
    if facts["clash"]:
        yield guard("distinct labels", "distinct_labels", {"tasks": facts["clash"]})
    if facts["blank"]:
        yield guard("responses", "responses", {"rows": facts["blank"]})
    if facts["assumed"]:
        yield guard("order of tasks", "order", {"tasks": facts["order"]})


def _empty_answer_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield a warning on each checkpoint that mostly answered nothing."""
    is_answered = evidence.values["correct"] >= 0  # (checkpoints, questions)
    is_empty = (evidence.values["empty"] > 0) & is_answered

    for i, name in enumerate(evidence.checkpoints):
        n_answers = int(is_answered[i].sum())
        n_empty = int(is_empty[i].sum())
        # It warns if more than half are empty.
        if 2 * n_empty <= n_answers:
            continue
        yield guard(
            "empty answers",
            "empty_answers",
            {"empty": n_empty, "answers": n_answers},
            checkpoint=name,
        )
