"""The columns of evidence: what a file is checked for when it is read again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from spark_audit.audits.contract import About
from spark_audit.scoring.table import Column

TEXT = Column("text")
COUNT = Column("whole", low=0)
FLAG = Column("flag")
NUMBER = Column("number")
POSITIVE = Column("number", low=0)
MAYBE = Column("number", null=True)


def texts(*names: str) -> dict[str, Column]:
    """Columns of text."""
    return dict.fromkeys(names, TEXT)


def counts(*names: str) -> dict[str, Column]:
    """Columns of whole numbers from 0."""
    return dict.fromkeys(names, COUNT)


def columns_of(about: About, given: Collection[str]) -> Mapping[str, Column]:
    """The columns that a file of an audit's evidence must have."""
    needed = about.columns or texts("checkpoint")
    return {**needed, **{k: v for k, v in about.later.items() if k in given}}


def held_twice(evidence: pd.DataFrame, keys: Sequence[str]) -> str:
    """Whether two rows share all of some columns; nothing, if all is well."""
    return "holds a row twice" if evidence.duplicated([*keys]).any() else ""


def uneven(evidence: pd.DataFrame, facts: Sequence[str]) -> str:
    """Whether checkpoints differ in columns that are alike; nothing, if all is well."""
    names = evidence["checkpoint"].nunique()
    if len(evidence) == names * len(evidence.drop_duplicates([*facts])):
        return ""
    return "does not hold the same rows of every checkpoint"
