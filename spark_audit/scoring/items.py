"""What passes score: sequences, sets of candidates, prompts.

All kinds have a key, rows to be scored, a size in tokens and a content, and say what
they read and what they ask a model for.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import regex


@dataclass(frozen=True)
class _Read:
    """What every kind has that reads one sequence."""

    key: str
    # Token ids are as good as text.
    ids: np.ndarray = field(repr=False)

    @property
    def tokens(self) -> int:
        """Tokens that the model reads, and at most writes."""
        return len(self.ids)

    @property
    def longest(self) -> int:
        """Positions that it takes of the model's context."""
        return self.tokens

    @property
    def read(self) -> np.ndarray:
        """All token ids of it."""
        return self.ids


@dataclass(frozen=True)
class Item(_Read):
    """One sequence to score: a text, or a string behind a prompt.

    Attributes
    ----------
    key
        What tables call it (an example id).
    ids
        Shape ``(n,)``, int32: what the model reads. The first token has no prediction.
    positions
        Shape ``(n,)``, int32: where each token stands in the full tokenisation; of a
        string behind a prompt the characters of it that stand once the token is
        written, and -1 for tokens of the prompt, which are read only.
    """

    positions: np.ndarray = field(repr=False)

    @property
    def first(self) -> int:
        """The first token that is scored."""
        return max(int(np.count_nonzero(self.positions < 0)), 1)

    @property
    def scored(self) -> np.ndarray:
        """Positions of the rows that scoring gives."""
        return self.positions[self.first :]

    @property
    def predicted(self) -> np.ndarray:
        """The token ids that the model is asked for."""
        return self.ids[1:]

    def content(self) -> bytes:
        """What the scores depend on besides the checkpoint; the store hashes it."""
        ids, positions = self.ids.astype("<i4"), self.positions.astype("<i4")
        return len(ids).to_bytes(8, "big") + ids.tobytes() + positions.tobytes()


@dataclass(frozen=True)
class Candidates:
    """One set of continuations of one prefix, of which each is scored.

    Attributes
    ----------
    key
        What tables call the set; its rows are the candidates, in order.
    prefix
        Shape ``(p,)``, int32: what stands before every candidate, ``p >= 1``.
    rows
        Token ids of each candidate, arrays of shape ``(n_i,)``, int32, ``n_i >= 1``.
    """

    key: str
    prefix: np.ndarray = field(repr=False)
    rows: tuple[np.ndarray, ...] = field(repr=False)

    @property
    def example(self) -> Item:
        """The prefix with the first candidate, as a text."""
        ids = np.append(self.prefix, self.rows[0])
        return Item(self.key, ids, np.arange(len(ids), dtype=np.int32))

    @property
    def scored(self) -> np.ndarray:
        """One row a candidate."""
        return np.arange(len(self.rows), dtype=np.int32)

    @property
    def tokens(self) -> int:
        """Tokens that a model reads when it keeps the prefix."""
        return len(self.prefix) + sum(map(len, self.rows))

    @property
    def longest(self) -> int:
        """Positions that it takes of the model's context."""
        return len(self.prefix) + max(map(len, self.rows))

    @property
    def read(self) -> np.ndarray:
        """All token ids of it."""
        return np.concatenate([self.prefix, *self.rows])

    @property
    def predicted(self) -> np.ndarray:
        """The token ids that the model is asked for."""
        return np.concatenate(self.rows)

    def content(self) -> bytes:
        """What the scores depend on besides the checkpoint; the store hashes it."""
        return b"".join(
            len(ids).to_bytes(8, "big") + ids.astype("<i4").tobytes()
            for ids in (self.prefix, *self.rows)
        )


@dataclass(frozen=True)
class Prompt(_Read):
    """One prompt that is continued greedily, and the answer it is held against.

    Attributes
    ----------
    key
        What tables call it (an example id); it has one row.
    ids
        Shape ``(n,)``, int32: what the model reads first.
    target
        The expected answer. No text is stored, only whether it came.
    max_new_tokens
        Tokens after which generation stops anyway.
    labels
        All answers that the task knows; empty where its answers are free text.
    """

    target: str = field(repr=False)
    max_new_tokens: int
    labels: tuple[str, ...] = field(default=(), repr=False)

    @property
    def scored(self) -> np.ndarray:
        """One row a prompt."""
        return np.zeros(1, dtype=np.int32)

    @property
    def tokens(self) -> int:
        """Tokens read and, at most, written."""
        return len(self.ids) + self.max_new_tokens

    @property
    def predicted(self) -> np.ndarray:
        """The token ids that the model is asked for: none are known."""
        return self.ids[:0]

    def content(self) -> bytes:
        """What the outcome depends on besides the checkpoint; the store hashes it."""
        head = len(self.ids).to_bytes(8, "big") + self.max_new_tokens.to_bytes(4, "big")
        answers = "\0".join((self.target, *self.labels))
        rule = bytes([ANSWER_RULE])
        return rule + head + self.ids.astype("<i4").tobytes() + answers.encode()


AnyItem: TypeAlias = Item | Candidates | Prompt
"""What a pass scores: it has a key, rows, a size in tokens and a content."""


# --- when an answer counts as the expected one ----------------------------------------


ANSWER_RULE = 2
"""Version of the rule below; scores that were stored by another one are not used."""
_PUNCTUATION = regex.compile(rf"[\p{{P}}{re.escape(string.punctuation)}]")
_CURRENCY = "$\u20ac\u00a3\u00a5"
_NUMBER_IN_TEXT = re.compile(
    rf"(?<![^\W_])(?:(?P<sign>[-+])(?=[{_CURRENCY}.\d]))?"
    rf"(?:(?P<before>[{_CURRENCY}]) ?(?P<inner>-)?)?"
    r"(?P<digits>\d+(?:[-.,:/]\d+)*|\.\d+)"
    rf"(?: ?(?P<unit>[%\u2030])| ?(?P<behind>[{_CURRENCY}])(?!\d))?"
)
"""A number with its sign and unit, or digits with marks between, such as a date."""
_SIGNS = str.maketrans({"\u2212": "-", "\u2013": "-", "\ufe63": "-", "\uff0d": "-"})
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"(?!0\d)\d*(?:\.\d+)?")


def normalised(text: str) -> str:
    """Return a text in lower case, without punctuation, white space folded.

    Punctuation is what Unicode calls so, and ASCII's; a text of nothing else keeps it.
    Numbers keep what makes their value: "-35", "3.5" and "35%" are three of them, while
    "35", "35.0" and "+35." are one, and so are "1,000" and "1000".
    """
    folded = " ".join(text.lower().translate(_SIGNS).split())
    kept: list[str] = []
    last = 0
    for number in _NUMBER_IN_TEXT.finditer(folded):
        kept.append(_PUNCTUATION.sub("", folded[last : number.start()]))
        kept.append(_number_form(number))
        last = number.end()
    kept.append(_PUNCTUATION.sub("", folded[last:]))
    return " ".join("".join(kept).split()) or folded


def _number_form(number: re.Match[str]) -> str:
    """Return the one form of all ways to write a number.

    What is no number but digits with marks, such as a date or a code that begins with
    0, stays as it is.
    """
    digits = number["digits"]
    if _THOUSANDS.fullmatch(digits):
        digits = digits.replace(",", "")
    if _DECIMAL.fullmatch(digits):
        whole, _, fraction = digits.partition(".")
        fraction = fraction.rstrip("0")
        digits = (whole or "0") + (f".{fraction}" if fraction else "")
    is_negative = "-" in (number["sign"], number["inner"]) and digits != "0"
    sign = "-" if is_negative else ""
    currency = number["before"] or number["behind"] or ""
    return f"{sign}{currency}{digits}{number['unit'] or ''}"


_INSIDE = re.compile(
    r"(?<=\w)(?=\w)|(?<=\d)(?=[-.,:/]\d)|(?<=\d[-.,:/])(?=\d)"
    rf"|(?<=\d)(?=[ ]?[%\u2030]|[{_CURRENCY}](?!\d))|(?<=[-+{_CURRENCY}])(?=[.\d])"
    r"|(?<=\d[ ])(?=[%\u2030])"
)
"""Where a word or a number with its sign and unit goes on."""


def begins_with(text: str, target: str, labels: Sequence[str]) -> bool:
    """Whether the longest label that an answer begins with is the expected one.

    Compared as :func:`normalised` does. The label ends where a word or number does:
    "negative, as" begins with "negative", "negatives" and "1.5" do not begin with
    "negative" and "1", nor does "1%"; "very negative" begins with that label, not with
    "very".
    """
    known = {normalised(label) for label in labels}
    inside = {match.end() for match in _INSIDE.finditer(text)}
    ends = (end for end in range(len(text), 0, -1) if end not in inside)
    begun = (normalised(text[:end]) for end in ends)
    return next((one for one in begun if one in known), None) == normalised(target)
