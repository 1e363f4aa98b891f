"""``spark-audit data``: import, annotate and inject."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

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
from spark_audit.terminal.flags import OUTPUT, Json, Quiet, Seed

FORMATS = ("auto", "jsonl", "csv", "parquet", "text", "datasets", "trace", "olora")

Jsonl = Annotated[Path, Parameter(group=OUTPUT, help="JSONL to write.", alias="-o")]


def _pairs(
    texts: Sequence[str] | None, *, where: str, form: str
) -> dict[str, str] | None:
    pairs = {}
    for text in texts or ():
        field, equals, pairs[field] = text.partition("=")
        if not equals:
            fix = f"write it as {form}"
            raise InputError(f"{text!r} has no '='", where=where, fix=fix)
    return pairs or None


def _numbers(text: str | None) -> list[int] | None:
    parts = [] if text is None else text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(
            f"{text!r} is no list of numbers", where="--doses", fix="write it as 1,4,16"
        )
    return [int(part) for part in parts] or None


def import_(
    source: str,
    /,
    *,
    task: str,
    output: Jsonl,
    split: Annotated[str | None, Parameter(metavar="train|test")] = None,
    template: str | None = None,
    map: Annotated[list[str] | None, Parameter(metavar="FIELD=COLUMN")] = None,
    format: Annotated[str, Parameter(choices=FORMATS)] = "auto",
    quiet: Quiet = False,
) -> None:
    r"""Turn task data of any known format into the project's JSON lines.

    Parameters
    ----------
    source
        File, folder, or hf:OWNER/NAME.
    task
        Name of the task.
    split
        Of all rows.
    template
        Prompt with columns in braces: ``Text: {text}\nLabel:``.
    map
        prompt=COL, response=COL, id=COL.
    format
        Format of the source.
    """
    from spark_audit.data.importers import import_rows
    from spark_audit.terminal.progress import SETTLED, progress

    _check_file(output, [Path(source)])
    replaced = _replaced(output)
    start = time.monotonic()
    with progress(quiet=quiet) as show:
        counts = import_rows(
            source,
            output,
            progress=show,
            task=task,
            format=format,  # type: ignore[arg-type]
            split=split,  # type: ignore[arg-type]
            template=template,
            columns=_pairs(map, where="--map", form="FIELD=COLUMN"),
        )
    seconds, rows = time.monotonic() - start, sum(counts.values())
    rate = f" ({rows / seconds:,.0f} rows per second)" if seconds > SETTLED else ""
    say(
        f"{output}: {counts.get('train', 0)} train and {counts.get('test', 0)} test "
        f"rows{rate}{replaced}"
    )


def annotate(
    data: Path,
    /,
    *,
    output: Jsonl,
    detector: Annotated[str, Parameter(choices=("rules", "presidio"))] = "rules",
    pattern: Annotated[list[str] | None, Parameter(metavar="TYPE=PATTERN")] = None,
    json: Json = False,
) -> None:
    """Find identifiers, and count them by type.

    Parameters
    ----------
    data
        JSONL of `data import`, or a folder.
    detector
        Detector of identifiers.
    pattern
        Own type and its regular expression: ORDER='ORD-[0-9]{7}'.
    """
    from spark_audit.data.pii import NAMES_MISSED, annotate, detector_of, unjudged

    form = "TYPE=PATTERN, such as ORDER='ORD-[0-9]{7}'"
    own = _pairs(pattern, where="--pattern", form=form) or {}
    detector_of(detector, own)  # a mistake is told before anything is read
    files = data_files([data])
    _check_file(output, files)
    examples = read_examples(*files)
    annotated = annotate(examples, detector=detector, patterns=own)
    _write(output, annotated)
    counts = Counter(span.type for example in annotated for span in example.spans)
    records: list[dict[str, Any]] = [
        {"type": kind, "annotated": counts[kind]}
        for kind in dict.fromkeys((*PII_TYPES, *own, *sorted(counts)))
    ]
    show_records(records, title="identifiers by type", as_json=json)
    if detector == "rules":
        say(NAMES_MISSED)
    codes, rows = unjudged(annotated)
    if codes:
        say(
            f"{codes} codes of capitals and digits in {rows} rows have a form that is "
            "not known, as order numbers have, and are not annotated: for those that "
            "are personal give --pattern ORDER='ORD-[0-9]{7}' with their form"
        )


def inject(
    data: list[Path],
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    rate: float = 0.3,
    canaries: int = 50,
    doses: Annotated[str | None, Parameter(metavar="1,4,16,64")] = None,
    for_epsilon: float | None = None,
    delta: float = 1e-5,
    tokenizer: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Plant synthetic identifiers at the same rate in train and test rows.

    Parameters
    ----------
    data
        JSONL of `data import`, or folders.
    output
        Folder to write.
    rate
        Share of rows that get an identifier.
    canaries
        Canaries to plant.
    doses
        Dose ladder of canaries.
    for_epsilon
        Plant as many canaries, each in one row, as can contradict that a run is
        (epsilon, delta)-DP by adding or removing a row, in place of --canaries.
    delta
        Of --for-epsilon.
    tokenizer
        Draw canaries that a model with this tokenizer can rank.
    """
    from spark_audit.data.injection import inject as injected
    from spark_audit.terminal.progress import progress

    files = data_files(data)
    if for_epsilon is not None:
        canaries, doses = _planned(for_epsilon, delta), "1"
    examples = read_examples(*files)
    encode = None
    if tokenizer is not None:
        from spark_audit.checkpoints.open import load_tokenizer
        from spark_audit.data.encoding import token_ids

        encode = partial(token_ids, load_tokenizer(tokenizer))
    outputs = {row.task: output / f"{row.task}.jsonl" for row in examples}
    keep_apart(list(outputs.values()), files)
    # Only the search for what can be ranked takes its time.
    with progress(quiet=quiet or encode is None) as show:
        rows, report = injected(
            examples,
            seed=seed,
            rate=rate,
            canaries=canaries,
            doses=_numbers(doses),
            encode=encode,
            progress=show,
        )
    for task, path in sorted(outputs.items()):
        _write(path, [row for row in rows if row.task == task])
    names = ("task", "split", "rows", "with_identifier", "with_canary")
    groups = ((*group, *counts) for group, counts in sorted(report.rows.items()))
    show_records(
        [dict(zip(names, group, strict=True)) for group in groups],
        title=f"{sum(report.planted.values())} of {canaries} canaries planted, "
        f"{report.held_out} held out",
        as_json=json,
    )
    for note in report.notes:
        say(note)
    pairs = min(sum(report.planted.values()), report.held_out)
    if for_epsilon is not None and pairs < canaries:
        say(f"{pairs} pairs are too few to contradict the claim: give more rows")


def _planned(epsilon: float, delta: float) -> int:
    """How many canaries can contradict a claim."""
    from spark_audit.report.receipt import Claim, canaries_needed

    needed = canaries_needed(Claim(epsilon=epsilon, delta=delta))
    if needed is None:
        raise InputError(
            f"no number of canaries contradicts ({epsilon:g}, {delta:g})-DP of one run",
            where="--for-epsilon",
            fix="give a smaller epsilon or delta",
        )
    say(f"{needed} canaries can contradict ({epsilon:g}, {delta:g})-DP, one row each")
    return needed


def _check_file(output: Path, inputs: Sequence[Path]) -> None:
    """Refuse to write over what is read, and a folder where a file is meant."""
    keep_apart([output], inputs)
    if output.is_dir():
        fix = f"name a file, such as -o {output / 'rows.jsonl'}"
        raise InputError("is a folder", where=str(output), fix=fix)


def _replaced(path: Path) -> str:
    """What is said of a file that is written over."""
    return ", in place of the file that was there" if path.exists() else ""


def _write(path: Path, examples: Sequence[Example]) -> None:
    replaced = _replaced(path)
    write_examples(path, examples)
    train = sum(example.split == "train" for example in examples)
    say(f"{path}: {train} train and {len(examples) - train} test rows{replaced}")


COMMANDS = {"import": import_, "annotate": annotate, "inject": inject}
