"""Whether ER learns the tasks, and what the rules of the claims say of the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from claims.rules import Claim, Decision, Figure, claims, decide
from scipy.stats import t as student_t

from retention.accuracies import matrix
from retention.design import StudyDesign, StudyRules
from spark_audit.stats.accuracy import ACCURACY_METRICS

CHANCE = 0.5
"""Of two labels with the same number of test rows."""

LEARNER, FORGETTER = "er", "seqft"
"""Systems that show whether tasks can be learned, and whether they can be forgotten."""


@dataclass(frozen=True)
class Learning:
    """What the learner knew of each task right after learning it.

    Attributes
    ----------
    tasks
        In the order in which they were learned.
    by_seed
        Seed -> accuracy on each task right after it was learned, shape ``(tasks,)``.
    bar
        Accuracy from which a task counts as learned.
    least_tasks
        So many tasks must be learned in each seed.
    seeds
        All seeds that the rule asks for.
    """

    tasks: tuple[str, ...]
    by_seed: dict[int, np.ndarray]
    bar: float
    least_tasks: int
    seeds: tuple[int, ...]

    def is_enough(self, seed: int) -> bool:
        """Return whether so many tasks were learned in a seed."""
        return int((self.by_seed[seed] >= self.bar).sum()) >= self.least_tasks

    @property
    def holds(self) -> bool:
        """Whether that is so in all seeds that the rule asks for."""
        is_whole = self.by_seed.keys() >= set(self.seeds)
        return is_whole and not self.fails

    @property
    def fails(self) -> bool:
        """Whether it is not so in one of the seeds that are there."""
        return not all(self.is_enough(seed) for seed in self.by_seed)


def seeds_of(table: pd.DataFrame, *, design: str, system: str) -> tuple[int, ...]:
    """Return the seeds of a system's finished runs."""
    is_system = (table["design"] == design) & (table["system"] == system)
    return tuple(sorted(int(seed) for seed in table[is_system]["seed"].unique()))


def learning_of(
    table: pd.DataFrame, design: StudyDesign, rules: StudyRules
) -> Learning:
    """Return what the learner knew of each task right after learning it."""
    by_seed = {}
    for seed in seeds_of(table, design=design.name, system=LEARNER):
        accuracies = matrix(
            table, design=design.name, system=LEARNER, seed=seed
        )  # (tasks, tasks)
        by_seed[seed] = np.diagonal(accuracies)
    return Learning(
        tasks=tuple(task.name for task in rules.tasks),
        by_seed=by_seed,
        bar=rules.bar(CHANCE),
        least_tasks=rules.tasks_learned,
        seeds=rules.seeds,
    )


def seed_values(
    table: pd.DataFrame, *, design: str, system: str, metric: str
) -> dict[int, float]:
    """Return a figure of a system by seed; NaN where its runs have one stage alone."""
    values = {}
    for seed in seeds_of(table, design=design, system=system):
        accuracies = matrix(table, design=design, system=system, seed=seed)
        has_stages = len(accuracies) > 1 or metric == "last"
        value = ACCURACY_METRICS[metric](accuracies) if has_stages else math.nan
        values[seed] = float(value)
    return values


def figure_over_seeds(values: Sequence[float]) -> Figure:
    """Return the mean with its 95% limits of Student's t over seeds.

    Examples
    --------
    >>> figure = figure_over_seeds([0.1, 0.2, 0.3])
    >>> round(figure.value, 3), round(figure.low, 3), round(figure.high, 3)
    (0.2, -0.048, 0.448)
    """
    if not values:
        return Figure(None, missing="it was not trained")
    mean = float(np.mean(values))
    if len(values) < 2:
        return Figure(mean, by_seed=tuple(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half_width = float(student_t.ppf(0.975, len(values) - 1)) * error
    return Figure(
        mean,
        low=mean - half_width,
        high=mean + half_width,
        by_seed=tuple(values),
        over="seeds",
    )


def difference(
    table: pd.DataFrame, *, design: str, system: str, beside: str, metric: str
) -> Figure:
    """Return a system's figure minus another's of the same seed, over seeds."""
    of_system = seed_values(table, design=design, system=system, metric=metric)
    of_other = seed_values(table, design=design, system=beside, metric=metric)
    shared = sorted(of_system.keys() & of_other.keys())
    return figure_over_seeds([of_system[seed] - of_other[seed] for seed in shared])


def claim_figure(table: pd.DataFrame, claim: Claim, *, design: str) -> Figure:
    """Return the figure that a claim on accuracy reads."""
    if claim.than:
        return difference(
            table,
            design=design,
            system=claim.of,
            beside=claim.than,
            metric=claim.metric,
        )
    values = seed_values(table, design=design, system=claim.of, metric=claim.metric)
    return figure_over_seeds(list(values.values()))


def shows_forgetting(
    table: pd.DataFrame, design: StudyDesign, rules: StudyRules
) -> bool:
    """Return whether plain fine-tuning surely ends below the learner by the margin."""
    gap = difference(
        table, design=design.name, system=FORGETTER, beside=LEARNER, metric="last"
    )
    return gap.high is not None and gap.high < -rules.sensitive_by


def decisions(
    table: pd.DataFrame, design: StudyDesign, rules: StudyRules
) -> list[Decision]:
    """Return what the chosen rules of the claims say of a design's runs."""
    has_learned = learning_of(table, design, rules).holds
    is_sensitive = shows_forgetting(table, design, rules)

    known = {claim.id: claim for claim in claims()}
    judged = []
    for claim_id in rules.claims:
        claim = known[claim_id]
        unmet = ""
        if not has_learned:
            unmet = f"{LEARNER} has not learned the tasks by the rule"
        elif not is_sensitive and claim.of != FORGETTER:
            unmet = (
                f"{FORGETTER} does not surely end more than {rules.sensitive_by:g} "
                f"below {LEARNER}: whoever keeps all and whoever forgets may look alike"
            )
        figure = claim_figure(table, claim, design=design.name)
        judged.append(decide(claim, figure, unmet=unmet))
    return judged


def matrix_mean(table: pd.DataFrame, *, design: str, system: str) -> np.ndarray:
    """Return a system's accuracies, mean over seeds, shape ``(stages, tasks)``."""
    matrices = [
        matrix(table, design=design, system=system, seed=seed)
        for seed in seeds_of(table, design=design, system=system)
    ]
    return np.asarray(np.mean(matrices, axis=0))
