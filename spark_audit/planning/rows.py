"""The rows of a manifest as a plan reads them: text and places, without scores.

A manifest makes its examples on demand, which takes most of a plan's time. So each is
made once, and what a plan needs of it is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic_core import from_json

from spark_audit.data.training_input import Supervision, supervision_of
from spark_audit.manifest.example_schema import TokenRange
from spark_audit.manifest.packed_lists import Records
from spark_audit.manifest.schema import Manifest


class PlannedSpan(NamedTuple):
    """An annotated identifier: characters ``start:end`` of a row's text.

    Attributes
    ----------
    part
        The part of a canary that it is; ``None``: it is none.
    tokens
        Its tokens; ``None`` if it was cut off or has no token of its own.
    """

    start: int
    end: int
    type: str
    part: str | None
    tokens: TokenRange | None


@dataclass(frozen=True, slots=True)
class RowTraining:
    """The part of a row that training read, and the part with loss.

    The fields are those of
    :class:`~spark_audit.manifest.example_schema.ManifestTrainingInput`; ``turns`` has
    ``(start, end, role)`` of each message.
    """

    supervised: list[tuple[int, int]]
    supervised_tokens: list[TokenRange]
    fed_text: tuple[int, int]
    fed_tokens: TokenRange
    turns: list[tuple[int, int, str]]

    def role_at(self, start: int, end: int) -> str:
        """Return the role of the message that holds characters, empty if none does."""
        for turn_start, turn_end, role in self.turns:
            if turn_start <= start and end <= turn_end:
                return role
        return ""

    def n_tokens_with_loss(self, tokens: TokenRange) -> int:
        """Return how many of a range of tokens had loss."""
        start = max(tokens[0], self.fed_tokens[0])
        end = min(tokens[1], self.fed_tokens[1])
        n_tokens = 0
        for loss_start, loss_end in self.supervised_tokens:
            n_tokens += max(0, min(end, loss_end) - max(start, loss_start))
        return n_tokens


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row of a manifest without its scores.

    Attributes
    ----------
    number
        Number of the row in the data, from 1, counted over its files. Unlike an id it
        names nobody.
    training_input
        ``None``: it is not known what training reads of the row.
    """

    number: int
    id: str
    task: str
    text: str
    split: str
    source_id: str
    cluster: str
    canary_id: str | None
    spans: list[PlannedSpan]
    training_input: RowTraining | None

    @property
    def is_trained(self) -> bool:
        """Return whether the model is to be trained on the row."""
        return self.split == "train"

    @property
    def personal_spans(self) -> list[PlannedSpan]:
        """Return the annotated identifiers that are no part of a canary."""
        return [span for span in self.spans if span.part is None]

    def supervision_of(self, start: int, end: int) -> Supervision | None:
        """Return how training uses characters of the row; ``None`` if unknown."""
        training = self.training_input
        if training is None:
            return None
        return supervision_of(
            start, end, supervised=training.supervised, fed_text=training.fed_text
        )


def planned_rows(manifest: Manifest) -> list[PlannedRow]:
    """Return the rows of a manifest, of both splits, in the order of the data."""
    return [
        _row(record, number)
        for number, record in enumerate(_example_records(manifest), start=1)
    ]


def _example_records(manifest: Manifest) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON of each example.

    They were checked when the manifest was read, and a check takes three times as long
    as the rest.
    """
    examples = manifest.examples
    if isinstance(examples, Records):
        for chunk in examples.json.chunks:
            for line in chunk:
                yield from_json(line.as_py())
        return
    for example in examples:
        yield example.model_dump(mode="json")


def _row(record: Mapping[str, Any], number: int) -> PlannedRow:
    """Return the record of an example without its scores."""
    spans = []
    for span in record["spans"]:
        tokens = None
        if span["token_start"] is not None:
            tokens = (span["token_start"], span["token_end"])
        spans.append(
            PlannedSpan(
                start=span["start"],
                end=span["end"],
                type=span["type"],
                part=span["part"],
                tokens=tokens,
            )
        )

    training = record.get("training_input")
    return PlannedRow(
        number=number,
        id=record["id"],
        task=record["task"],
        text=record["prompt"] + record["response"],
        split=record["split"],
        source_id=record["source_id"],
        cluster=record["cluster"],
        canary_id=record["canary_id"],
        spans=spans,
        training_input=None if training is None else _training(training),
    )


def _training(training: Mapping[str, Any]) -> RowTraining:
    """Return what training reads of a row, without its token ids."""
    return RowTraining(
        supervised=_ranges(training["supervised"]),
        supervised_tokens=_ranges(training["supervised_tokens"]),
        fed_text=(training["fed_text"][0], training["fed_text"][1]),
        fed_tokens=(training["fed_tokens"][0], training["fed_tokens"][1]),
        turns=[
            (turn["start"], turn["end"], turn["role"]) for turn in training["turns"]
        ],
    )


def _ranges(pairs: list[list[int]]) -> list[tuple[int, int]]:
    """Return ranges as JSON has them as pairs."""
    return [(start, end) for start, end in pairs]
