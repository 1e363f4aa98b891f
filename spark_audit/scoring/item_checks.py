"""Refuse items that a model cannot read, before it is switched on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_audit.errors import InputError
from spark_audit.scoring.items import AnyItem, Candidates, Item, Prompt

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint

_MAX_NAMED = 5
"""Most rows that an error names."""

_ITEM_NOUNS = {Item: "example", Candidates: "candidates", Prompt: "prompt"}


def check_reads_as_base(loaded: Checkpoint, items: Sequence[AnyItem]) -> None:
    """Refuse texts that hold tokens which were added to those of the base.

    A grown tokenizer reads such texts differently from its base's. Their scores would
    belong to other tokens than those of the base.

    Raises
    ------
    InputError
        Names the first rows.
    """
    if loaded.added is None:
        return

    # `added` is a mask over the vocabulary. Items of several passes may share a key.
    names_by_key: dict[str, str] = {}
    for item in items:
        if loaded.added[item.all_ids].any():
            names_by_key[item.key] = _name_of(item)
    if not names_by_key:
        return

    listed = ", ".join([*names_by_key.values()][:_MAX_NAMED])
    n_more = len(names_by_key) - _MAX_NAMED
    more = f" and {n_more} more" if n_more > 0 else ""
    raise InputError(
        f"its tokenizer reads {listed}{more} otherwise than the base's: they hold "
        "tokens that were added",
        where=f"checkpoint {loaded.name!r}",
        fix="leave these rows out, or give --base the checkpoint with these tokens",
    )


def check_readable(loaded: Checkpoint, items: Sequence[AnyItem]) -> None:
    """Refuse items that the model cannot read; the error names the first one."""
    seen = set[str]()
    for item in items:
        if item.key in seen:
            raise InputError("the key occurs twice", where=_name_of(item))
        seen.add(item.key)
        if isinstance(item, Candidates) and not len(item.prefix):
            raise InputError(
                "there is no text before its candidates", where=_name_of(item)
            )
        _check_length(loaded, item)
        _check_tokens(loaded, item)


def _check_length(loaded: Checkpoint, item: AnyItem) -> None:
    """Refuse an item that is longer than the model's context."""
    context = loaded.max_positions
    if context is not None and item.n_context_tokens > context:
        raise InputError(
            f"{item.n_context_tokens} tokens do not fit the context of {context}",
            where=_name_of(item),
            fix="build the manifest with this model's context, or cut the text",
        )


def _check_tokens(loaded: Checkpoint, item: AnyItem) -> None:
    """Refuse an item with a token that the model does not have, or cannot predict."""
    ids = item.all_ids
    problem = ""
    if len(ids) and (ids.min() < 0 or ids.max() >= len(loaded.usable)):
        problem = "holds a token that the model's vocabulary does not have"
    elif not loaded.usable[item.predicted_ids].all():
        problem = "holds a token at a vocabulary row that is marked as no token"
    if problem:
        raise InputError(
            problem, where=_name_of(item), fix="use the checkpoint's own tokenizer"
        )


def _name_of(item: AnyItem) -> str:
    """Return the name of an item for messages."""
    return f"{_ITEM_NOUNS[type(item)]} {item.key!r}"
