"""Read a file that a model wrote: synthetic data, or a replay buffer.

Its rows are read by the readers of ``sources.py`` (JSON, CSV, Parquet, Arrow, plain
lines), and each gives one text: all that the model wrote there, and the prompt if the
row holds it. A further name of a column of text is an entry of :data:`TEXT_COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spark_audit.data.chat.formats import (
    UnreadableRowError,
    conversation_of,
    is_chat,
    text_of,
)
from spark_audit.data.columns import (
    COLUMNS_OF_LAYOUT,
    listed_columns,
    text_in,
    usual_column,
)
from spark_audit.data.sources import read_rows
from spark_audit.errors import InputError, at
from spark_audit.json_values import Row
from spark_audit.wrong_paths import no_such_path

TEXT_COLUMNS = (
    "text",
    "content",
    "completion",
    "response",
    "output",
    "answer",
    "generation",
    "generated_text",
    "sentence",
    "document",
)
"""Usual names of a column that holds the text of a row, in the order of choice."""


def read_generated(path: Path, *, column: str | None = None) -> list[str]:
    """Return the texts of a file that a model wrote, one per row; blank ones are left.

    A conversation is the text of all its messages. A row with a prompt and an answer is
    both, with a line break between them.

    Parameters
    ----------
    column
        The only column to read; ``None``: those of usual names.

    Raises
    ------
    InputError
        If there is no such file, it holds no text, or a row has no column of text; the
        message names the columns that there are.
    """
    if not path.exists():
        raise no_such_path(path, otherwise="give a file of text that a model wrote")
    if path.is_dir():
        raise InputError(
            "is a folder, not a file of text",
            where=str(path),
            fix="give the file; a model in a folder is audited by --ckpt of the other "
            "commands",
        )

    texts = []
    for place, _, row in read_rows(str(path), "auto", note=_no_note):
        with at(place):
            text = _text_of_row(row, column)
        if text.strip():
            texts.append(text)
    if not texts:
        raise InputError(
            "holds no text", where=str(path), fix="give a file with a text per row"
        )
    return texts


def _no_note(note: str) -> None:
    """Take a note of a reader, which says nothing about the texts."""


def _text_of_row(row: Row, column: str | None) -> str:
    """Return the text of one row; empty if its columns are empty."""
    if column is not None:
        return text_in(row, column) or ""
    if is_chat(row):
        return _text_of_conversation(row)

    for names in COLUMNS_OF_LAYOUT.values():
        prompt = usual_column(row, names["prompt"])
        response = usual_column(row, names["response"])
        if prompt and response:
            return _joined([text_in(row, prompt) or "", text_in(row, response) or ""])

    for name in TEXT_COLUMNS:
        usual_name = usual_column(row, name)
        if usual_name:
            return text_in(row, usual_name) or ""
    raise InputError(
        f"has no column of text ({listed_columns(row)})",
        fix="name the column of text by --field",
    )


def _text_of_conversation(row: Row) -> str:
    """Return the text of all messages of a conversation; empty: it holds no text."""
    try:
        conversation = conversation_of(row)
    except UnreadableRowError:
        return ""
    if not conversation.messages:
        return _joined([conversation.prompt, conversation.completion])
    return _joined([text_of(message) for message in conversation.messages])


def _joined(texts: Sequence[str]) -> str:
    """Return texts that are not blank with a line break between them."""
    return "\n".join(text for text in texts if text.strip())
