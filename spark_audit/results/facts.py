"""Facts, and records that are shown as the sentences rendered from them.

A record is a :class:`Rendered`: keys of templates in ``spark_audit/sentences/en/``, and
typed facts. Docstrings of fields and of classes here are part of the report's JSON
schema. A further type of fact is one of :data:`Fact`, which shared files must know how
to round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

from pydantic import PlainSerializer

from spark_audit.results.rows import Contrast, Count, Row, Strict, Text


class Hits(Strict):
    """How many of so many; shared files round the count as their clusters ask for."""

    count: Count
    """How many."""
    of: Count
    """Of how many."""
    tied: Count = 0
    """How many more if ties are won."""
    rounded: bool = False
    """Whether the count is rounded."""
    vague: bool = False
    """Whether it is only some."""


def _compact(value: object) -> object:
    """Return a fact as files hold it: records without fields at their defaults."""
    if isinstance(value, list):
        return [_compact(item) for item in value]
    if isinstance(value, Row | Hits):
        return value.model_dump(exclude_defaults=True)
    return value


Fact: TypeAlias = Annotated[
    Contrast
    | Row
    | Hits
    | bool
    | int
    | float
    | Text
    | list[Text]
    | list[list[Text]]
    | Sequence[Contrast | Row]
    | None,
    PlainSerializer(_compact),
]
"""What a sentence is rendered from: figures (with their row's names, so that they are
rounded and withheld as the row is), counts, p values, names; never a sentence."""


class Rendered(Strict):
    """A record that is shown as a sentence: the key of its template, and its facts."""

    says: Text
    """Key of the sentence in `spark_audit/sentences`."""
    further: list[Text] = []
    """Keys of the sentences that follow it. Each is whole: the code chooses them."""
    facts: Mapping[Text, Fact] = {}
    """What the sentences are rendered from."""

    @property
    def withheld(self) -> bool:
        """True if a figure of its sentence is left out of what can be shared."""
        return any(
            isinstance(fact, Row) and fact.withheld for fact in self.facts.values()
        )
