"""Candidates of a slot, or labels of a task, as items that are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import TYPE_CHECKING

import numpy as np

from spark_audit.data.encoding import (
    encode_rows,
    token_ids,
)
from spark_audit.data.training_input import SpecialTokens
from spark_audit.errors import InputError
from spark_audit.manifest import schema
from spark_audit.scoring.items import Candidates

if TYPE_CHECKING:
    pass
from spark_audit.manifest.encodings import (
    MOST_LABELS,
    Encodings,
    fitted_prefix,
    parts_of,
)


def candidate_items(texts: Encodings, keys: Sequence[str]) -> list[Candidates]:
    """Sets of candidates: canaries, coins, twins and labels, in order of their keys."""
    return [
        (_label_item if parts_of(key)[0] == "labels" else slot_item)(key, texts)
        for key in keys
    ]


def _label_item(key: str, encodings: Encodings) -> Candidates:
    """The answers that a row's task knows as candidates.

    Every label is tokenised jointly with the prompt; the candidates begin at the first
    token that any of the joint tokenisations has otherwise or that reaches into the
    label, so that all stand behind one prefix.

    Raises
    ------
    InputError
        Naming the example, if its task has too many responses or one without text, or
        if nothing stands before them.
    """
    row = encodings.manifest.by_id[parts_of(key)[-1]]
    where, labels = f"example {row.id!r}", encodings.labels.get(row.task)
    if labels is None:
        raise InputError(
            f"its task has more than {MOST_LABELS} different responses",
            where=where,
            fix="use the scorer `normalised`",
        )
    if not all(label.strip() for label in labels):
        raise InputError("a row of its task has no response", where=where)
    joint = [_Joint(row.prompt + label, _special_tokens_of(row)) for label in labels]
    texts = encode_rows(encodings.loaded.tokenizer, joint)
    alike = len(commonprefix([text.ids.tolist() for text in texts]))
    start = min(alike, *(text.reaching(len(row.prompt)) for text in texts))
    ends = [text.ids[start : text.text_end] for text in texts]
    room, before = max(map(len, ends)), texts[0].ids[:start]
    prefix = fitted_prefix(before, texts[0].leading, encodings.limit, room, row.id)
    return Candidates(key, prefix, tuple(ends))


@dataclass(frozen=True)
class _JointInput:
    """How a prompt with another answer is tokenised: as its row is, and not cut."""

    special_tokens: SpecialTokens
    token_ids: None = None

    def fed(self, n_tokens: int) -> tuple[int, int]:
        """Return all of the tokens."""
        return 0, n_tokens


@dataclass(frozen=True)
class _Joint:
    """A prompt with an answer that its row does not have."""

    text: str
    training_input: _JointInput | None


def _special_tokens_of(row: schema.ManifestExample) -> _JointInput | None:
    training = row.training_input
    return None if training is None else _JointInput(training.special_tokens)


def slot_item(key: str, encodings: Encodings) -> Candidates:
    """Candidates in the place of a true string, behind what stands before it.

    Where the first token also covers characters before the string, it is one of them.

    Raises
    ------
    InputError
        Naming the set, if the manifest has none there, the string was cut off, or a
        candidate changes another token than the string's own.
    """
    *of, row = parts_of(key)
    held, where = encodings.sets.get(tuple(of)), f"candidates {key!r}"
    places = {one.example: one for one in held.contexts} if held else {}
    if held is None or row not in places or held.true_index is None:
        raise InputError(
            getattr(held, "reason", None) or "the manifest has no such set",
            where=where,
            fix="score what the manifest lists under `canaries` and `twins`",
        )
    example, place = encodings.manifest.by_id[row], places[row]
    encoding = encodings[row]
    span = encoding.span(place.char_start, place.char_end)
    if span is None or span.start < example.kept[0] or span.end > example.kept[1]:
        raise InputError("is cut off: text longer than the context", where=where)
    before, after = example.text[: place.char_start], example.text[place.char_end :]
    texts = [before + one + after for one in held.candidates]
    training, tokenizer = example.training_input, encodings.loaded.tokenizer
    rows = token_ids(
        tokenizer,
        texts,
        special_tokens=training is None or training.special_tokens == "added",
    )
    ids = encoding.ids.tolist()
    # All are as the true string's text but for the tokens in its place.
    own = slice(span.start, span.end)
    fits = all(
        len(one) == len(ids) and [*one[: own.start], *ids[own], *one[own.stop :]] == ids
        for one in rows
    )
    if rows[held.true_index] != ids or not fits:
        raise InputError(
            "a candidate changes tokens around the true string's place",
            where=where,
            fix="give the tokenizer that the manifest was built with",
        )
    fed, positions = encoding.fed(example.kept)
    slot = np.array([one[own] for one in rows], dtype=np.int32)
    return Candidates(key, fed[positions < own.start], tuple(slot))
