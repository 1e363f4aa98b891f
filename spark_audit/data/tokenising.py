"""Calls of a tokenizer that may fail on some text, or never come to an end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.errors import InputError, panicked

T = TypeVar("T")

SECONDS = 120.0
"""A tokenizer may take so long, and besides a second for :data:`LETTERS_A_SECOND`."""
LETTERS_A_SECOND = 10_000
"""Even a slow tokenizer reads a hundred times as many letters."""


@contextmanager
def tokenising(tokenizer: Tokenizer) -> Iterator[None]:
    """Raise ``InputError`` where the library fails on a text.

    A tokenizer that loads may still not know what to do with some text. The library's
    own words are left out: they may quote the text.
    """
    try:
        yield
    except BaseException as error:
        # The library's own errors are of no narrower class.
        if type(error) is not Exception and not panicked(error):
            raise
        # The library for patterns stops a search by itself, after a number of steps.
        if "retry-limit" in str(error):
            raise _endless_pattern(tokenizer) from None
        raise InputError(
            "the tokenizer fails on a text",
            where=type(tokenizer).__name__,
            fix="give the tokenizer that the model was trained with by --tokenizer",
        ) from None


def in_time(call: Callable[[], T], texts: Sequence[str], tokenizer: Tokenizer) -> T:
    """Return what a call of the tokenizer gives, if it comes to an end in time.

    The patterns of a tokenizer are somebody else's, and one may take exponential time
    on some text. The library, which is Rust, cannot be interrupted: it goes on in a
    thread that ends with the process.

    Raises
    ------
    InputError
        If it takes longer than any tokenizer does.
    """
    values: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            values.append(call())
        except BaseException as error:
            errors.append(error)

    n_letters = sum(len(text) for text in texts)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SECONDS + n_letters / LETTERS_A_SECOND)
    if errors:
        raise errors[0]
    if not values:
        raise _endless_pattern(tokenizer)
    return values[0]


def _endless_pattern(tokenizer: Tokenizer) -> InputError:
    """Return the error for a text on which a pattern of the tokenizer does not end."""
    return InputError(
        "the tokenizer takes too long for a text: one of its patterns does not end",
        where=type(tokenizer).__name__,
        fix="give the tokenizer that the model was trained with by --tokenizer",
    )
