"""The page of a study: its rule and date, what came of it, what it leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from claims.rules import Decision, Figure
from jinja2 import Environment, StrictUndefined

from retention.design import StudyDesign, StudyRules
from retention.judging import (
    CHANCE,
    FORGETTER,
    LEARNER,
    Learning,
    decisions,
    difference,
    figure_over_seeds,
    learning_of,
    matrix_mean,
    seed_values,
    seeds_of,
)
from spark_audit.report.cells import limited, shown
from spark_audit.report.writers.markdown import table as markdown_table

METRICS = {"last": "Last", "avg": "Avg", "bwt": "BWT"}


def page(table: pd.DataFrame, rules: StudyRules) -> str:
    """Return the page of a study as Markdown.

    Parameters
    ----------
    table
        Accuracies of all runs, columns :data:`retention.accuracies.COLUMNS`.
    """
    task_rows = []
    for task in rules.tasks:
        words = [f"{label}: {word}" for label, word in task.words.items()]
        prompt = task.prompt.replace("\n", r"\n")
        task_rows.append((task.name, task.source, ", ".join(words), prompt))
    return _rendered(
        "retention.md.j2",
        answer=answer(table, rules),
        rules=rules,
        chance=CHANCE,
        bar=f"{rules.bar(CHANCE):g}",
        forgetter=FORGETTER,
        tasks=markdown_table(("task", "source", "label: answer", "prompt"), task_rows),
        sections=[design_section(table, design, rules) for design in rules.designs],
    )


def answer(table: pd.DataFrame, rules: StudyRules) -> str:
    """Return what the study came to, in a few sentences."""
    tried = [
        design
        for design in rules.designs
        if seeds_of(table, design=design.name, system=LEARNER)
    ]
    learning_by_design = {
        design.name: learning_of(table, design, rules) for design in tried
    }
    learned = [design for design in tried if learning_by_design[design.name].holds]
    if not learned:
        failed = [f"`{name}`" for name, one in learning_by_design.items() if one.fails]
        if not failed:
            return "Not enough is trained to say whether ER learns the tasks."
        names = " and ".join(failed)
        return (
            f"ER does not learn the tasks by the rule in {names}. So no other system "
            "was trained, and nothing is judged, neither for SPARK nor against it."
        )

    design = learned[0]
    sentences = [
        f"ER learns the tasks by the rule in design `{design.name}`, in each of "
        f"{len(rules.seeds)} seeds."
    ]
    by_verdict: dict[str, list[str]] = {}
    for decision in decisions(table, design, rules):
        says = f"{decision.claim.says} ({_figure(decision.figure)})"
        by_verdict.setdefault(decision.verdict, []).append(says)
    for verdict, lead in (
        ("holds", "Holds"),
        ("fails", "Fails"),
        ("not detectable here", "Cannot be judged"),
    ):
        if verdict in by_verdict:
            sentences.append(f"{lead}: {'; '.join(by_verdict[verdict])}.")
    return "\n\n".join(sentences)


def design_section(table: pd.DataFrame, design: StudyDesign, rules: StudyRules) -> str:
    """Return the section of a design: what ER learned, and what systems kept."""
    learning = learning_of(table, design, rules)
    outcome = "not trained"
    if learning.fails:
        outcome = "ER does not learn the tasks"
    elif learning.holds:
        outcome = "ER learns the tasks"
    elif learning.by_seed:
        outcome = "not all seeds of ER are trained"

    systems = list(dict.fromkeys(table[table["design"] == design.name]["system"]))
    is_compared = len(systems) > 1
    settings = [f"`{name}={value}`" for name, value in design.settings.items()]
    return _rendered(
        "design_section.md.j2",
        design=design,
        outcome=outcome,
        settings=", ".join(settings),
        learned=_learning_table(learning) if learning.by_seed else "",
        systems=_systems_table(table, design, systems) if is_compared else "",
        at_the_end=_last_stage_table(table, design, systems, learning.tasks),
        claims=_decisions_table(decisions(table, design, rules)),
    ).rstrip()


def _learning_table(learning: Learning) -> str:
    """Return the learner's accuracy right after each task, by seed."""
    rows = []
    for seed, accuracies in learning.by_seed.items():
        n_learned = int((accuracies >= learning.bar).sum())
        verdict = "yes" if learning.is_enough(seed) else "no"
        shown_accuracies = [shown(float(accuracy)) for accuracy in accuracies]
        n_of_all = f"{verdict} ({n_learned} of {len(accuracies)})"
        rows.append((str(seed), *shown_accuracies, n_of_all))
    return markdown_table(("seed", *learning.tasks, "learned"), rows)


def _systems_table(
    table: pd.DataFrame, design: StudyDesign, systems: Sequence[str]
) -> str:
    """Return Last, Avg and BWT of each system, and its Last beside ER's."""
    rows = []
    for system in systems:
        cells = []
        for metric in METRICS:
            values = seed_values(
                table, design=design.name, system=system, metric=metric
            )
            cells.append(_figure(figure_over_seeds(list(values.values()))))
        beside = ""
        if system != LEARNER:
            beside = _figure(
                difference(
                    table,
                    design=design.name,
                    system=system,
                    beside=LEARNER,
                    metric="last",
                )
            )
        n_seeds = len(seeds_of(table, design=design.name, system=system))
        rows.append((system, str(n_seeds), *cells, beside))
    header = ("system", "seeds", *METRICS.values(), "Last minus ER's")
    return markdown_table(header, rows)


def _last_stage_table(
    table: pd.DataFrame,
    design: StudyDesign,
    systems: Sequence[str],
    tasks: Sequence[str],
) -> str:
    """Return the mean accuracy of each system on each task at the end."""
    rows = []
    for system in systems:
        at_the_end = matrix_mean(table, design=design.name, system=system)[-1]
        rows.append((system, *(shown(float(value)) for value in at_the_end)))
    return markdown_table(("system", *tasks), rows)


def _decisions_table(judged: Sequence[Decision]) -> str:
    """Return the claims with their figures and what follows from the rules."""
    rows = [
        (
            decision.claim.says,
            shown(decision.claim.paper),
            _figure(decision.figure),
            ", ".join(shown(value) for value in decision.figure.by_seed),
            decision.claim.rule,
            f"{decision.verdict}: {decision.why}",
        )
        for decision in judged
    ]
    header = ("claim", "the paper", "here", "by seed", "holds if", "verdict")
    return markdown_table(header, rows)


def _figure(figure: Figure) -> str:
    """Return a figure with its interval; a hyphen where there is none."""
    if figure.value is None or np.isnan(figure.value):
        return "-"
    return limited(figure.value, figure.low, figure.high)


def _rendered(template: str, **facts: Any) -> str:
    """Return a template of this folder with facts in it."""
    environment = Environment(
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    text = (Path(__file__).parent / template).read_text("utf-8")
    return environment.from_string(text).render(**facts)
