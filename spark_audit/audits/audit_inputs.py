"""What an audit gets and asks for: scores by checkpoint, settings, and its plan.

All names can be imported from :mod:`spark_audit.audits.base`, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from spark_audit.arguments import ArgumentError
from spark_audit.names import BASE
from spark_audit.scoring.table import Pass, TokenTable

Tables: TypeAlias = Mapping[str, Mapping[Pass, TokenTable]]
"""Checkpoint -> pass -> scores. A pass is a way of scoring texts, with its settings."""

Plan: TypeAlias = dict[Pass, list[str]]
"""Pass -> keys of the texts that it must score, such as ids of examples."""


def scored(
    tables: Tables, wanted: Pass | None = None
) -> Iterable[tuple[str, TokenTable]]:
    """Yield checkpoints with their scores of one pass, by default the plain one."""
    if wanted is None:
        wanted = Pass()
    for name, passes in tables.items():
        if wanted in passes:
            yield name, passes[wanted]


def check_tables(tables: object) -> None:
    """Refuse scores that are not by checkpoint: they would give an empty result.

    Raises
    ------
    ArgumentError
        If they are not by checkpoint and pass.
    """
    if isinstance(tables, Mapping):
        if all(isinstance(passes, Mapping) for passes in tables.values()):
            return
    raise ArgumentError(
        "are not by checkpoint",
        where="tables",
        fix="give the scores of each checkpoint by its name, as in "
        "{'mine': sa.score(...)}",
    )


@dataclass(frozen=True)
class Context:
    """The settings of a conclusion.

    Attributes
    ----------
    baselines
        Checkpoint -> its baseline.
    paper
        Whether decisions use percentile intervals, as those of SPARK's paper do.
    seed, replicates
        Random seed, and number of replicates of the bootstrap.
    """

    baselines: Mapping[str, str] = field(default_factory=dict)
    paper: bool = False
    seed: int = 0
    replicates: int = 9999

    @property
    def base(self) -> str:
        """Name of the base among the checkpoints of evidence, if it was scored.

        It was trained on none of the rows, so that no claim is made of it.
        """
        return BASE
