"""The commands that are no audit: data, manifests, inspect, report, demo.

Thin: each turns its flags into calls of the library, and prints what comes back.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from spark_audit.errors import CheckpointError, InputError
from spark_audit.terminal.console import (
    Json,
    LoraAlpha,
    Quiet,
    Revision,
    Tokenizer,
    TrustRemoteCode,
    keep_apart,
    one_of,
    say,
    show_facts,
    show_table,
    tell,
    tell_json,
)

if TYPE_CHECKING:
    from spark_audit.manifest.schema import Manifest
    from spark_audit.results import Report

PROGRAM = "spark-audit"
FORMATS = ("auto", "jsonl", "csv", "parquet", "datasets", "trace", "olora")
BRIEF = ("spans by type", "unmatched spans")
"""Tables of a manifest that `manifest build` ends with."""

Ckpt = Annotated[
    list[str],
    typer.Option(
        "--ckpt",
        metavar="[NAME=]PATH...",
        help="Checkpoints: a Hugging Face folder, a PEFT adapter, a weight file, a "
        "series (its last stage; PATH@K another).",
    ),
]
Base = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="Base model of adapters; audited as 'base'."),
]
ManifestFile = Annotated[
    Path | None,
    typer.Option(
        "--manifest", help="Default: the one in manifests/ that fits the checkpoint."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="DIR", help="Default: reports/<manifest>-<names>."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
BatchSize = Annotated[
    str, typer.Option(metavar="auto|N", help="Rows scored at once; auto: by tokens.")
]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to score.")]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="float32|bfloat16|float16",
        help="Of the model's body; the output head is always float32.",
    ),
]
ShowText = Annotated[
    bool, typer.Option("--show-text", help="Show identifiers and their contexts.")
]
Format = Annotated[
    str | None,
    typer.Option(
        metavar="html,md,csv,latex,figures,json",
        help="What to render of the report; default: all of it.",
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(metavar="robust|paper", help="Default: that of the manifest."),
]
Quantize = Annotated[
    list[str] | None,
    typer.Option(
        metavar="int8|int4", help="Audit each checkpoint with rounded weights too."
    ),
]
LOADING: dict[str, tuple[Any, Any]] = {
    "device": (Device, "auto"),
    "dtype": (Dtype, "float32"),
    "tokenizer": (Tokenizer, None),
    "lora_alpha": (LoraAlpha, None),
    "revision": (Revision, None),
    "trust_remote_code": (TrustRemoteCode, False),
}
"""Flags that decide how a checkpoint is opened, with their defaults."""


def data_import(
    source: Annotated[str, typer.Argument(help="File, folder, or hf:OWNER/NAME.")],
    task: Annotated[str, typer.Option(help="Name of the task.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="JSONL to write.")],
    split: Annotated[
        str | None, typer.Option(metavar="train|test", help="Of all rows.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(help="Prompt with columns in braces: 'Text: {text}\\nLabel:'."),
    ] = None,
    map: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=COLUMN", help="prompt=COL, response=COL, id=COL."),
    ] = None,
    format: Annotated[
        str, typer.Option(metavar="auto|jsonl|csv|parquet|datasets|trace|olora")
    ] = "auto",
) -> None:
    """Turn task data of any known format into the project's JSON lines."""
    from spark_audit.data.examples import write_examples
    from spark_audit.data.importers import import_examples

    one_of(format, "--format", FORMATS)
    keep_apart([output], [Path(source)])
    examples = import_examples(
        source,
        task=task,
        format=format,  # type: ignore[arg-type]
        split=split,  # type: ignore[arg-type]
        template=template,
        columns=dict(_pair(text) for text in map or []) or None,
    )
    write_examples(output, examples)
    _say_rows(examples, output)


def data_annotate(
    data: Annotated[Path, typer.Argument(help="JSONL of `data import`, or a folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="JSONL to write.")],
    detector: Annotated[
        str, typer.Option(metavar="rules|presidio-patterns|presidio")
    ] = "rules",
    json: Json = False,
) -> None:
    """Find identifiers; where injected ones are known, say how many are found."""
    from spark_audit.cli.show import show_records
    from spark_audit.data.detection import Agreement, detection
    from spark_audit.data.examples import (
        PII_TYPES,
        data_files,
        read_examples,
        write_examples,
    )
    from spark_audit.data.pii import NAMES_MISSED, annotate_examples

    files = data_files([data])
    keep_apart([output], files)
    examples = read_examples(*files)
    annotated = annotate_examples(examples, detector=detector)  # type: ignore[arg-type]
    write_examples(output, annotated)
    _say_rows(annotated, output)
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


def data_inject(
    data: Annotated[
        list[Path], typer.Argument(help="JSONL of `data import`, or folders.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")],
    rate: Annotated[
        float, typer.Option(help="Share of rows that get an identifier.")
    ] = 0.3,
    canaries: Annotated[int, typer.Option(help="Canaries to plant.")] = 50,
    doses: Annotated[
        str | None, typer.Option(metavar="1,4,16,64", help="Dose ladder of canaries.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Draw canaries that it can rank."),
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Plant synthetic identifiers at the same rate in train and test rows."""
    from spark_audit.cli.show import show_records
    from spark_audit.data.examples import data_files, read_examples, write_examples
    from spark_audit.data.injection import inject

    files = data_files(data)
    examples = read_examples(*files)
    tasks = sorted({example.task for example in examples})
    keep_apart([output / f"{task}.jsonl" for task in tasks], files)
    found, told = inject(
        examples,
        seed=seed,
        rate=rate,
        canaries=canaries,
        doses=_numbers(doses, "--doses"),
        encode=None if tokenizer is None else _encode(tokenizer),
    )
    for task in tasks:
        rows = [example for example in found if example.task == task]
        write_examples(output / f"{task}.jsonl", rows)
        _say_rows(rows, output / f"{task}.jsonl")
    show_records(
        [
            {
                "task": task,
                "split": split,
                "rows": rows,
                "with_identifier": injected,
                "with_canary": planted,
            }
            for (task, split), (rows, injected, planted) in sorted(told.rows.items())
        ],
        title=f"{sum(told.planted.values())} of {told.requested} canaries planted, "
        f"{told.held_out} held out",
        as_json=json,
    )
    for note in told.notes:
        say(note)


def manifest_build(
    base: Annotated[str, typer.Option(metavar="MODEL", help="Reference model.")],
    data: Annotated[
        list[Path], typer.Option(metavar="DIR|DATA...", help="JSONL of `data`.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="manifests/NAME.json")],
    caliper: Annotated[
        float, typer.Option(help="Largest difference of mean NLL, nats a token.")
    ] = 0.5,
    preset: Annotated[str, typer.Option(metavar="robust|paper")] = "robust",
    distance: Annotated[str, typer.Option(metavar="mean|profile")] = "mean",
    controls: Annotated[str, typer.Option(metavar="any|before")] = "any",
    max_length: Annotated[
        int | None, typer.Option(min=2, help="Tokens; default: the model's context.")
    ] = None,
    seed: Seed = 0,
    scores: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Score store to resume from.")
    ] = None,
    batch_size: BatchSize = "auto",
    device: Device = "auto",
    dtype: Dtype = "float32",
    tokenizer: Tokenizer = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    quiet: Quiet = False,
) -> None:
    """Match the data's identifiers on a reference model, once for all audits."""
    from spark_audit.checkpoints.open import open_checkpoint
    from spark_audit.data.examples import data_files, read_examples
    from spark_audit.files import check_writable
    from spark_audit.manifest.build import build_manifest
    from spark_audit.manifest.file import write_manifest
    from spark_audit.manifest.overview import describe
    from spark_audit.scoring.store import Store
    from spark_audit.terminal.progress import progress

    one_of(preset, "--preset", ("robust", "paper"))
    one_of(distance, "--distance", ("mean", "profile"))
    one_of(controls, "--controls", ("any", "before"))
    files = data_files(data)
    keep_apart([output], files)
    examples = read_examples(*files)
    check_writable(output.parent)
    loaded = open_checkpoint(
        base,
        name="base",
        device=device,
        dtype=dtype,
        tokenizer=tokenizer,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    # What is scored is kept until the manifest is written: the same command resumes.
    kept = output.with_name(f".{output.stem}.scores") if scores is None else scores
    with progress(quiet=quiet) as show:
        manifest = build_manifest(
            examples,
            loaded,
            name=output.stem,
            caliper=caliper,
            preset=preset,
            seed=seed,
            distance=distance,  # type: ignore[arg-type]
            controls=controls,  # type: ignore[arg-type]
            max_length=max_length,
            data=files,
            store=Store(kept),
            batch_size=batch_size_of(batch_size),
            progress=show,
        )
    write_manifest(manifest, output)
    if scores is None:
        shutil.rmtree(kept, ignore_errors=True)
    _show_description(describe(manifest), as_json=False, brief=True)
    tell(f"Manifest: {output}")


def manifest_show(
    manifest: Annotated[Path, typer.Argument(help="File of `manifest build`.")],
    json: Json = False,
) -> None:
    """Balance, unmatched spans and why, and the effects that could be detected."""
    from spark_audit.manifest.file import load_manifest
    from spark_audit.manifest.overview import describe

    _show_description(describe(load_manifest(manifest)), as_json=json)


def manifest_verify(
    manifest: Annotated[Path, typer.Argument(help="File of `manifest build`.")],
    base: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Also check that it fits.")
    ] = None,
) -> None:
    """Check a manifest's digest and, with --base, the model it was made for."""
    from spark_audit.manifest.file import load_manifest

    found = load_manifest(manifest)
    tell(f"{manifest}: digest {found.digest} fits its content")
    if base is not None:
        from spark_audit.checkpoints.open import open_checkpoint
        from spark_audit.manifest.build import verify

        verify(found, open_checkpoint(base, name="base"))
        tell(f"{base}: is the reference of this manifest")


def manifest_export(
    manifest: Annotated[Path, typer.Argument(help="File of `manifest build`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="JSON to write.")],
    redact: Annotated[
        bool, typer.Option("--redact", help="Leave text and scores out.")
    ] = False,
) -> None:
    """Copy a manifest, with --redact without text and what it can be read from."""
    from spark_audit.manifest.file import load_manifest, write_manifest
    from spark_audit.manifest.file import redact as redacted

    keep_apart([output], [manifest])
    found = load_manifest(manifest)
    write_manifest(redacted(found) if redact else found, output)
    tell(f"Manifest: {output}")


def inspect(
    ckpt: Annotated[str, typer.Argument(help="Checkpoint to look at.")],
    base: Base = None,
    lora_alpha: LoraAlpha = None,
    tokenizer: Tokenizer = None,
    revision: Revision = None,
    json: Json = False,
) -> None:
    """Say what a checkpoint is and whether it would load, without scoring."""
    from spark_audit.checkpoints.inspection import inspect_checkpoint

    found = inspect_checkpoint(
        ckpt, base=base, lora_alpha=lora_alpha, tokenizer=tokenizer, revision=revision
    )
    facts: dict[str, Any] = {
        "source": found.source,
        "format": found.format or "unknown",
        **found.facts,
    }
    if found.stages:
        facts["stages"] = ", ".join(found.stages)
    for number, note in enumerate(found.notes, start=1):
        facts[f"note {number}"] = note
    # Of what is large headers are read: NaN, or no effect, shows on opening only.
    would = "yes" if found.opened else "yes, by its headers"
    facts["would load"] = "no" if found.problems else would
    show_facts(facts, as_json=json)
    if found.problems:
        raise CheckpointError("; ".join(found.problems))


def report(
    folder: Annotated[Path, typer.Argument(help="Report folder.")],
    format: Format = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For the words of the examples that the page shows; identifiers stay "
            "hidden. Default: no text of any example.",
        ),
    ] = None,
    show_text: ShowText = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="paper", help="Print the paper's figures beside yours."),
    ] = None,
    paper_method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=METHOD...",
            help="Which method of the paper a checkpoint is; default: by its name.",
        ),
    ] = None,
) -> None:
    """Render a report folder again from its report.json; needs no model."""
    from spark_audit.report.folder import read_report, write_report

    one_of(against, "--against", (None, "paper"))
    if paper_method and against is None:
        raise InputError(
            "is read only with --against paper", where="--paper-method", fix="add it"
        )
    if show_text and manifest is None:
        raise InputError(
            "the text stands in the manifest", where="--show-text", fix="add --manifest"
        )
    found = read_report(folder)
    source = None if manifest is None else _manifest_of(found, manifest)
    # Before anything is written: a name that is unknown leaves the folder as it is.
    further = []
    if against is not None:
        from spark_audit.report.paper.comparison import beside, parse_named

        further = [beside(found, named=parse_named(paper_method or ()))]
    written = write_report(
        found,
        folder,
        formats=formats_of(format),
        manifest=source,
        show_text=show_text,
        further=further,
    )
    for path in written:
        tell(str(path))
    for block in further:
        tell(f"\n{block.lead}")
        show_table(
            block.title, block.header, block.rows, remarks=block.remarks, figures=False
        )


def _manifest_of(found: Report, path: Path) -> Manifest:
    """The manifest that a report was made with."""
    from spark_audit.manifest.file import load_manifest, original

    manifest = original(load_manifest(path))
    if manifest.digest != found.manifest.digest:
        raise InputError(
            f"is not the manifest of this report, {found.manifest.name!r}",
            where=str(path),
            fix=f"give the one whose digest begins with {found.manifest.digest[:12]}",
        )
    return manifest


def compare(
    context: typer.Context,
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR DIR...", help="Report folders.")
    ],
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Default: the first report's checkpoint."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Write a report folder too."
        ),
    ] = None,
    preset: Preset = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Paired contrasts of reports over one manifest; needs no model."""
    from spark_audit.cli.show import show_report
    from spark_audit.files import check_writable
    from spark_audit.pipeline.compare import compare as compared
    from spark_audit.report.folder import read_report, write_report

    one_of(preset, "--preset", (None, "robust", "paper"))
    if output is not None:
        keep_apart([output], folders)
        check_writable(output)
    found = compared(
        folders,
        baseline=baseline,
        preset=preset,
        seed=seed,
        output=output,
        command=(PROGRAM, *context.obj),
    )
    if output is not None:
        write_report(found, output)
        found = read_report(output)
    if json:
        tell_json(found.model_dump(mode="json"))
        return
    show_report(found)
    if output is not None:
        say_where(output)


def gate(
    folder: Annotated[Path, typer.Argument(help="Report folder.")],
    fail_if: Annotated[
        list[str],
        typer.Option(
            metavar="RULE...",
            help="Of every checkpoint, 'mia.auc.loss.low > 0.55'; or of one, '... for "
            "X'; or of all but some, '... except base, X'.",
        ),
    ],
    allow_missing: Annotated[
        bool,
        typer.Option("--allow-missing", help="Let figures pass that are missing."),
    ] = False,
    json: Json = False,
) -> None:
    """Leave with exit code 1 when a rule trips; needs no model."""
    from spark_audit.cli.show import show_records
    from spark_audit.report.folder import read_report
    from spark_audit.report.gate import check, judged, parse_rule

    rules = [parse_rule(text) for text in fail_if]
    found = check(read_report(folder), rules, allow_missing=allow_missing)
    try:
        shown = [one for one in found if json or one.state != "left_out"]
        show_records([vars(one) for one in shown], title="gate", as_json=json)
        if not json:
            tell("\n".join(judged(found)))
    finally:
        # Whether anybody reads this is nothing to the verdict.
        if any(one.state == "tripped" for one in found):
            raise typer.Exit(1)


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Report folder.")
    ] = Path("reports/demo-run"),
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Everything in miniature, offline: data, base, five runs, manifest, all audits.

    Interrupted, the same command resumes.
    """
    from spark_audit.cli.show import show_report
    from spark_audit.demo.run import run_demo
    from spark_audit.terminal.progress import progress

    with progress(quiet=quiet) as show:
        outcome = run_demo(output, seed=seed, progress=show)
    assert outcome.report is not None
    show_report(outcome.report)
    say_where(outcome.folder)


def formats_of(text: str | None) -> tuple[str, ...]:
    """The value of ``--format``; nothing stands for all formats."""
    return () if text is None else tuple(part.strip() for part in text.split(","))


def say_where(folder: Path) -> None:
    """Print what to open first of a report folder."""
    pages = [folder / name for name in ("report.html", "report.md", "report.json")]
    found = [str(page) for page in pages if page.exists()]
    tell(f"\nReport: {', '.join(found[:2])}")


def _show_description(told: Any, *, as_json: bool, brief: bool = False) -> None:
    """A manifest's description: figures, then its tables, then its notes."""
    from spark_audit.cli.show import show_records

    if as_json:
        show_facts(
            {**told.facts, **told.tables, "notes": list(told.notes)}, as_json=True
        )
        return
    if not brief:
        show_facts(
            {
                name.replace("_", " "): "-" if value is None else value
                for name, value in told.facts.items()
            }
        )
    for title, records in told.tables.items():
        if records and (not brief or title in BRIEF):
            show_records(records, title=title)
    for note in told.notes:
        tell(f"note: {note}")


def batch_size_of(text: str) -> int | Literal["auto"]:
    """``auto`` or a number from 1."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise InputError(
            f"{text!r} is no batch size", where="--batch-size", fix="give auto or N"
        )
    return int(text)


def _pair(text: str) -> tuple[str, str]:
    field, equals, column = text.partition("=")
    if not equals:
        raise InputError(
            f"{text!r} has no '='", where="--map", fix="write it as FIELD=COLUMN"
        )
    return field, column


def _numbers(text: str | None, where: str) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(
            f"{text!r} is no list of numbers", where=where, fix="write it as 1,4,16"
        )
    return [int(part) for part in parts]


def _encode(model: str) -> Callable[[list[str]], list[list[int]]]:
    from spark_audit.checkpoints.open import load_tokenizer

    tokenizer = load_tokenizer(Path(model), trust_remote_code=False, where=model)
    return lambda texts: [list(ids) for ids in tokenizer(texts)["input_ids"]]


def _say_rows(examples: Sequence[Any], path: Path) -> None:
    train = sum(example.split == "train" for example in examples)
    say(f"{path}: {train} train and {len(examples) - train} test rows")
