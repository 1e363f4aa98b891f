"""Templates of prompts: fixed wording with columns of a row in it."""

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
"""What stands for a letter behind a backslash."""


class FilledPrompt(NamedTuple):
    """A prompt that was made of a template and a row.

    ``fixed_ranges`` are the characters of the fixed wording, ``column_starts`` where
    each column's text begins.
    """

    text: str
    fixed_ranges: Ranges
    column_starts: list[int]


@dataclass(frozen=True)
class PromptTemplate:
    """Fixed wording and columns in turn.

    Attributes
    ----------
    wordings
        Before each column the fixed wording, which may be empty; one more may stand
        behind the last.
    columns
        Names of columns.
    """

    wordings: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, template: str) -> Self:
        r"""Return a template from its text, such as ``Text: {text}\nLabel:``.

        Of the language of ``str.format`` only fields and doubled braces are read, and a
        field is looked up among the row's columns by its whole name: no attribute, no
        index, no conversion, no format.

        Raises
        ------
        InputError
            If it is not so, or names no column.
        """
        try:
            return cls._parse(template)
        except (ValueError, KeyError) as error:
            # The key is the letter behind a backslash.
            reason = "a backslash" if isinstance(error, KeyError) else error
            raise InputError(
                f"is not a template ({reason})",
                where="option --template",
                fix="write it like 'Text: {text}\\nLabel:', with no other backslash",
            ) from error

    @classmethod
    def _parse(cls, template: str) -> Self:
        # Wordings and columns in turn: a wording is closed by the column behind it.
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
        """Return the prompt with the columns' texts in it, which may be empty."""
        text = ""
        fixed_ranges: list[tuple[int, int]] = []
        column_starts: list[int] = []
        for i, wording in enumerate(self.wordings):
            # An empty range is not valid in an example.
            if wording:
                fixed_ranges.append((len(text), len(text) + len(wording)))
            text += wording
            if i < len(values):
                column_starts.append(len(text))
                text += values[i]
        return FilledPrompt(text, tuple(fixed_ranges), column_starts)
