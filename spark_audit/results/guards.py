"""Guards: conditions of the setup that can void what is claimed.

Like a finding, a guard consists of keys and typed facts, from which its sentences are
rendered (:mod:`~spark_audit.results.findings`). Docstrings of fields here are part of
the report's JSON schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import computed_field

from spark_audit import sentences
from spark_audit.cells_html import facts_html, short_repr
from spark_audit.results.facts import Fact, Rendered
from spark_audit.results.rows import Text


class Guard(Rendered):
    """A condition that can void a claim; ``passed`` is null when it is a warning."""

    name: Text
    """What is asked for."""
    checkpoint: Text = ""
    """Whose claim it voids; empty: all."""
    passed: bool | None
    """Null: a warning."""

    def __repr__(self) -> str:
        return short_repr(
            self, self.name, checkpoint=self.checkpoint, outcome=self.outcome
        )

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        """Return it as a notebook shows it, without the figures of its sentences."""
        facts = {"checkpoint": self.checkpoint, "outcome": self.outcome}
        return facts_html(f"Check: {self.title}", facts, note="Sentences: detail.")

    @property
    def outcome(self) -> str:
        """The result of the check in a word: it held, failed, or warns."""
        if self.passed is None:
            return "warning"
        return "held" if self.passed else "failed"

    @property
    def title(self) -> str:
        """The name in the language of the report."""
        return sentences.optional(f"check.{self.name}") or self.name

    @computed_field  # type: ignore[prop-decorator]
    @property
    def detail(self) -> str:
        """The result of the check, in sentences."""
        keys = [self.says, *self.further]
        return " ".join(sentences.render(key, **self.facts) for key in keys)


def guard(
    name: str,
    says: str,
    facts: Mapping[str, Fact],
    *,
    further: Sequence[str] = (),
    passed: bool | None = None,
    checkpoint: str = "",
) -> Guard:
    """Return a guard, by default a warning, whose sentence is ``guard.SAYS``.

    Parameters
    ----------
    further
        Keys of the sentences that follow, also without ``guard.``.
    """
    return Guard(
        name=name,
        checkpoint=checkpoint,
        passed=passed,
        says=f"guard.{says}",
        further=[f"guard.{key}" for key in further],
        facts=dict(facts),
    )
