"""Count identifiers that were in the loss of a training run, only read, or cut off.

For the command ``data supervision``: :func:`count_supervision` counts, and
:func:`supervision_notes` says the counts in sentences. ``supervision_of`` in
``training_input.py`` decides the state of an identifier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

from spark_audit.data.encoding import TEXTS_PER_CALL, Encoding, encode_rows
from spark_audit.data.examples import Example
from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.data.training_input import Supervision, TrainingInput, supervision_of

SUPERVISION_STATES: tuple[Supervision, ...] = get_args(Supervision)

_IDS_NAMED = 3
"""Number of example ids that a note names."""


@dataclass
class SupervisionCount:
    """Counts of the identifiers of trained rows, by their part in the loss.

    Attributes
    ----------
    by_group
        Identifiers by task, type and supervision.
    n_rows, n_unknown
        Trained rows, and those without any known training input.
    unsupervised
        Ids of rows without a supervised token that was read.
    """

    by_group: Counter[tuple[str, str, Supervision]] = field(default_factory=Counter)
    n_rows: int = 0
    n_unknown: int = 0
    unsupervised: list[str] = field(default_factory=list)

    @property
    def records(self) -> list[dict[str, object]]:
        """Return one record per task and type: identifiers by state, in columns."""
        groups = sorted({(task, type) for task, type, _ in self.by_group})
        records = []
        for task, type in groups:
            record: dict[str, object] = {"task": task, "type": type}
            for state in SUPERVISION_STATES:
                record[state.replace(" ", "_")] = self.by_group[task, type, state]
            records.append(record)
        return records

    def total(self, state: Supervision) -> int:
        """Return the number of identifiers in a state, over all tasks and types."""
        return sum(
            n_identifiers
            for (_, _, group_state), n_identifiers in self.by_group.items()
            if group_state == state
        )


def count_supervision(
    examples: Sequence[Example], tokenizer: Tokenizer
) -> SupervisionCount:
    """Count the identifiers of trained rows by their supervision in training.

    Parameters
    ----------
    tokenizer
        The tokenizer of the training run, in whose tokens rows were cut off.
    """
    trained = [example for example in examples if example.split == "train"]
    with_input = [example for example in trained if example.training_input is not None]
    n_unknown = len(trained) - len(with_input)
    counts = SupervisionCount(n_rows=len(trained), n_unknown=n_unknown)

    # Rows go in batches: the tokens of all rows would take gigabytes.
    for first in range(0, len(with_input), TEXTS_PER_CALL):
        batch = with_input[first : first + TEXTS_PER_CALL]
        encodings = encode_rows(tokenizer, batch)
        for example, encoding in zip(batch, encodings, strict=True):
            _count_row(counts, example, encoding)
    return counts


def _count_row(counts: SupervisionCount, example: Example, encoding: Encoding) -> None:
    """Add a trained row, whose training input is known, to the counts."""
    training = example.training_input
    assert training is not None
    read_start, read_end = _characters_read(example, training, encoding)

    # A row without supervised text that was read taught nothing.
    is_supervised = any(
        start < read_end and end > read_start for start, end in training.supervised
    )
    if not is_supervised:
        counts.unsupervised.append(example.id)

    for span in example.spans:
        state = supervision_of(
            span.start,
            span.end,
            supervised=training.supervised,
            fed_text=(read_start, read_end),
        )
        counts.by_group[example.task, span.type, state] += 1


def _characters_read(
    example: Example, training: TrainingInput, encoding: Encoding
) -> tuple[int, int]:
    """Return the range of characters that the trainer read of a row."""
    n_tokens = len(encoding)
    token_start, token_end = training.token_range_read(n_tokens)
    if (token_start, token_end) == (0, n_tokens):
        return 0, len(example.text)

    assert encoding.full_offsets is not None  # encode_rows keeps it for such rows
    # (tokens read, 2): start and end of each, in characters
    characters = encoding.full_offsets[token_start:token_end]
    return int(characters[:, 0].min()), int(characters[:, 1].max())


def supervision_notes(counted: SupervisionCount) -> Iterator[str]:
    """Yield the counts in sentences: the answer first, then its limits."""
    if not counted.n_rows:
        yield "no trained row is among them: what had loss is asked of trained rows"
        return
    if counted.n_unknown == counted.n_rows:
        yield (
            f"of {counted.n_rows} trained rows none says what had loss: import them "
            "with --chat-template"
        )
        return

    # The answer covers all identifiers.
    in_loss = counted.total("in the loss")
    read_only = counted.total("read only")
    cut_off = counted.total("cut off")
    total = in_loss + read_only + cut_off
    if total:
        yield (
            f"of {total} identifiers {in_loss} were in the loss, {read_only} only "
            f"read, {cut_off} cut off"
        )
    else:
        yield "no identifier is annotated yet: `data annotate`, then `data supervision`"

    # Limits of the answer.
    if counted.n_unknown:
        yield f"of {counted.n_unknown} trained rows it is not known what had loss"
    if counted.unsupervised:
        first = ", ".join(counted.unsupervised[:_IDS_NAMED])
        n_rows = len(counted.unsupervised)
        rows = "1 trained row has" if n_rows == 1 else f"{n_rows} trained rows have"
        yield f"{rows} no supervised token that was read, first: {first}"
