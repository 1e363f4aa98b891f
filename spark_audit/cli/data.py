"""``spark-audit data``: import, annotate and inject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_audit.cli.show import show_records
from spark_audit.data.examples import (
    PII_TYPES,
    Example,
    data_files,
    read_examples,
    write_examples,
)
from spark_audit.errors import InputError
from spark_audit.terminal.console import keep_apart, say
from spark_audit.terminal.flags import Flag, Json, Seed, command

FORMATS = ("auto", "jsonl", "csv", "parquet", "datasets", "trace", "olora")

Jsonl = Annotated[Path, Flag("JSONL to write.", short="-o")]


def _pairs(texts: Sequence[str] | None) -> dict[str, str] | None:
    for text in texts or ():
        if "=" not in text:
            raise InputError(
                f"{text!r} has no '='", where="--map", fix="write it as FIELD=COLUMN"
            )
    pairs = (text.partition("=") for text in texts or ())
    return {field: column for field, _, column in pairs} or None


def _numbers(text: str | None) -> list[int] | None:
    parts = [] if text is None else text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(
            f"{text!r} is no list of numbers", where="--doses", fix="write it as 1,4,16"
        )
    return [int(part) for part in parts] or None


@command
def import_(
    *,
    source: Annotated[str, typer.Argument(help="File, folder, or hf:OWNER/NAME.")],
    task: Annotated[str, Flag("Name of the task.")],
    output: Jsonl,
    split: Annotated[str | None, Flag("Of all rows.", metavar="train|test")] = None,
    template: Annotated[
        str | None, Flag("Prompt with columns in braces: 'Text: {text}\\nLabel:'.")
    ] = None,
    map: Annotated[
        list[str] | None,
        Flag("prompt=COL, response=COL, id=COL.", metavar="FIELD=COLUMN"),
    ] = None,
    format: Annotated[str, Flag("What the source is.", choices=FORMATS)] = "auto",
) -> None:
    """Turn task data of any known format into the project's JSON lines."""
    from spark_audit.data.importers import import_examples

    keep_apart([output], [Path(source)])
    examples = import_examples(
        source,
        task=task,
        format=format,  # type: ignore[arg-type]
        split=split,  # type: ignore[arg-type]
        template=template,
        columns=_pairs(map),
    )
    _write(output, examples)


@command
def annotate(
    *,
    data: Annotated[Path, typer.Argument(help="JSONL of `data import`, or a folder.")],
    output: Jsonl,
    detector: Annotated[
        str, Flag("Who finds them.", choices=("rules", "presidio-patterns", "presidio"))
    ] = "rules",
    json: Json = False,
) -> None:
    """Find identifiers; where injected ones are known, say how many are found."""
    from spark_audit.data.detection import Agreement, detection
    from spark_audit.data.pii import NAMES_MISSED, annotate_examples

    files = data_files([data])
    keep_apart([output], files)
    examples = read_examples(*files)
    annotated = annotate_examples(examples, detector=detector)  # type: ignore[arg-type]
    _write(output, annotated)
    quality = detection(examples, detector=detector)  # type: ignore[arg-type]
    counts = Counter(span.type for example in annotated for span in example.spans)
    records: list[dict[str, Any]] = [
        {"type": kind, "annotated": counts[kind]} for kind in PII_TYPES
    ]
    title = "identifiers by type"
    if any(one.truth for one in quality.values()):
        title += ", and detection of the injected ones"
        for record in records:
            one = quality.get(record["type"], Agreement(0, 0, 0, 0, 0))
            record |= {
                "injected": one.truth,
                "found": one.found,
                "precision": one.precision,
                "recall": one.recall,
                "exact": one.exact,
            }
    show_records(records, title=title, as_json=json)
    if detector in NAMES_MISSED:
        say(NAMES_MISSED[detector])


@command
def inject(
    *,
    data: Annotated[
        list[Path], typer.Argument(help="JSONL of `data import`, or folders.")
    ],
    output: Annotated[Path, Flag("Folder to write.", short="-o")],
    rate: Annotated[float, Flag("Share of rows that get an identifier.")] = 0.3,
    canaries: Annotated[int, Flag("Canaries to plant.")] = 50,
    doses: Annotated[
        str | None, Flag("Dose ladder of canaries.", metavar="1,4,16,64")
    ] = None,
    tokenizer: Annotated[
        str | None, Flag("Draw canaries that it can rank.", metavar="MODEL")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Plant synthetic identifiers at the same rate in train and test rows."""
    from spark_audit.data.injection import inject as injected

    files = data_files(data)
    examples = read_examples(*files)
    outputs = {task: output / f"{task}.jsonl" for task in sorted(_tasks(examples))}
    keep_apart(list(outputs.values()), files)
    rows, told = injected(
        examples,
        seed=seed,
        rate=rate,
        canaries=canaries,
        doses=_numbers(doses),
        encode=None if tokenizer is None else _encode(tokenizer),
    )
    for task, path in outputs.items():
        _write(path, [row for row in rows if row.task == task])
    names = ("task", "split", "rows", "with_identifier", "with_canary")
    show_records(
        [
            dict(zip(names, (*key, *counts), strict=True))
            for key, counts in sorted(told.rows.items())
        ],
        title=f"{sum(told.planted.values())} of {told.requested} canaries planted, "
        f"{told.held_out} held out",
        as_json=json,
    )
    for note in told.notes:
        say(note)


def _tasks(examples: Sequence[Example]) -> set[str]:
    return {example.task for example in examples}


def _encode(model: str) -> Callable[[list[str]], list[list[int]]]:
    from spark_audit.checkpoints.open import load_tokenizer

    tokenizer = load_tokenizer(Path(model), trust_remote_code=False, where=model)
    return lambda texts: [list(ids) for ids in tokenizer(texts)["input_ids"]]


def _write(path: Path, examples: Sequence[Example]) -> None:
    write_examples(path, examples)
    train = sum(example.split == "train" for example in examples)
    say(f"{path}: {train} train and {len(examples) - train} test rows")


COMMANDS = {"import": import_, "annotate": annotate, "inject": inject}
