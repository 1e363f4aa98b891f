"""Which identifiers were in the loss of a training run, only read, or cut off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

from spark_audit.data.encoding import TOGETHER, encode_rows
from spark_audit.data.examples import Example
from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.data.training_input import Supervision, supervision_of

SUPERVISION_STATES: tuple[Supervision, ...] = get_args(Supervision)


@dataclass
class SupervisionCount:
    """How many identifiers of trained rows had loss.

    Attributes
    ----------
    by_group
        Identifiers by task, type and what training did with them.
    n_rows, n_unknown
        Trained rows, and those of which nothing is known.
    unsupervised
        Ids of rows without any supervised token.
    """

    by_group: Counter[tuple[str, str, Supervision]] = field(default_factory=Counter)
    n_rows: int = 0
    n_unknown: int = 0
    unsupervised: list[str] = field(default_factory=list)

    @property
    def records(self) -> list[dict[str, object]]:
        """One record a task and type."""
        groups = sorted({(task, kind) for task, kind, _ in self.by_group})
        return [
            {
                "task": task,
                "type": kind,
                **{
                    state.replace(" ", "_"): self.by_group[task, kind, state]
                    for state in SUPERVISION_STATES
                },
            }
            for task, kind in groups
        ]

    def total(self, state: Supervision) -> int:
        """Return the identifiers of a state, over all tasks and types."""
        return sum(n for (_, _, one), n in self.by_group.items() if one == state)


def count_supervision(
    examples: Sequence[Example], tokenizer: Tokenizer
) -> SupervisionCount:
    """Count the identifiers of trained rows by what training did with them.

    Parameters
    ----------
    tokenizer
        That of the training run: what was cut off is counted in its tokens.
    """
    counted = SupervisionCount()
    trained = [example for example in examples if example.split == "train"]
    counted.n_rows = len(trained)
    known = [example for example in trained if example.training_input is not None]
    counted.n_unknown = len(trained) - len(known)
    for low in range(0, len(known), TOGETHER):
        rows = known[low : low + TOGETHER]
        for example, encoding in zip(rows, encode_rows(tokenizer, rows), strict=True):
            training, written = example.training_input, encoding.written
            assert training is not None
            assert written is not None
            fed = training.fed(len(encoding))
            fed_text = (0, len(example.text))
            if fed != (0, len(encoding)):
                places = written[slice(*fed)]
                fed_text = int(places[:, 0].min()), int(places[:, 1].max())
            is_supervised = any(
                start < fed_text[1] and end > fed_text[0]
                for start, end in training.supervised
            )
            if not is_supervised:
                counted.unsupervised.append(example.id)
            for span in example.spans:
                state = supervision_of(
                    span.start,
                    span.end,
                    supervised=training.supervised,
                    fed_text=fed_text,
                )
                counted.by_group[example.task, span.type, state] += 1
    return counted


def supervision_notes(counted: SupervisionCount) -> Iterator[str]:
    """Yield what was counted, in sentences; the first answers."""
    if not counted.n_rows:
        yield "no trained row is among them: what had loss is asked of trained rows"
        return
    if counted.n_unknown == counted.n_rows:
        yield (
            f"of {counted.n_rows} trained rows none says what had loss: import them "
            "with --chat-template"
        )
        return
    in_loss, read_only, cut_off = (counted.total(state) for state in SUPERVISION_STATES)
    total = in_loss + read_only + cut_off
    if total:
        yield (
            f"of {total} identifiers {in_loss} were in the loss, {read_only} only "
            f"read, {cut_off} cut off"
        )
    else:
        yield "no identifier is annotated yet: `data annotate`, then `data supervision`"
    if counted.n_unknown:
        yield f"of {counted.n_unknown} trained rows it is not known what had loss"
    if counted.unsupervised:
        first = ", ".join(counted.unsupervised[:3])
        n_rows = len(counted.unsupervised)
        rows = "1 trained row has" if n_rows == 1 else f"{n_rows} trained rows have"
        yield f"{rows} no supervised token that was read, first: {first}"
