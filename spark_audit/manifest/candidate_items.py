"""Candidates of a slot, or labels of a task, as items that are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix

import numpy as np

from spark_audit.data.encoding import TokenSpan, encode_rows, token_ids
from spark_audit.data.training_input import SpecialTokens
from spark_audit.errors import InputError
from spark_audit.manifest import schema
from spark_audit.manifest.encodings import (
    MOST_LABELS,
    Encodings,
    fitted_prefix,
    parts_of,
)
from spark_audit.scoring.items import Candidates


def candidate_items(texts: Encodings, keys: Sequence[str]) -> list[Candidates]:
    """Return sets of candidates: canaries, coins, twins and labels, by their keys."""
    items = []
    for key in keys:
        if parts_of(key)[0] == "labels":
            items.append(_label_item(key, texts))
        else:
            items.append(slot_item(key, texts))
    return items


def _label_item(key: str, encodings: Encodings) -> Candidates:
    """Return the answers that a row's task knows as candidates.

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
    where = f"example {row.id!r}"
    labels = encodings.labels.get(row.task)
    if labels is None:
        raise InputError(
            f"its task has more than {MOST_LABELS} different responses",
            where=where,
            fix="use the scorer `normalised`",
        )
    if not all(label.strip() for label in labels):
        raise InputError(
            "a row of its task has no response", where=where, fix="leave that row out"
        )

    joint = [_Joint(row.prompt + label, _special_tokens_of(row)) for label in labels]
    texts = encode_rows(encodings.loaded.tokenizer, joint)

    # Behind the last token that all share, and before any that reaches into a label.
    start = len(commonprefix([text.ids.tolist() for text in texts]))
    for text in texts:
        start = min(start, text.reaching(len(row.prompt)))

    # The longest answer decides how much of the prompt fits: all get one prefix.
    answers = [text.ids[start : text.text_end] for text in texts]
    prefix = fitted_prefix(
        texts[0].ids[:start],
        texts[0].leading,
        encodings.limit,
        max(len(answer) for answer in answers),
        row.id,
    )
    return Candidates(key, prefix, tuple(answers))


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
    """Return how special tokens stand around a row's text, if training says so."""
    training = row.training_input
    return None if training is None else _JointInput(training.special_tokens)


def slot_item(key: str, encodings: Encodings) -> Candidates:
    """Return candidates in the place of a true string, behind what stands before it.

    Where the first token also covers characters before the string, it is one of them.

    Raises
    ------
    InputError
        Naming the set, if the manifest has none there, the string was cut off, or a
        candidate changes another token than the string's own.
    """
    *set_key, example_id = parts_of(key)
    where = f"candidates {key!r}"
    candidate_set = encodings.sets.get(tuple(set_key))
    context = _context_of(candidate_set, example_id)
    if candidate_set is None or context is None or candidate_set.true_index is None:
        raise InputError(
            getattr(candidate_set, "reason", None) or "the manifest has no such set",
            where=where,
            fix="score what the manifest lists under `canaries` and `twins`",
        )

    example = encodings.manifest.by_id[example_id]
    encoding = encodings[example_id]
    span = encoding.span(context.char_start, context.char_end)
    kept_start, kept_end = example.kept
    if span is None or span.start < kept_start or span.end > kept_end:
        raise InputError(
            "is cut off: text longer than the context",
            where=where,
            fix="score it with a model that reads more tokens",
        )

    # Each candidate in the text that the true string stands in.
    before = example.text[: context.char_start]
    after = example.text[context.char_end :]
    training = example.training_input
    rows = token_ids(
        encodings.loaded.tokenizer,
        [before + candidate + after for candidate in candidate_set.candidates],
        special_tokens=training is None or training.special_tokens == "added",
    )

    # All are as the true string's text but for the tokens in its place.
    true_ids = encoding.ids.tolist()
    has_true_ids = rows[candidate_set.true_index] == true_ids
    if not has_true_ids or not all(_fits(ids, true_ids, span) for ids in rows):
        raise InputError(
            "a candidate changes tokens around the true string's place",
            where=where,
            fix="give the tokenizer that the manifest was built with",
        )

    # What the model reads before the slot, as it read it of the row.
    fed_ids, positions = encoding.fed(example.kept)
    prefix = fed_ids[positions < span.start]
    slot_ids = [ids[span.start : span.end] for ids in rows]
    rows_of_ids = np.array(slot_ids, dtype=np.int32)  # (candidates, tokens)
    return Candidates(key, prefix, tuple(rows_of_ids))


def _context_of(
    candidate_set: schema.ManifestCanary | schema.ManifestTwins | None, example_id: str
) -> schema.CanaryContext | None:
    """Return where a set's true string stands in an example; ``None``: nowhere."""
    if candidate_set is None:
        return None
    for context in candidate_set.contexts:
        if context.example == example_id:
            return context
    return None


def _fits(ids: list[int], true_ids: list[int], span: TokenSpan) -> bool:
    """Return whether token ids differ from the true ones in a span alone."""
    is_same_before = ids[: span.start] == true_ids[: span.start]
    is_same_behind = ids[span.end :] == true_ids[span.end :]
    return len(ids) == len(true_ids) and is_same_before and is_same_behind
