"""``spark-audit manifest``: build, show, verify, export and rows.

Each command is a function whose parameters are its options; the docstring is its help.
A new command also gets an entry in :data:`MANIFEST_COMMANDS`, and an example in
``EXAMPLES`` of ``main.py``. Settings of `build` are fields of ``BuildSettings``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from spark_audit import messages
from spark_audit.checkpoints.specs import Loading
from spark_audit.manifest.file import check_output, read_manifest, write_manifest
from spark_audit.manifest.settings import BuildSettings
from spark_audit.options import NO_OPTION, OUTPUT, BatchSize, Json, Quiet, Verbose
from spark_audit.previous import keeping_previous
from spark_audit.sentences import render
from spark_audit.terminal import console

if TYPE_CHECKING:
    from spark_audit.manifest.overview import Description
    from spark_audit.planning.plan import TrainingPlan

BALANCE_COLUMNS = ("covariate", "mean_pii", "mean_control", "smd_before", "smd_after")
"""Keys of a record of BALANCE_TABLE, fields of the manifest's balance, that fit a
terminal; --json has all."""


@dataclass(frozen=True, kw_only=True)
class ReferenceLoading(Loading):
    """How a reference model is opened.

    Fields that describe an adapter, a quantised copy or a model on a server are no
    options here: a reference is a base model, opened from its weights.
    """

    lora_alpha: Annotated[float | None, NO_OPTION] = None
    quantize: Annotated[tuple[str, ...], NO_OPTION] = ()
    model: Annotated[str | None, NO_OPTION] = None
    agree: Annotated[str | None, NO_OPTION] = None


File = Annotated[Path, Parameter(help="File of `manifest build`.")]


def build(
    *,
    base: Annotated[str, Parameter(metavar="MODEL")],
    data: Annotated[tuple[Path, ...], Parameter(metavar="DIR|DATA...")],
    output: Annotated[Path, Parameter(alias="-o")],
    settings: BuildSettings = BuildSettings(),
    scores: Annotated[Path | None, Parameter(metavar="DIR")] = None,
    batch_size: BatchSize = "auto",
    quiet: Quiet = False,
    loading: ReferenceLoading = ReferenceLoading(),
) -> None:
    """Match identifiers with other text on a reference model, once for all audits.

    Parameters
    ----------
    base
        Reference model.
    data
        JSONL of `data`.
    output
        manifests/NAME.json, or for many rows NAME.arrow.
    scores
        Score store to resume from.
    """
    from spark_audit.checkpoints.open import open_checkpoint
    from spark_audit.data.examples import data_files, read_examples
    from spark_audit.files import check_writable
    from spark_audit.manifest.build import build_manifest
    from spark_audit.manifest.overlap import check_splits
    from spark_audit.manifest.overview import describe
    from spark_audit.messages import progress
    from spark_audit.planning.plan import training_plan
    from spark_audit.scoring.store import Store

    # Mistakes in paths and rows are reported before a model is opened.
    files = data_files(data)
    console.keep_apart([output], files)
    # build_manifest takes the only reference to the examples, by pop() below, so that
    # it can free them before it seals the manifest.
    examples_once = [read_examples(*files)]
    for note in check_splits(examples_once[0]):
        messages.say(note)
    check_output(output)
    check_writable(output.parent)

    reference = open_checkpoint(base, loading, name="base")
    # Scores stay until the manifest is written, so that the same command resumes. The
    # user's folder stays afterwards, too; one of our own is removed below.
    is_own_folder = scores is None
    store_folder = scores
    if store_folder is None:
        store_folder = output.with_name(f".{output.stem}.scores")
    store = Store(store_folder, own=is_own_folder)
    with progress(quiet=quiet) as update:
        manifest = build_manifest(
            examples_once.pop(),
            reference,
            name=output.stem,
            settings=settings,
            data=files,
            store=store,
            batch_size=batch_size,
            progress=update,
        )
    with keeping_previous([output]):
        write_manifest(manifest, output)
    if is_own_folder:
        shutil.rmtree(store_folder, ignore_errors=True)

    print_plan(training_plan(manifest), describe(manifest))
    for note in store.notes:
        console.tell(f"note: {note}")
    console.tell(f"Manifest: {output}")


def show(
    manifest: File,
    /,
    *,
    verbose: Verbose = False,
    json: Json = False,
    markdown: Annotated[
        bool, Parameter(group=OUTPUT, negative="", help="Print Markdown to stdout.")
    ] = False,
) -> None:
    """Say what to change before a training, and what an audit could then detect."""
    # The docstring is the help of the command.
    from spark_audit.cli.show import show_records
    from spark_audit.manifest.overview import BALANCE_TABLE, describe
    from spark_audit.planning.markdown import plan_markdown
    from spark_audit.planning.plan import training_plan

    loaded_manifest = read_manifest(manifest)
    description = describe(loaded_manifest)
    plan = training_plan(loaded_manifest)
    if json:
        content = {
            **description.facts,
            **description.tables,
            "notes": [*description.notes],
            "before_training": plan_record(plan),
        }
        console.tell_json(content)
        return
    if markdown:
        console.tell(plan_markdown(plan, description).rstrip())
        return

    print_plan(plan, description, verbose=verbose)
    # The short answer ends with what to do next, the long one with all facts.
    if not verbose:
        console.tell(render("overview.next", name=manifest))
        console.tell(render("overview.more"))
        return
    for title, records in description.tables.items():
        if not records:
            continue
        if title == BALANCE_TABLE:
            records = _with_columns(records, BALANCE_COLUMNS)
        show_records(records, title=title)

    console.tell()
    facts = {}
    for name, value in description.facts.items():
        facts[name.replace("_", " ")] = "-" if value is None else value
    console.show_facts(facts)


def verify(
    manifest: File,
    /,
    *,
    base: Annotated[str | None, Parameter(metavar="MODEL")] = None,
) -> None:
    """Check a manifest's digest and, with --base, the model it was made for.

    Parameters
    ----------
    base
        Also check that it fits.
    """
    # This also checks the digest.
    loaded_manifest = read_manifest(manifest)
    console.tell(f"{manifest}: digest {loaded_manifest.digest} fits its content")
    if base is not None:
        from spark_audit.checkpoints.open import open_checkpoint
        from spark_audit.manifest.file import check_fit

        reference = open_checkpoint(base, name="base")
        # If the user gives an adapter, its base must fit.
        sha256 = reference.base_sha256 or reference.weights_sha256
        check_fit(loaded_manifest, reference, base_sha256=sha256)
        console.tell(f"{base}: is the reference of this manifest")


def export(
    manifest: File,
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    redact: bool = False,
) -> None:
    """Copy a manifest; with --redact without text and without scores that reveal it.

    Parameters
    ----------
    output
        NAME.json, or NAME.arrow.
    redact
        Leave text and scores out, and number rows and sources.
    """
    from spark_audit.manifest.redaction import redact as without_text

    check_output(output)
    console.keep_apart([output], [manifest])
    exported = read_manifest(manifest)
    if redact:
        exported = without_text(exported)
    with keeping_previous([output]):
        write_manifest(exported, output)
    console.tell(f"Manifest: {output}")


def rows(
    manifest: File,
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o", metavar="FOLDER")],
) -> None:
    """Write the rows of `mia` for another tool's attack to score.

    Parameters
    ----------
    output
        Folder: rows.jsonl has members.jsonl first, then non_members.jsonl.
    """
    from spark_audit.audits.mia.peer_rows import peer_rows
    from spark_audit.files import check_writable, write_text
    from spark_audit.manifest.file import original

    # The text itself is needed, so `original` refuses a redacted manifest. Rows are
    # records for JSON; the label of a trained row is 1.
    all_rows = list(peer_rows(original(read_manifest(manifest))))
    members = [row for row in all_rows if row["label"] == 1]
    non_members = [row for row in all_rows if row["label"] == 0]
    rows_by_path = {
        output / "rows.jsonl": all_rows,
        output / "members.jsonl": members,
        output / "non_members.jsonl": non_members,
    }

    check_writable(output)
    with keeping_previous([*rows_by_path]):
        for path, rows_of_file in rows_by_path.items():
            lines = [f"{dumps(row, ensure_ascii=False)}\n" for row in rows_of_file]
            # The file is private, because it contains rows of text.
            write_text(path, "".join(lines), mode=0o600)
    console.tell(
        f"Rows: {output} ({len(members)} of members, {len(non_members)} of non-members)"
    )


def plan_record(plan: TrainingPlan) -> dict[str, object]:
    """Return a plan as --json has it, with what to change in sentences."""
    from spark_audit.planning.shown import shown_plan

    shown = shown_plan(plan)
    return {
        "answer": shown.headline,
        "change": [*shown.changes],
        **plan.record(),
    }


def print_plan(
    plan: TrainingPlan, description: Description, *, verbose: bool = False
) -> None:
    """Print what to change before a training, and what an audit could detect.

    With ``verbose``, all sentences and notes of the description follow; :func:`show`
    adds its tables.
    """
    from spark_audit.cli.show import show_tables
    from spark_audit.planning.shown import shown_plan

    shown = shown_plan(plan)
    console.show_line(shown.headline, style="bold")
    for number, change in enumerate(shown.changes, start=1):
        console.show_line(f"{number}. {change}")
    console.show_line(description.summary[0])
    for remark in shown.remarks:
        console.show_line(remark)
    show_tables(shown.tables)
    if not verbose:
        for text in description.advice:
            console.show_line(render("overview.controls", advice=text))
        return

    show_tables(shown.details)
    console.tell()
    for text in (*description.summary[1:], *description.notes):
        console.show_line(text)


def _with_columns(
    records: Sequence[Mapping[str, object]], columns: Sequence[str]
) -> list[dict[str, object]]:
    """Return records with only these columns, in this order."""
    selected = []
    for record in records:
        selected.append({column: record[column] for column in columns})
    return selected


MANIFEST_COMMANDS: Mapping[str, Callable[..., None]] = {
    "build": build,
    "show": show,
    "verify": verify,
    "export": export,
    "rows": rows,
}
