"""``spark-audit data``: import, annotate, inject and supervision.

Each command is a function whose parameters are its options; the docstring is its help.
A new command also gets an entry in :data:`DATA_COMMANDS`, and an example in
``EXAMPLES`` of ``main.py``. An option of `import` that is only for chats, or only for
other rows, is also named where :func:`import_` calls :func:`_refuse_without_template`
or :func:`_refuse_beside_template`.

``# type: ignore[arg-type]`` stands where cyclopts has already checked that a text is
one of the choices that a function of the library takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from spark_audit.data.examples import Example, data_files, read_examples, write_examples
from spark_audit.errors import InputError
from spark_audit.messages import say
from spark_audit.options import OUTPUT, Json, Quiet, Seed, by_commas
from spark_audit.previous import keeping_previous
from spark_audit.terminal.console import keep_apart
from spark_audit.terminal.flags import pairs

if TYPE_CHECKING:
    from spark_audit.data.annotation import AnnotationResult
    from spark_audit.data.tokenizer_type import Tokenizer

DATA_FORMATS = ("auto", "jsonl", "csv", "parquet", "text", "datasets", "trace", "olora")
"""Values of --format."""

SUPERVISED = ("all", "completion", "assistant", "last")
"""Values of --supervised: what of a chat had loss."""

RANKED_PART_NAMES = {
    "full": "sentences",
    "password": "passwords",
    "ssn": "social security numbers",
}
"""What of canaries is ranked, as the answer of `inject` calls it."""

CHAT = Group("Chat data", sort_key=1)
"""Options that need --chat-template, as the help groups them."""

OFFSET_CHOICES = ("characters", "utf-16", "bytes")
"""Values of --offsets: what the spans of a row count."""

Jsonl = Annotated[Path, Parameter(group=OUTPUT, help="JSONL to write.", alias="-o")]
"""The option --output of commands that write one file."""


def import_(
    source: str,
    /,
    *,
    task: str,
    output: Jsonl,
    split: Annotated[str | None, Parameter(metavar="train|test")] = None,
    template: str | None = None,
    map: Annotated[tuple[str, ...], Parameter(metavar="FIELD=COLUMN")] = (),
    format: Annotated[str, Parameter(choices=DATA_FORMATS)] = "auto",
    encoding: str | None = None,
    empty: Annotated[str | None, Parameter(choices=("keep", "drop"))] = None,
    offsets: Annotated[str | None, Parameter(choices=OFFSET_CHOICES)] = None,
    chat_template: Annotated[
        str | None, Parameter(metavar="CKPT|FILE", group=CHAT)
    ] = None,
    tokenizer: Annotated[str | None, Parameter(metavar="CKPT", group=CHAT)] = None,
    supervised: Annotated[str | None, Parameter(choices=SUPERVISED, group=CHAT)] = None,
    max_length: Annotated[int | None, Parameter(group=CHAT)] = None,
    truncation: Annotated[
        str | None, Parameter(choices=("end", "start"), group=CHAT)
    ] = None,
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
        prompt=COL, response=COL, id=COL, source_id=COL (rows of one person or source
        share it and count as one).
    format
        Format of the source.
    encoding
        Of files of text that are not UTF-8: cp1252, utf-16.
    empty
        Rows with an empty field.
    offsets
        What the rows' own spans count.
    chat_template
        Checkpoint whose tokenizer renders chat data, or a file with its template.
    tokenizer
        Checkpoint whose tokenizer goes with a file of a template.
    supervised
        What had loss; left out: what the usual trainer of the format does.
    max_length
        Tokens of a row that the trainer read at most.
    truncation
        Side that the trainer cut off: end (default) or start.
    """
    # The docstring is the help. `import_rows` reads plain rows, `_import_chat` chats.
    from spark_audit.data.importers import import_rows
    from spark_audit.messages import progress

    # The source may be hf:OWNER/NAME, so it is text and not checked as a path.
    if not source.strip():
        raise InputError("is empty", where="SOURCE", fix="give a path")
    _check_file(output, [Path(source)])

    if chat_template is not None:
        _refuse_beside_template(
            {
                "--template": template,
                "--map": map or None,
                "--empty": empty,
                "--offsets": offsets,
            }
        )
        _import_chat(
            source,
            output,
            task=task,
            chat_template=chat_template,
            tokenizer=tokenizer,
            supervised=supervised,
            max_length=max_length,
            truncation=truncation or "end",
            format=format,
            split=split,
            encoding=encoding,
            quiet=quiet,
        )
        return

    _refuse_without_template(
        {
            "--tokenizer": tokenizer,
            "--supervised": supervised,
            "--max-length": max_length,
            "--truncation": truncation,
        }
    )
    remarks: list[str] = []
    with progress(quiet=quiet) as update, keeping_previous([output]):
        counts = import_rows(
            source,
            output,
            progress=update,
            task=task,
            format=format,  # type: ignore[arg-type]
            split=split,  # type: ignore[arg-type]
            template=template,
            columns=pairs(map, where="--map", form="FIELD=COLUMN") or None,
            encoding=encoding,
            empty=empty,  # type: ignore[arg-type]
            offsets=offsets,  # type: ignore[arg-type]
            note=remarks.append,
        )
    # Remarks follow the progress bar, which would overwrite them.
    for remark in remarks:
        say(remark)
    _say_rows(output, counts.get("train", 0), counts.get("test", 0))


def _refuse_without_template(chat_options: Mapping[str, object]) -> None:
    """Refuse options for chat data without --chat-template.

    Parameters
    ----------
    chat_options
        Values by option name; None: not given.
    """
    for option, value in chat_options.items():
        if value is not None:
            raise InputError(
                "is of chat data alone",
                where=f"option {option}",
                fix="give --chat-template CKPT, or leave it out",
            )


def _refuse_beside_template(plain_options: Mapping[str, object]) -> None:
    """Refuse options for rows without a chat together with --chat-template.

    Parameters
    ----------
    plain_options
        Values by option name; None: not given.
    """
    for option, value in plain_options.items():
        if value is not None:
            raise InputError(
                "has no meaning beside --chat-template",
                where=f"option {option}",
                fix="leave it out",
            )


def _import_chat(
    source: str,
    output: Path,
    *,
    task: str,
    chat_template: str,
    tokenizer: str | None,
    supervised: str | None,
    max_length: int | None,
    truncation: str,
    format: str,
    split: str | None,
    encoding: str | None,
    quiet: bool,
) -> None:
    """Render chats with a template, write the rows, and report their supervision.

    The parameters are the options of :func:`import_`.
    """
    from spark_audit.checkpoints.chat_template import read_chat_template
    from spark_audit.data.chat.import_chat import import_chat
    from spark_audit.data.chat.supervision import count_supervision, supervision_notes
    from spark_audit.messages import progress

    loaded_tokenizer, template = read_chat_template(chat_template, tokenizer=tokenizer)
    remarks: list[str] = []
    with progress(quiet=quiet) as update, keeping_previous([output]):
        counts = import_chat(
            source,
            output,
            task=task,
            tokenizer=loaded_tokenizer,
            template=template,
            supervised=supervised,  # type: ignore[arg-type]
            max_length=max_length,
            truncation=truncation,  # type: ignore[arg-type]
            format=format,
            split=split,  # type: ignore[arg-type]
            encoding=encoding,
            progress=update,
            note=remarks.append,
        )

    for remark in remarks:
        say(remark)
    # The output is read again, because rows were written one by one and not kept.
    supervision_counts = count_supervision(read_examples(output), loaded_tokenizer)
    for remark in supervision_notes(supervision_counts):
        say(remark)
    _say_rows(output, counts.get("train", 0), counts.get("test", 0))


def supervision(
    data: list[Path],
    /,
    *,
    base: str,
    json: Json = False,
) -> None:
    """Tell which identifiers were in the loss, only read, or cut off.

    Parameters
    ----------
    data
        Annotated JSONL of `data import --chat-template`, or folders.
    base
        Checkpoint whose tokenizer the rows were trained with.
    """
    from spark_audit.checkpoints.chat_template import read_chat_template
    from spark_audit.cli.show import show_records
    from spark_audit.data.chat.supervision import count_supervision, supervision_notes

    examples = read_examples(*data_files(data))
    # The rows are already rendered, so only the tokenizer is needed.
    tokenizer, _ = read_chat_template(base)
    counts = count_supervision(examples, tokenizer)
    # A table without rows is useless, and the remarks explain why it is empty.
    if counts.records or json:
        show_records(counts.records, title="identifiers by supervision", as_json=json)
    for remark in supervision_notes(counts):
        say(remark)


def annotate(
    data: Path,
    /,
    *,
    output: Jsonl,
    detector: Annotated[str, Parameter(choices=("rules", "presidio"))] = "rules",
    pattern: Annotated[tuple[str, ...], Parameter(metavar="TYPE=PATTERN")] = (),
    in_wording: bool = False,
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
    in_wording
        Annotate what most rows of a task share, too: it may be one person's.
    """
    from spark_audit.data.annotation import annotate_and_count
    from spark_audit.data.pii import NAMES_MISSED, detector_of

    pattern_by_type = pairs(
        pattern, where="--pattern", form="TYPE=PATTERN, such as ORDER='ORD-[0-9]{7}'"
    )
    # A mistake in a pattern is reported before anything is read.
    detector_of(detector, pattern_by_type)
    files = data_files([data])
    _check_file(output, files)

    examples = read_examples(*files)
    annotation = annotate_and_count(
        examples, detector=detector, patterns=pattern_by_type, in_wording=in_wording
    )
    with keeping_previous([output]):
        _write(output, annotation.examples)

    _show_identifiers_by_type(annotation.examples, as_json=json)
    if detector == "rules":
        say(NAMES_MISSED)
    _say_what_was_left_out(
        annotation, in_wording=in_wording, pattern_types=pattern_by_type
    )


def _show_identifiers_by_type(examples: Sequence[Example], *, as_json: bool) -> None:
    """Print the number of annotated identifiers of each type, the most frequent first.

    Each place of an identifier counts. Spans that the rows had before count, too.
    """
    from spark_audit.cli.show import show_records

    counts: Counter[str] = Counter()
    for example in examples:
        counts.update(span.type for span in example.spans)
    records = [
        {"type": type_name, "annotated": count}
        for type_name, count in counts.most_common()
    ]
    if records or as_json:
        show_records(records, title="identifiers by type", as_json=as_json)
    else:
        say("no identifier was found")


def _say_what_was_left_out(
    annotation: AnnotationResult, *, in_wording: bool, pattern_types: Collection[str]
) -> None:
    """Report what looks like an identifier and was not annotated, and what to do.

    Parameters
    ----------
    in_wording
        Whether the user asked for identifiers in fixed wording (--in-wording).
    pattern_types
        Types that the user gave with --pattern.
    """
    from spark_audit.data.annotation import wording_notes

    for note in wording_notes(annotation):
        say(note)
    if annotation.n_in_wording and not in_wording:
        say(
            "what stands in fixed wording is taken for nobody's, such as the address "
            "of a help desk, and is not annotated; one person's looks the same: if it "
            "is one person's, annotate with --in-wording"
        )
    for note in annotation.notes:
        say(note)
    if annotation.n_unknown_codes:
        _say_unknown_codes(
            annotation.n_unknown_codes,
            annotation.n_code_rows,
            pattern_types=pattern_types,
        )


def _say_unknown_codes(
    n_codes: int, n_rows: int, *, pattern_types: Collection[str]
) -> None:
    """Report the number of codes without a known form, and how to annotate them.

    Parameters
    ----------
    n_rows
        Number of rows that hold such a code.
    """
    form = "with their form"
    if pattern_types:
        form = f"with their form (you gave {', '.join(sorted(pattern_types))})"
    say(
        f"{n_codes} codes of capitals and digits in "
        f"{n_rows} rows have a form that is not known, as order numbers "
        "have, and are not annotated: for those that are personal give "
        f"--pattern ORDER='ORD-[0-9]{{7}}' {form}"
    )


def inject(
    data: list[Path],
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    rate: float = 0.3,
    canaries: int = 50,
    doses: Annotated[
        tuple[int, ...], Parameter(metavar="1,4,16,64", converter=by_commas)
    ] = (),
    tokenizer: Annotated[str | None, Parameter(metavar="CKPT")] = None,
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
        Share of the rows without a canary that get an identifier.
    canaries
        Canaries to plant.
    doses
        Dose ladder of canaries.
    tokenizer
        Checkpoint whose tokenizer the audits will use: says which parts of canaries
        cannot be ranked with it.
    """
    from spark_audit.checkpoints.chat_template import read_only_tokenizer
    from spark_audit.cli.show import show_records
    from spark_audit.data.injection import inject as inject_identifiers

    if output.is_file():
        raise InputError(
            "is a file",
            where=str(output),
            fix="name a folder: it holds a file per task",
        )
    files = data_files(data)
    examples = read_examples(*files)
    path_by_task = {
        example.task: output / f"{example.task}.jsonl" for example in examples
    }
    # The folder may hold the input under the same file names.
    paths = [*path_by_task.values()]
    keep_apart(paths, files)
    loaded_tokenizer = None if tokenizer is None else read_only_tokenizer(tokenizer)

    injected, report = inject_identifiers(
        examples, seed=seed, rate=rate, canaries=canaries, doses=doses or None
    )
    rankable_lines = []
    if loaded_tokenizer is not None:
        rankable_lines = _lines_on_rankable_parts(
            injected, loaded_tokenizer, quiet=quiet
        )
    with keeping_previous(paths):
        for task, path in sorted(path_by_task.items()):
            _write(path, [example for example in injected if example.task == task])

    # A planted canary stands in train rows, and its held-out partner in a test row.
    records = []
    for (task, split), counts in sorted(report.rows.items()):
        n_rows, n_with_identifier, n_with_canary = counts
        records.append(
            {
                "task": task,
                "split": split,
                "rows": n_rows,
                "with_identifier": n_with_identifier,
                "with_canary": n_with_canary,
            }
        )
    n_planted = sum(report.planted.values())
    title = f"{n_planted} of {canaries} canaries planted, {report.held_out} held out"
    show_records(records, title=title, as_json=json)
    for note in [*report.notes, *rankable_lines]:
        say(note)


def _lines_on_rankable_parts(
    injected: Sequence[Example], tokenizer: Tokenizer, *, quiet: bool
) -> list[str]:
    """Return what cannot be ranked of canaries: a line per part, of counts alone."""
    from spark_audit.manifest.canary_sets import rankable_parts
    from spark_audit.manifest.settings import BuildSettings
    from spark_audit.messages import progress

    with progress(quiet=quiet) as update:
        counts_by_part = rankable_parts(
            injected,
            tokenizer,
            BuildSettings().recorded(),
            progress=lambda done, total: update("drawing candidates", done, total),
        )

    lines = []
    for part, counts in counts_by_part.items():
        if counts.n_unrankable:
            name = RANKED_PART_NAMES[part]
            fewest = min(counts.n_tokens_of_unrankable)
            most = max(counts.n_tokens_of_unrankable)
            n_tokens = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            lines.append(
                f"{counts.n_unrankable} of {counts.n} {name} of canaries cannot be "
                "ranked with this tokenizer: too few others have as many tokens "
                f"({n_tokens})"
            )
    if lines:
        lines.append(
            "such parts are left out of ranks: plant more canaries (--canaries), or "
            "draw others (--seed)"
        )
        return lines

    n_parts = sum(counts.n for counts in counts_by_part.values())
    return [f"all {n_parts} parts of canaries can be ranked with this tokenizer"]


def _check_file(output: Path, inputs: Sequence[Path]) -> None:
    """Refuse to overwrite an input, or to write a file in place of a folder."""
    keep_apart([output], inputs)
    if output.is_dir():
        raise InputError(
            "is a folder",
            where=str(output),
            fix=f"name a file, such as -o {output / 'rows.jsonl'}",
        )


def _write(path: Path, examples: Sequence[Example]) -> None:
    """Write examples, and report their number."""
    write_examples(path, examples)
    n_train = sum(example.split == "train" for example in examples)
    _say_rows(path, n_train, len(examples) - n_train)


def _say_rows(path: Path, n_train: int, n_test: int) -> None:
    """Report the number of written rows."""
    say(f"{path}: {n_train} train and {n_test} test rows")


DATA_COMMANDS: Mapping[str, Callable[..., None]] = {
    "import": import_,
    "annotate": annotate,
    "inject": inject,
    "supervision": supervision,
}
