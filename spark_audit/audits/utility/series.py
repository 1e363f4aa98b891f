"""Questions and their answers: what the utility audit concludes from."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from spark_audit.audits.base import Tables
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.manifest.sequences import labels_key, task_labels
from spark_audit.names import CheckpointName, series_of
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.answers import normalised, stripped
from spark_audit.scoring.table import Pass, TokenTable

NEWLINE = 1
"""The code of the column ``stop`` for an answer that a newline ended."""
UNORDERED = (
    "it is not known which task each stage was trained on: give --order with one task "
    "per stage"
)
NO_ROWS = "has no test row without a canary"
NO_LABELS = "has no set of labels for the scorer `likelihood`"


def tasks_in_order(manifest: Manifest, order: str | None) -> list[str]:
    """The tasks as they were trained; default: as they first appear in the manifest.

    Tasks that a given order leaves out are not asked.

    Raises
    ------
    InputError
        If the order names a task that the manifest does not have.
    """
    known = list(dict.fromkeys(example.task for example in manifest.examples))
    if order is None:
        return known
    named = listed(order)
    for task in named:
        if task not in known:
            raise InputError(
                f"{task!r} is not a task of the manifest",
                where="--order",
                fix=f"its tasks are: {', '.join(known)}",
            )
    return named


def check_order(order: str | None) -> None:
    """Refuse an order that repeats a task or leaves one empty."""
    named = listed(order)
    if order is not None and (not all(named) or len(set(named)) < len(named)):
        raise InputError(
            "names a task twice, or has an empty name",
            where="--order",
            fix="write t1,t2,...",
        )


def listed(order: str | None) -> list[str]:
    """The tasks of an order as it is given: names between commas."""
    return [] if order is None else [task.strip() for task in order.split(",")]


def places_of_tasks(
    tables: Tables, manifest: Manifest, order: str | None
) -> dict[str, dict[str, int]]:
    """Each stage of a series of several -> task -> the stage that trained on it.

    No task has a place where the order is not given, or is not as long as the series.
    """
    if order is not None:
        tasks_in_order(manifest, order)
    places = {task: k for k, task in enumerate(listed(order), start=1)}
    stages: dict[str, dict[str, int]] = defaultdict(dict)
    for name, passes in tables.items():
        one = CheckpointName.parse(name)
        if Pass() in passes and one.stage is not None and not one.rounding:
            stages[series_of(name)][name] = one.stage
    return {
        name: places if {*own.values()} == {*places.values()} else {}
        for own in stages.values()
        if len(own) > 1
        for name in own
    }


def asked_rows(
    manifest: Manifest, tasks: Sequence[str], scorer: str
) -> tuple[list[ManifestExample], dict[str, str]]:
    """The rows that are asked, and why a task has none."""
    labels = task_labels(manifest) if scorer == "likelihood" else None
    found, reasons = [], {}
    for task in tasks:
        if labels is not None and not all(s.strip() for s in labels.get(task, [""])):
            reasons[task] = NO_LABELS
            continue
        rows = [
            example
            for example in manifest.examples
            if example.task == task
            and example.split == "test"
            and example.canary_id is None
            and example.response.strip()
            and example.response_token > 0
        ]
        found += rows
        if not rows:
            reasons[task] = NO_ROWS
    return found, reasons


def answer_evidence(
    tables: Tables, manifest: Manifest, tasks: Sequence[str], scorer: str
) -> Evidence:
    """One unit per question; per task without one a unit with the ``reason``."""
    asked, reasons = asked_rows(manifest, tasks, scorer)
    place = {task: i for i, task in enumerate(tasks)}
    chance = _chance(asked, scorer)
    labels = task_labels(manifest)
    wanted = Pass("candidates" if scorer == "likelihood" else "generate")
    units = pd.DataFrame.from_records(
        [
            *((x.id, x.task, x.cluster, chance[x.task], "") for x in asked),
            *(("", task, "", 0.0, reason) for task, reason in reasons.items()),
        ],
        columns=["example", "task", "cluster", "chance", "reason"],
    )
    units = units.assign(scorer=scorer, place=units["task"].map(place))

    def measured() -> Measured:
        for name, passes in tables.items():
            if (table := passes.get(wanted)) is None:
                continue
            correct = np.full(len(units), -1.0)
            empty = np.zeros(len(units))
            for i, example in enumerate(asked):
                if scorer == "likelihood":
                    correct[i] = _likeliest(table, example, labels[example.task])
                    continue
                correct[i] = table.columns[scorer][table.rows(example.id)][0] > 0.5
                empty[i] = not correct[i] and _empty(table, example)
            yield name, {"correct": correct, "empty": empty}

    return Evidence.of(units, measured())


def _likeliest(
    table: TokenTable, example: ManifestExample, labels: Sequence[str]
) -> bool:
    nll = table.columns["nll_sum"][table.rows(labels_key(example.id))]
    return stripped(labels[int(nll.argmin())]) == stripped(example.response)


def _empty(table: TokenTable, example: ManifestExample) -> bool:
    """Whether the answer stopped at once: no token, or a newline and nothing more."""
    row = table.rows(example.id).start
    tokens, stop = (int(table.columns[name][row]) for name in ("n_tokens", "stop"))
    return tokens == 0 or (tokens == 1 and stop == NEWLINE)


def _chance(asked: Sequence[ManifestExample], scorer: str) -> dict[str, float]:
    """Share of the commonest response of each task."""
    same = normalised if scorer == "normalised" else stripped
    counts: dict[str, Counter[str]] = {}
    for example in asked:
        counts.setdefault(example.task, Counter())[same(example.response)] += 1
    return {task: max(count.values()) / count.total() for task, count in counts.items()}
