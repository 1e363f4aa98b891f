"""Chat data as examples: messages, prompts and completions, instructions, tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import get_args

from spark_audit.data.chat.formats import (
    TEMPLATE_ROLES,
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
from spark_audit.data.examples import (
    SPLIT_FIX,
    Example,
    Split,
    bad_field,
    check_task,
    unique,
    write_examples,
)
from spark_audit.data.fixed_wording import with_shared_wording
from spark_audit.data.json_rows import EMPTY_FIX
from spark_audit.data.sources import read_rows, rows_of, split_of
from spark_audit.data.task_wording import task_templates
from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.data.training_input import Truncation
from spark_audit.errors import InputError, at
from spark_audit.json_values import Row

_NOT_LOCATABLE = "an assistant's message is not locatable"
_EVERY = 100
"""Rows between two calls of a progress."""


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
    progress: Callable[[str, int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> dict[Split, int]:
    """Read chat data and write it as JSON lines, as the trainer read it.

    Parameters
    ----------
    source, output, task, format, split, encoding, progress, note
        As in :func:`spark_audit.data.importers.import_rows`.
    tokenizer
        The tokenizer of the training run.
    template
        Its chat template; ``None``: the tokenizer's own.
    supervised
        What had loss: ``all`` tokens, the ``completion``, each message of the
        ``assistant``, or the ``last`` of them. ``None``: what the usual trainer of
        each format does.
    max_length, truncation
        Tokens that the trainer read of a row, and the side that it cut off.

    Returns
    -------
    dict
        Rows by split.

    Raises
    ------
    InputError
        Naming file, row and field of the first bad row; if the template fails.
    """
    check_task(task)
    if supervised not in (None, *get_args(Supervised)):
        fix = f"use one of: {', '.join(get_args(Supervised))}"
        raise InputError("is unknown", where="option --supervised", fix=fix)
    if truncation not in get_args(Truncation):
        fix = f"use one of: {', '.join(get_args(Truncation))}"
        raise InputError("is unknown", where="option --truncation", fix=fix)
    if max_length is not None and max_length < 2:
        raise InputError("is below 2", where="option --max-length")
    if split not in (None, *get_args(Split)):
        raise InputError(
            "is neither train nor test", where="option --split", fix=SPLIT_FIX
        )

    show = progress or (lambda what, done, total: None)
    settings = Settings(supervised, max_length, truncation)
    rows = _ChatRows(
        str(source),
        task,
        format,
        split,
        encoding,
        tokenizer=tokenizer,
        template=template,
        settings=settings,
    )
    # What all rows of a task share, such as a system message, is known at the end.
    shared = task_templates(
        example for _, example in rows.read(partial(show, "rows read"))
    )
    written = unique(rows.read(partial(show, "rows written")))
    write_examples(
        output, (with_shared_wording(example, shared) for example in written)
    )
    if note is not None:
        for remark in rows.notes():
            note(remark)
    return dict(rows.counts)


class _ChatRows:
    """A source of chat data, and how its rows become examples."""

    def __init__(
        self,
        source: str,
        task: str,
        format: str,
        split: Split | None,
        encoding: str | None,
        *,
        tokenizer: Tokenizer,
        template: str | None,
        settings: Settings,
    ) -> None:
        self.source, self.task, self.format = source, task, format
        self.split, self.encoding = split, encoding
        self._tokenizer, self._settings = tokenizer, settings
        path = Path(source)
        self._split_of_name = split_of(path.stem) if path.is_file() else None
        self._renderer: Renderer | None = None
        if template is not None or getattr(tokenizer, "chat_template", None):
            self._renderer = Renderer(tokenizer, template)
        self._preparer = Preparer(tokenizer, self._renderer, settings)
        self._begin()

    def _begin(self) -> None:
        self.counts: Counter[Split] = Counter()
        self._told: dict[str, None] = {}
        self._left_out: dict[str, list[str]] = {}
        self._unknown_roles: list[str] = []
        self._joined: list[str] = []
        self._masks: Counter[str] = Counter()
        self._n_preferred = self._n_unlocated = self._n_unsupervised = 0
        self._n_inexact = self._n_documents = 0
        self._writes_date = False

    def notes(self) -> Iterator[str]:
        """Yield what was left out, and what was taken to have had loss."""
        yield from self._told
        for reason, places in self._left_out.items():
            first = ", ".join(places[:3])
            yield f"{rows_of(len(places))} left out ({reason}), first: {first}"
        for mask, count in self._masks.items():
            yield f"{rows_of(count)}: loss on {mask}"
        if self._n_documents > self.counts.total():
            yield f"packed rows were taken apart into {self._n_documents} documents"
        if self._joined:
            first = ", ".join(self._joined[:3])
            yield (
                f"{rows_of(len(self._joined))} with a BOS in the middle, first: "
                f"{first}; if several documents are packed into a row, add "
                "`seq_lengths` or "
                "`position_ids`, by which they are taken apart"
            )
        if self._unknown_roles:
            first = ", ".join(self._unknown_roles[:3])
            yield (
                f"{rows_of(len(self._unknown_roles))} with a role that templates "
                f"seldom know, first: {first}; its messages count as none of the "
                "assistant's"
            )
        if self._writes_date:
            yield (
                "the template writes the date of today: rows that were trained on "
                "another day read otherwise"
            )
        if self._n_preferred:
            yield f"{rows_of(self._n_preferred)} of preferences: `chosen` is imported"
        if self._n_unlocated:
            yield (
                f"{rows_of(self._n_unlocated)} with messages that are not locatable: "
                "the template writes a conversation's beginning otherwise when it "
                "goes on"
            )
        if self._n_unsupervised:
            yield f"{rows_of(self._n_unsupervised)} without any supervised token"
        if self._n_inexact:
            yield f"{rows_of(self._n_inexact)} whose loss begins inside of a character"

    def read(
        self, progress: Callable[[int, int], None]
    ) -> Iterator[tuple[str, Example]]:
        """Yield the examples with their places; at least one."""
        self._begin()
        rows = read_rows(
            self.source, self.format, encoding=self.encoding, note=self._tell
        )
        for place, named, row in rows:
            with at(place):
                split = self._split_of_row(named, row)
                prepared = self._prepared(row, place)
                examples = self._examples(prepared, row, split)
            for example in examples:
                yield place, example
            if self.counts.total() % _EVERY == 0:
                progress(self.counts.total(), 0)
        if not self.counts:
            what, fix = "holds no rows", EMPTY_FIX
            if self._left_out:
                what = f"every row was left out ({', '.join(self._left_out)})"
                fix = "give rows whose messages are text"
                if _NOT_LOCATABLE in self._left_out:
                    fix = "give other rows, or `--supervised all`"
            raise InputError(what, where=self.source, fix=fix)

    def _tell(self, remark: str) -> None:
        self._told[remark] = None

    def _prepared(self, row: Row, place: str) -> list[Prepared]:
        """The row's documents; none where it is left out."""
        if row.get("input_ids") is not None:
            documents = [*documents_of(row, self._tokenizer)]
            self._n_inexact += sum(not is_exact for _, is_exact in documents)
            bos = self._tokenizer.bos_token_id
            ids = row["input_ids"]
            assert isinstance(ids, list)  # or it has no documents
            if len(documents) == 1 and bos is not None and bos in ids[1:]:
                self._joined.append(place)
            self._masks["what its labels say"] += 1
            return [prepared for prepared, _ in documents]
        try:
            conversation = conversation_of(row)
            if conversation.messages and self._renderer is None:
                # Says that there is no template.
                self._renderer = Renderer(self._tokenizer)
            prepared = self._preparer.prepare(conversation, place)
        except UnreadableRowError:
            self._leave_out("a message holds more than text", place)
            return []
        except NotLocatableError:
            self._leave_out(_NOT_LOCATABLE, place)
            return []
        self._masks[
            _MASK_OPTIONS[self._settings.supervised or conversation.supervised]
        ] += 1
        self._n_preferred += conversation.preferred
        if self._renderer is not None and conversation.messages:
            template = self._renderer.template_for(conversation.tools)
            self._writes_date |= "strftime_now" in template
        self._n_unlocated += bool(prepared.not_located)
        roles = {str(message["role"]) for message in conversation.messages}
        if roles - TEMPLATE_ROLES:
            self._unknown_roles.append(place)
        return [prepared]

    def _leave_out(self, reason: str, place: str) -> None:
        self._left_out.setdefault(reason, []).append(place)

    def _examples(
        self, documents: list[Prepared], row: Row, split: Split
    ) -> list[Example]:
        name, source = _name(row, "id"), _name(row, "source_id")
        found = []
        for i, document in enumerate(documents):
            self.counts[split] += 1
            self._n_documents += len(documents) > 1
            self._n_unsupervised += not document.training_input.supervised
            key = name or f"{self.task}-{split}-{self.counts[split]:06d}"
            if name and len(documents) > 1:
                key = f"{name}-{i + 1}"
            found.append(
                Example(
                    id=key,
                    task=self.task,
                    prompt=document.prompt,
                    response=document.response,
                    split=split,
                    source_id=source or key,
                    template=document.template,
                    training_input=document.training_input,
                )
            )
        return found

    def _split_of_row(self, named: Split | None, row: Row) -> Split:
        cell = _name(row, "split")
        by_row = split_of(cell) if cell else self._split_of_name
        if cell and by_row is None:
            raise bad_field("split", "is neither train nor test", fix=SPLIT_FIX)
        given = [one for one in (self.split, named, by_row) if one is not None]
        if not given:
            raise bad_field("split", "is missing", fix=SPLIT_FIX)
        if len({*given}) > 1:
            what = "is one thing by the option and another by file name or row"
            raise bad_field("split", what, fix="leave out `--split`")
        return given[0]


_MASK_OPTIONS = {
    "all": "all tokens",
    "completion": "the completion",
    "assistant": "the assistant's messages",
    "last": "the last message of the assistant",
}


def _name(row: Row, column: str) -> str:
    value = row.get(column)
    if value is None or value == "":
        return ""
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise bad_field(column, "is not text")
    return value
