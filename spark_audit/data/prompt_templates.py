"""Templates of prompts: fixed wording with the columns of a row in it."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from spark_audit.data.examples import Ranges
from spark_audit.errors import InputError

_BACKSLASH_PAIR = re.compile(r"(?s)\\(.|$)")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}
"""Characters that a letter behind a backslash stands for."""


class FilledPrompt(NamedTuple):
    """A prompt made from a template and a row.

    ``fixed_ranges`` are the character ranges of the fixed wording, ``column_starts``
    the start of each column's text, in the order of :attr:`PromptTemplate.columns`.
    """

    text: str
    fixed_ranges: Ranges
    column_starts: list[int]


@dataclass(frozen=True)
class PromptTemplate:
    """A template that alternates fixed wording and columns.

    Attributes
    ----------
    wordings
        The fixed wording in front of each column, which may be empty; one more may
        follow the last column. So there are as many as columns, or one more.
    columns
        Names of the columns, in the order of the template.
    """

    wordings: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, template: str) -> Self:
        r"""Parse a template such as ``Text: {text}\nLabel:``.

        Only fields and doubled braces of ``str.format`` are supported. The whole field
        is the name of a column: ``{a.b}`` is the column ``a.b``, not an attribute.
        Conversions and formats are refused.

        Raises
        ------
        InputError
            If the template uses anything else, or has no column.
        """
        try:
            return cls._parse(template)
        except (ValueError, KeyError) as error:
            # A KeyError means an unknown letter behind a backslash.
            reason = "a backslash" if isinstance(error, KeyError) else error
            raise InputError(
                f"is not a template ({reason})",
                where="option --template",
                fix="write it like 'Text: {text}\\nLabel:', with no other backslash",
            ) from error

    @classmethod
    def _parse(cls, template: str) -> Self:
        """Parse a template; raise ValueError or KeyError for one that is not valid."""
        # Each column closes the wording in front of it.
        wordings: list[str] = []
        columns: list[str] = []
        wording = ""
        for fixed, column, format, conversion in string.Formatter().parse(template):
            if format or conversion:
                raise ValueError("it has a field with ':' or '!'")
            # A doubled brace ends a piece of wording without a field.
            wording += _BACKSLASH_PAIR.sub(lambda pair: _ESCAPES[pair[1]], fixed)
            if column is not None:
                wordings.append(wording)
                columns.append(column)
                wording = ""

        if not columns or "" in columns:
            raise ValueError("it names no column, or a field has no name")
        if wording:
            wordings.append(wording)
        return cls(tuple(wordings), tuple(columns))

    def fill(self, values: Sequence[str]) -> FilledPrompt:
        """Return the prompt with the columns' texts, which may be empty.

        Parameters
        ----------
        values
            One text for each of ``columns``.
        """
        text = ""
        fixed_ranges: list[tuple[int, int]] = []
        column_starts: list[int] = []
        for i, wording in enumerate(self.wordings):
            # An example must not have an empty range.
            if wording:
                fixed_ranges.append((len(text), len(text) + len(wording)))
            text += wording
            if i < len(values):
                column_starts.append(len(text))
                text += values[i]
        return FilledPrompt(text, tuple(fixed_ranges), column_starts)
