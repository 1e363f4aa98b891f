"""Examples with the sensitivity score of each token, as a model in training has them.

A report for people: training computes its scores itself, from the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spark_audit.data.encoding import encode
from spark_audit.data.examples import Example
from spark_audit.data.pii import annotate
from spark_audit.errors import InputError
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import Progress, score
from spark_audit.scoring.table import Pass
from spark_train.data import TrainRow, encode_rows
from spark_train.known_identifiers import Annotated
from spark_train.token_scores.scores import row_scores, task_counts

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded


class Inspected(NamedTuple):
    """One training row with its scores.

    ``nll`` has shape ``(T - 1,)``, nats: of all tokens but the first; ``score`` has
    shape ``(T,)``, 0 to 1. ``hidden`` has an entry a token: the type of the identifier
    that it shares a character with, ``None`` for plain text.
    """

    row: TrainRow
    nll: np.ndarray
    score: np.ndarray
    hidden: tuple[str | None, ...]

    def told(self, tokenizer: Any, *, show_text: bool) -> dict[str, Any]:
        """The row as records; of identifiers the types, unless text is asked for."""
        row = self.row
        # A figure depends on all that stands before its token, and the one beside what
        # is hidden may on how it is cut: there the figures end.
        hidden = [t for t, type in enumerate(self.hidden) if type and not show_text]
        known = min(hidden) - 1 if hidden else len(row)
        records = []
        for t in range(len(row)):
            # In the order of precedence.
            kinds = (
                ("special", t in row.special),
                ("pii", row.pii[t]),
                ("template or stop word", row.fixed[t]),
                ("response", row.response[t]),
                ("text", True),
            )
            type = None if show_text else self.hidden[t]
            text = f"[{type}]" if type else tokenizer.decode([int(row.ids[t])])
            records.append(
                {
                    "position": t,
                    "text": text,
                    "kind": next(kind for kind, holds in kinds if holds),
                    "nll": float(self.nll[t - 1]) if 0 < t < known else None,
                    "score": float(self.score[t]) if t < known else None,
                }
            )
        return {"example": row.id, "task": row.task, "tokens": records}


def score_examples(
    examples: Sequence[Example],
    loaded: Loaded,
    *,
    alpha: float,
    limit: int | None = None,
    progress: Progress | None = None,
) -> list[Inspected]:
    """Sensitivity scores of the train rows among some examples, in their order.

    Score_1 is the checkpoint's NLL. Score_2 compares all tasks whose train rows are
    given; in training it compares those that were learned so far.

    Parameters
    ----------
    alpha
        Weight of Score_1, 0 to 1.
    limit
        How many rows to score; all count for Score_2.

    Raises
    ------
    InputError
        If there is no train row, or ``alpha`` is outside ``[0, 1]``.
    CheckpointError
        If logits are NaN or infinite.
    """
    if not 0 <= alpha <= 1:
        raise InputError(f"{alpha} is not between 0 and 1", where="--alpha")
    trained = [example for example in examples if example.split == "train"]
    if not trained:
        raise InputError("there is no train row to score", where="data")
    rows = encode_rows(trained, loaded.tokenizer, max_length=loaded.max_positions)
    counts = {
        task: task_counts(
            [row for row in rows if row.task == task], vocab_size=len(loaded.usable)
        )
        for task in sorted({row.task for row in rows})
    }
    rows = rows[:limit]
    items = [Item(row.id, row.ids, np.arange(len(row), dtype=np.int32)) for row in rows]
    table = score(loaded, items, progress=progress)[Pass()]
    nll = [table.columns["nll"][table.rows(row.id)] for row in rows]
    scores = row_scores(rows, nll, counts, alpha=alpha)
    hidden = _hidden(examples, trained[:limit], rows, loaded.tokenizer)
    return [Inspected(*each) for each in zip(rows, nll, scores, hidden, strict=True)]


def _hidden(
    examples: Sequence[Example],
    shown: Sequence[Example],
    rows: Sequence[TrainRow],
    tokenizer: Any,
) -> list[tuple[str | None, ...]]:
    """What each token of some rows must be shown as instead.

    Identifiers are those that training knows, and those that are annotated in another
    row of the data.
    """
    known = Annotated(examples)
    hidden = []
    encodings = encode(tokenizer, [example.text for example in shown])
    for example, row, encoding in zip(shown, rows, encodings, strict=True):
        # Only the start of a text is ever cut off.
        text = np.setdiff1d(np.arange(len(row)), row.special)
        read = np.flatnonzero(~encoding.special)[-len(text) :]
        types: list[str | None] = ["OTHER" if pii else None for pii in row.pii]
        places = [
            *((p.start, p.end, p.type) for p in annotate(example.text)),
            *known.places(example.text),
            *((p.start, p.end, p.type) for p in example.spans),
        ]
        for start, end, type in places:  # of several the annotated one is told
            for t in text[encoding.mask([(start, end)])[read]]:
                types[t] = type
        hidden.append(tuple(types))
    return hidden
