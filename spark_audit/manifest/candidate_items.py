"""Make items for scoring from candidates of a slot, or labels of a task.

All candidates of an item follow one prefix, which a model reads once (see
:class:`spark_audit.scoring.items.Candidates`). Audits compare their scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix

import numpy as np

from spark_audit.data.encoding import TokenSpan, encode_rows, token_ids
from spark_audit.data.training_input import SpecialTokens
from spark_audit.errors import InputError
from spark_audit.manifest import example_schema, schema
from spark_audit.manifest.encodings import (
    MOST_LABELS,
    Encodings,
    components_of,
    fitted_prefix,
)
from spark_audit.scoring.items import Candidates


def candidate_items(encodings: Encodings, keys: Sequence[str]) -> list[Candidates]:
    """Return the sets of candidates with these keys: canaries, coins, twins, labels."""
    items = []
    for key in keys:
        if components_of(key)[0] == "labels":
            items.append(_label_item(key, encodings))
        else:
            items.append(slot_item(key, encodings))
    return items


def _label_item(key: str, encodings: Encodings) -> Candidates:
    """Return the labels of a row's task as candidates.

    Every label is tokenised together with the prompt. The candidates begin at the first
    token that differs between these tokenisations or that reaches into the label. So
    all candidates have the same prefix.

    Raises
    ------
    InputError
        Names the example, if its task has too many responses or an empty one, or if
        nothing precedes the labels.
    """
    row = encodings.manifest.by_id[components_of(key)[-1]]
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

    joint_rows = []
    for label in labels:
        joint_rows.append(_JointRow(row.prompt + label, _training_input_of(row)))
    joint_encodings = encode_rows(encodings.loaded.tokenizer, joint_rows)

    # The candidates start where the tokens differ or reach into a label.
    start = len(commonprefix([joint.ids.tolist() for joint in joint_encodings]))
    for joint in joint_encodings:
        start = min(start, joint.first_token_past(len(row.prompt)))

    # The longest label decides how much of the prompt fits, so that all share a prefix.
    answers = [joint.ids[start : joint.text_token_end] for joint in joint_encodings]
    prefix = fitted_prefix(
        joint_encodings[0].ids[:start],
        n_leading_special=joint_encodings[0].n_leading_special,
        limit=encodings.limit,
        n_answer_tokens=max(len(answer) for answer in answers),
        example_id=row.id,
    )
    return Candidates(key, prefix, tuple(answers))


@dataclass(frozen=True)
class _JointInput:
    """The tokenisation of a prompt with another answer: as in its row, but uncut."""

    special_tokens: SpecialTokens
    token_ids: None = None

    def token_range_read(self, n_tokens: int) -> tuple[int, int]:
        """Return all of the tokens."""
        return 0, n_tokens


@dataclass(frozen=True)
class _JointRow:
    """A row's prompt with one of the labels of its task as answer."""

    text: str
    training_input: _JointInput | None


def _training_input_of(row: example_schema.ManifestExample) -> _JointInput | None:
    """Return how a row's special tokens are made, if its training input is known."""
    training = row.training_input
    return None if training is None else _JointInput(training.special_tokens)


def slot_item(key: str, encodings: Encodings) -> Candidates:
    """Return the candidates for a slot, behind the text that precedes the slot.

    A slot is where a canary's or an identifier's true string stands in a row. If its
    first token also covers characters before the slot, that token belongs to the
    candidates.

    Parameters
    ----------
    key
        Kind, object and example; see :func:`spark_audit.manifest.encodings.key_of`.

    Raises
    ------
    InputError
        Names the set, if the manifest has none there, if the string was cut off, or if
        a candidate changes a token outside of the slot.
    """
    *kind_and_object, example_id = components_of(key)
    where = f"candidates {key!r}"
    candidate_set = encodings.candidate_sets.get(tuple(kind_and_object))
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

    # Each candidate replaces the true string in the same text.
    before = example.text[: context.char_start]
    after = example.text[context.char_end :]
    training = example.training_input
    ids_by_candidate = token_ids(
        encodings.loaded.tokenizer,
        [before + candidate + after for candidate in candidate_set.candidates],
        special_tokens=training is None or training.special_tokens == "added",
    )

    # Only the tokens in the slot may differ from those of the true text.
    true_ids = encoding.ids.tolist()
    has_true_ids = ids_by_candidate[candidate_set.true_index] == true_ids
    all_fit = all(_fits(ids, true_ids, span) for ids in ids_by_candidate)
    if not has_true_ids or not all_fit:
        raise InputError(
            "a candidate changes tokens around the true string's place",
            where=where,
            fix="give the tokenizer that the manifest was built with",
        )

    # The prefix is what the model reads of the row before the slot. Positions are
    # indices in the full tokenisation, as those of the span.
    ids_read, positions = encoding.model_input(example.kept)
    prefix = ids_read[positions < span.start]
    slot_ids = [ids[span.start : span.end] for ids in ids_by_candidate]
    slot_array = np.array(slot_ids, dtype=np.int32)  # (candidates, tokens)
    return Candidates(key, prefix, tuple(slot_array))


def _context_of(
    candidate_set: schema.ManifestCanary | schema.ManifestTwins | None, example_id: str
) -> schema.CanaryContext | None:
    """Return the place of a set's true string in an example, if it has one."""
    if candidate_set is None:
        return None
    for context in candidate_set.contexts:
        if context.example == example_id:
            return context
    return None


def _fits(ids: list[int], true_ids: list[int], span: TokenSpan) -> bool:
    """Return whether token ids differ from the true ones only inside a span."""
    is_same_before = ids[: span.start] == true_ids[: span.start]
    is_same_behind = ids[span.end :] == true_ids[span.end :]
    return len(ids) == len(true_ids) and is_same_before and is_same_behind
