"""Call a tokenizer that may fail on some text, or run for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.errors import InputError, is_rust_panic

T = TypeVar("T")

BASE_SECONDS = 120.0
"""Seconds that every call may take; its texts add a second for each
:data:`CHARACTERS_A_SECOND`."""

CHARACTERS_A_SECOND = 10_000
"""A hundredth of what even a slow tokenizer reads."""

ONIGURUMA_GAVE_UP = "retry-limit"
"""Part of the error of Oniguruma, the pattern library of tokenizers, when a search has
taken too many steps."""


@contextmanager
def tokenising(tokenizer: Tokenizer) -> Iterator[None]:
    """Turn an error of the library on some text into an ``InputError``.

    A tokenizer that loads may still fail on some text. The library's message is left
    out, because it may quote the text. :func:`in_time` limits the time besides; both
    are used together::

        with tokenising(tokenizer):
            encodings = in_time(lambda: tokenizer(texts), texts, tokenizer)

    Raises
    ------
    InputError
        If the library fails, or gives up the search for a pattern by itself. The
        ``InputError`` of :func:`in_time` passes unchanged, because its class is not
        plain ``Exception``.
    """
    try:
        yield
    except BaseException as error:
        # The library tokenizers raises plain Exception or a Rust panic; an error of a
        # narrower class comes from elsewhere.
        is_of_library = type(error) is Exception or is_rust_panic(error)
        if not is_of_library:
            raise

        if ONIGURUMA_GAVE_UP in str(error):
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
    that ends with the process. To be used inside of :func:`tokenising`, which handles
    the errors of the call itself.

    Parameters
    ----------
    call
        Calls the tokenizer on the texts.
    texts
        Their length decides how long the call may take.

    Raises
    ------
    InputError
        If the call takes longer than :data:`BASE_SECONDS` and the time of its texts.
    """
    # The thread puts one entry into one of these lists, unless the time ends first.
    values: list[T] = []
    errors: list[BaseException] = []

    def call_and_keep() -> None:
        try:
            values.append(call())
        except BaseException as error:
            errors.append(error)

    n_characters = sum(len(text) for text in texts)
    deadline = BASE_SECONDS + n_characters / CHARACTERS_A_SECOND  # seconds
    thread = threading.Thread(target=call_and_keep, daemon=True)
    thread.start()
    thread.join(deadline)

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
