"""Import chat data as examples: messages, completions, instructions and tokens.

``import_loop.py`` goes through the rows. For each row, ``formats.py`` finds the
conversation, ``preparation.py`` its text and loss; ``tokenised.py`` reads rows of token
ids. This file makes examples of them, and counts for notes (:class:`_ChatTally`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from spark_audit.arguments import checked_call, wrong_value
from spark_audit.data.chat.formats import (
    TEMPLATE_ROLES,
    Conversation,
    Supervised,
    UnreadableRowError,
    conversation_of,
)
from spark_audit.data.chat.preparation import (
    NotLocatableError,
    Prepared,
    Preparer,
    Settings,
)
from spark_audit.data.chat.rendering import Renderer
from spark_audit.data.chat.tokenised import documents_of
from spark_audit.data.examples import Example, Split, bad_field, check_task
from spark_audit.data.import_loop import (
    RowConverter,
    check_split_option,
    first_places,
    write_imported,
)
from spark_audit.data.json_rows import EMPTY_FIX
from spark_audit.data.sources import rows_of
from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.data.training_input import Truncation
from spark_audit.errors import InputError
from spark_audit.json_values import Row

# Reasons for which a row is left out, as notes and errors name them.
_NOT_LOCATABLE = "an assistant's message is not locatable"
_NOT_TEXT = "a message holds more than text"

_ADVICE_BY_REASON = {
    # If all tokens have loss, no message must be located.
    _NOT_LOCATABLE: "give other rows, or `--supervised all`",
    _NOT_TEXT: "give rows whose messages are text",
}
"""Reason -> advice if every row was left out. Of several reasons, the first counts."""

_LOSS_IN_WORDS = {
    "all": "all tokens",
    "completion": "the completion",
    "assistant": "the assistant's messages",
    "last": "the last message of the assistant",
}
"""Words in which notes describe each value of ``--supervised``."""


@checked_call
def import_chat(
    source: str | Path,
    output: str | Path,
    *,
    task: str,
    tokenizer: Tokenizer,
    template: str | None = None,
    supervised: Supervised | None = None,
    max_length: int | None = None,
    truncation: Truncation = "end",
    format: str = "auto",
    split: Split | None = None,
    encoding: str | None = None,
    progress: Callable[[str, int, int], None] | bool | None = None,
    note: Callable[[str], None] | None = None,
) -> dict[Split, int]:
    """Read chat data and write it as JSON lines, in the form that the trainer read.

    Parameters
    ----------
    source, output, task, format, split, encoding, progress, note
        As in :func:`spark_audit.data.importers.import_rows`.
    tokenizer
        The tokenizer of the training run.
    template
        Its chat template; ``None``: the tokenizer's own.
    supervised
        The part with loss: ``all`` tokens, the ``completion``, each message of the
        ``assistant``, or the ``last`` of them. ``None``: the part that the usual
        trainer of each format takes.
    max_length, truncation
        Most tokens of a row that the trainer read, and the side that it cut off.

    Returns
    -------
    dict
        Rows by split.

    Raises
    ------
    InputError
        Names file, row and field of the first bad row. Also raised if the template
        fails.

    Examples
    --------
    >>> tokenizer = base.tokenizer  # with the chat template of the training
    >>> sa.import_chat("chat.jsonl", "new.jsonl", task="chat", tokenizer=tokenizer)
    {'train': 2}
    """
    if not callable(tokenizer):
        raise wrong_value("tokenizer", tokenizer, "not a tokenizer")
    _check_options(
        task=task,
        supervised=supervised,
        max_length=max_length,
        truncation=truncation,
        split=split,
    )
    settings = Settings(supervised, max_length, truncation)

    def new_converter() -> RowConverter:
        return _ChatConverter(
            str(source),
            task=task,
            split=split,
            tokenizer=tokenizer,
            template=template,
            settings=settings,
        )

    # All rows of a task may share wording, such as a system message.
    return write_imported(
        output,
        source=str(source),
        format=format,
        encoding=encoding,
        new_converter=new_converter,
        finds_shared_wording=True,
        progress=progress,
        note=note,
    )


def _check_options(
    *,
    task: str,
    supervised: str | None,
    max_length: int | None,
    truncation: str,
    split: str | None,
) -> None:
    """Refuse invalid option values before a row is read."""
    check_task(task)

    if supervised not in (None, *get_args(Supervised)):
        raise InputError(
            "is unknown",
            where="option --supervised",
            fix=f"use one of: {', '.join(get_args(Supervised))}",
        )
    if truncation not in get_args(Truncation):
        raise InputError(
            "is unknown",
            where="option --truncation",
            fix=f"use one of: {', '.join(get_args(Truncation))}",
        )
    if max_length is not None and max_length < 2:
        raise InputError(
            "is below 2",
            where="option --max-length",
            fix="give the number of tokens that the trainer read of a row",
        )
    check_split_option(split)


@dataclass
class _ChatTally:
    """Counts of one reading of a source, for the notes of the import.

    A place is a file and line, or row number. A further note is a count here and a
    sentence in one of the methods.

    Attributes
    ----------
    places_left_out
        Places of the rows that were left out, by reason.
    places_of_odd_roles
        Places of rows with a role that few templates know.
    places_with_inner_bos
        Places of tokenised rows that may hold several documents.
    rows_by_loss
        Number of rows by the part that is assumed to have had loss, in words.
    n_documents
        Number of examples from rows with several documents.
    n_preferences, n_not_located, n_unsupervised, n_inexact
        Numbers of rows with preferences, with messages that could not be located,
        without a supervised token, and with a loss that begins inside a character.
    writes_date
        Whether a template writes the current date.
    """

    places_left_out: dict[str, list[str]] = field(default_factory=dict)
    places_of_odd_roles: list[str] = field(default_factory=list)
    places_with_inner_bos: list[str] = field(default_factory=list)
    rows_by_loss: Counter[str] = field(default_factory=Counter)
    n_documents: int = 0
    n_preferences: int = 0
    n_not_located: int = 0
    n_unsupervised: int = 0
    n_inexact: int = 0
    writes_date: bool = False

    def leave_out(self, reason: str, place: str) -> None:
        """Count a row that is left out for a reason."""
        self.places_left_out.setdefault(reason, []).append(place)

    def notes(self) -> Iterator[str]:
        """Yield notes on rows that were left out and on the assumed loss."""
        for reason, places in self.places_left_out.items():
            rows = rows_of(len(places))
            yield f"{rows} left out ({reason}), first: {first_places(places)}"
        for loss, n_rows in self.rows_by_loss.items():
            yield f"{rows_of(n_rows)}: loss on {loss}"

        yield from self._notes_on_documents()
        if self.places_of_odd_roles:
            first = first_places(self.places_of_odd_roles)
            yield (
                f"{rows_of(len(self.places_of_odd_roles))} with a role that templates "
                f"seldom know, first: {first}; its messages count as none of the "
                "assistant's"
            )
        if self.writes_date:
            yield (
                "the template writes the date of today: rows that were trained on "
                "another day read otherwise"
            )
        yield from self._notes_on_rows()

    def _notes_on_documents(self) -> Iterator[str]:
        """Yield notes on tokenised rows that hold, or may hold, several documents."""
        if self.n_documents:
            yield f"packed rows were taken apart into {self.n_documents} documents"

        if self.places_with_inner_bos:
            first = first_places(self.places_with_inner_bos)
            yield (
                f"{rows_of(len(self.places_with_inner_bos))} with a BOS in the middle, "
                f"first: {first}; if several documents are packed into a row, add "
                "`seq_lengths` or `position_ids`, by which they are taken apart"
            )

    def _notes_on_rows(self) -> Iterator[str]:
        """Yield notes on rows that were not read exactly as they are written."""
        if self.n_preferences:
            yield f"{rows_of(self.n_preferences)} of preferences: `chosen` is imported"
        if self.n_not_located:
            yield (
                f"{rows_of(self.n_not_located)} with messages that are not locatable: "
                "the template writes a conversation's beginning otherwise when it "
                "goes on"
            )
        if self.n_unsupervised:
            yield f"{rows_of(self.n_unsupervised)} without any supervised token"
        if self.n_inexact:
            yield f"{rows_of(self.n_inexact)} whose loss begins inside of a character"


class _ChatConverter(RowConverter):
    """A converter of chat data and of rows that are already tokenised.

    Parameters
    ----------
    source, task, split
        As for :class:`RowConverter`.
    tokenizer
        The tokenizer of the training run.
    template
        Its chat template; ``None``: the tokenizer's own, if it has one.
    settings
        Settings of the training run.
    """

    rows_per_progress_call = 100  # templates are slow

    def __init__(
        self,
        source: str,
        *,
        task: str,
        split: Split | None,
        tokenizer: Tokenizer,
        template: str | None,
        settings: Settings,
    ) -> None:
        super().__init__(source, task=task, split=split)
        self._tokenizer = tokenizer
        self._settings = settings

        # Rows of text and of tokens need no template. Without a template, only a row
        # with messages is refused, and only when it is read.
        self._renderer: Renderer | None = None
        if template is not None or getattr(tokenizer, "chat_template", None):
            self._renderer = Renderer(tokenizer, template)
        self._preparer = Preparer(tokenizer, self._renderer, settings)
        self._tally = _ChatTally()

    def examples_of(
        self, row: Row, place: str, split_by_name: Split | None
    ) -> list[Example]:
        """Return one example per document of a row; none if the row is left out."""
        split = self.split_of_row(split_by_name, cell=_cell_text(row, "split"))
        documents = self._documents(row, place)

        row_id = _cell_text(row, "id")
        source_id = _cell_text(row, "source_id")
        is_packed = len(documents) > 1

        examples = []
        for number, document in enumerate(documents, start=1):
            self.rows_by_split[split] += 1
            if is_packed:
                self._tally.n_documents += 1
            if not document.training_input.supervised:
                self._tally.n_unsupervised += 1

            # Rows without an id are numbered over the split; documents of a row with an
            # id are numbered within the row.
            example_id = row_id or self.new_id(split)
            if row_id and is_packed:
                example_id = f"{row_id}-{number}"
            examples.append(
                Example(
                    id=example_id,
                    task=self.task,
                    prompt=document.prompt,
                    response=document.response,
                    split=split,
                    source_id=source_id or example_id,
                    template=document.template,
                    training_input=document.training_input,
                )
            )
        return examples

    def no_rows(self) -> InputError:
        """Return the error of a source without a single example."""
        reasons = self._tally.places_left_out
        if not reasons:
            return InputError("holds no rows", where=self.source, fix=EMPTY_FIX)

        advice = [
            advice for reason, advice in _ADVICE_BY_REASON.items() if reason in reasons
        ]
        return InputError(
            f"every row was left out ({', '.join(reasons)})",
            where=self.source,
            fix=advice[0],
        )

    def counted_notes(self) -> Iterator[str]:
        """Yield notes on rows that were left out and on the assumed loss."""
        return self._tally.notes()

    def _documents(self, row: Row, place: str) -> Sequence[Prepared]:
        """Return the documents of a row, and count it; none if it is left out."""
        if row.get("input_ids") is not None:
            return self._tokenised_documents(row, place)

        try:
            conversation = conversation_of(row)
            if conversation.messages and self._renderer is None:
                # The row needs a template, and there is none.
                Renderer(self._tokenizer)  # raises
            document = self._preparer.prepare(conversation, place)
        except UnreadableRowError:
            self._tally.leave_out(_NOT_TEXT, place)
            return []
        except NotLocatableError:
            self._tally.leave_out(_NOT_LOCATABLE, place)
            return []

        self._count_conversation(conversation, document, place)
        return [document]

    def _tokenised_documents(self, row: Row, place: str) -> Sequence[Prepared]:
        """Return the documents of a row that is already tokenised, and count it."""
        documents = []
        for document in documents_of(row, self._tokenizer):
            documents.append(document.prepared)
            if not document.is_exact:
                self._tally.n_inexact += 1

        # A BOS inside a single document is a sign of several documents.
        ids = row["input_ids"]
        assert isinstance(ids, list)  # documents_of refuses anything else
        bos = self._tokenizer.bos_token_id
        if len(documents) == 1 and bos is not None and bos in ids[1:]:
            self._tally.places_with_inner_bos.append(place)
        self._tally.rows_by_loss["what its labels say"] += 1
        return documents

    def _count_conversation(
        self, conversation: Conversation, document: Prepared, place: str
    ) -> None:
        """Count the properties of a conversation that notes mention."""
        supervised = self._settings.supervised or conversation.supervised
        self._tally.rows_by_loss[_LOSS_IN_WORDS[supervised]] += 1
        if conversation.preferred:
            self._tally.n_preferences += 1
        if document.not_located:
            self._tally.n_not_located += 1

        # transformers offers this function to templates for the current date.
        if self._renderer is not None and conversation.messages:
            template = self._renderer.template_for(conversation.tools)
            if "strftime_now" in template:
                self._tally.writes_date = True

        roles = {str(message["role"]) for message in conversation.messages}
        if roles - TEMPLATE_ROLES:
            self._tally.places_of_odd_roles.append(place)


def _cell_text(row: Row, column: str) -> str:
    """Return an id, a source or a split as text; empty if the row has none.

    In contrast, ``name_in`` of ``columns.py`` refuses a missing column and blank text.
    """
    value = row.get(column)
    # A truth value is an int in Python, but not a name.
    if value is None or value == "":
        return ""
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise bad_field(column, "is not text", fix="make the column one of text")
    return value
