"""What is fixed before any run: tasks, words, systems, settings, and the rules.

``design.toml`` is the design of the kept study; another file of this form is that of
another study.
"""

from __future__ import annotations

import datetime
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claims.plan import System

from spark_audit.errors import InputError

KEPT_DESIGN = Path(__file__).with_name("design.toml")

PROMPT = "Text: {text}\nLabel:"
"""Prompt of a task that names none."""

_SEE_KEPT = "benchmarks/retention/design.toml has all that there must be"


@dataclass(frozen=True)
class TwoLabelTask:
    """Two labels of a source, and the word that is answered for each.

    Attributes
    ----------
    name
        Name of the task.
    source
        Folder of the rows.
    words
        Label of the rows -> the word that stands for it.
    prompt
        Prompt, with the text in place of ``{text}``.
    """

    name: str
    source: str
    words: dict[str, str]
    prompt: str = PROMPT


@dataclass(frozen=True)
class StudyDesign:
    """One way to make the tasks learnable.

    Attributes
    ----------
    further_epochs
        How often the base reads the tasks' train texts, without labels, before the
        first task.
    settings
        Settings of ``spark-train`` of all systems that know the name.
    """

    name: str
    says: str
    further_epochs: int
    settings: dict[str, Any]


@dataclass(frozen=True)
class StudyRules:
    """Everything that the file of a design fixes.

    Attributes
    ----------
    fixed
        When it was fixed.
    way_to_one
        A task is learned from this share of the way between chance and 1.
    tasks_learned
        So many tasks must be learned, in every seed.
    seeds
        Seeds of the runs.
    characters
        A text is cut after so many.
    train_rows, test_rows
        Most rows of a label; both labels of a task have as many.
    identifier_rate
        Share of rows that get an identifier, which SPARK's correction needs.
    claims
        Rules of ``benchmarks/claims/claims.toml`` by which results are judged.
    systems, later_systems
        The first is the one that must learn the tasks. Later ones are trained when the
        others have all their seeds.
    sensitive_by
        Plain fine-tuning must end so far below ER, else the tasks show no forgetting.
    """

    fixed: datetime.date
    way_to_one: float
    tasks_learned: int
    seeds: tuple[int, ...]
    characters: int
    train_rows: int
    test_rows: int
    identifier_rate: float
    claims: tuple[str, ...]
    sensitive_by: float
    tasks: tuple[TwoLabelTask, ...]
    systems: tuple[System, ...]
    later_systems: tuple[System, ...]
    designs: tuple[StudyDesign, ...]

    def bar(self, chance: float) -> float:
        """Return the accuracy from which a task counts as learned."""
        return chance + self.way_to_one * (1 - chance)


def read_rules(path: Path = KEPT_DESIGN) -> StudyRules:
    """Return the rules of a file.

    Raises
    ------
    InputError
        If the file cannot be read, or something in it is missing or of another form.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from None
    try:
        return _rules(content)
    except KeyError as error:
        raise InputError(f"has no {error}", where=str(path), fix=_SEE_KEPT) from None
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"is no design: {error}", where=str(path)) from None


def _rules(content: dict[str, Any]) -> StudyRules:
    """Return the rules in the content of a file."""
    tasks = [
        TwoLabelTask(
            name=name,
            source=entry["source"],
            words=entry["words"],
            prompt=entry.get("prompt", PROMPT),
        )
        for name, entry in content["tasks"].items()
    ]
    for task in tasks:
        if len(task.words) != 2 or "{text}" not in task.prompt:
            raise ValueError(f"task {task.name} needs two words and {{text}}")

    designs = [
        StudyDesign(
            name=name,
            says=entry["says"],
            further_epochs=entry["further_epochs"],
            settings=entry["set"],
        )
        for name, entry in content["designs"].items()
    ]
    rule = content["rule"]
    return StudyRules(
        fixed=rule["fixed"],
        way_to_one=rule["way_to_one"],
        tasks_learned=rule["tasks_learned"],
        seeds=tuple(rule["seeds"]),
        characters=rule["characters"],
        train_rows=rule["train_rows"],
        test_rows=rule["test_rows"],
        identifier_rate=rule["identifier_rate"],
        claims=tuple(rule["claims"]),
        sensitive_by=rule["sensitive_by"],
        tasks=tuple(tasks),
        systems=_systems(content["systems"]),
        later_systems=_systems(content.get("later_systems", {})),
        designs=tuple(designs),
    )


def _systems(entries: dict[str, dict[str, Any]]) -> tuple[System, ...]:
    """Return systems by their entries: method, and settings that differ."""
    return tuple(
        System(name=name, method=entry["method"], settings=entry.get("set", {}))
        for name, entry in entries.items()
    )
