"""Call a tokenizer that may fail on some text, or run for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.errors import InputError, panicked

T = TypeVar("T")

SECONDS = 120.0
"""Seconds for any call; each :data:`LETTERS_A_SECOND` letters add a second."""
LETTERS_A_SECOND = 10_000
"""A slow rate: even slow tokenizers read a hundred times as many letters."""


@contextmanager
def tokenising(tokenizer: Tokenizer) -> Iterator[None]:
    """Raise ``InputError`` where the library fails on a text.

    A tokenizer that loads may still fail on some text. The library's message is left
    out, because it may quote the text.
    """
    try:
        yield
    except BaseException as error:
        # The library raises its errors as plain Exception.
        if type(error) is not Exception and not panicked(error):
            raise
        # The pattern library stops a search by itself, after a number of steps.
        if "retry-limit" in str(error):
            raise _endless_pattern(tokenizer) from None
        raise InputError(
            "the tokenizer fails on a text",
            where=type(tokenizer).__name__,
            fix="give the tokenizer that the model was trained with by --tokenizer",
        ) from None


def in_time(call: Callable[[], T], texts: Sequence[str], tokenizer: Tokenizer) -> T:
    """Return the result of a call of the tokenizer, if it ends in time.

    Somebody else wrote the tokenizer's patterns, and a pattern may take exponential
    time on some text. The Rust library cannot be interrupted: it continues in a thread
    that ends with the process.

    Raises
    ------
    InputError
        If the call takes longer than that of any tokenizer should.
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
    """Return the error for a text on which a pattern of the tokenizer never ends."""
    return InputError(
        "the tokenizer takes too long for a text: one of its patterns does not end",
        where=type(tokenizer).__name__,
        fix="give the tokenizer that the model was trained with by --tokenizer",
    )
