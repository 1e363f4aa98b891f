"""``spark-audit``: the command line.

Commands are thin: each turns its flags into one call of the library. Only what is
called gets imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from spark_audit.audits import AUDITS
from spark_audit.audits.contract import in_order
from spark_audit.cli import commands
from spark_audit.cli.commands import (
    LOADING,
    PROGRAM,
    Base,
    BatchSize,
    Ckpt,
    ManifestFile,
    Output,
    Preset,
    Quantize,
    Seed,
    ShowText,
)
from spark_audit.errors import InputError
from spark_audit.terminal.console import (
    Json,
    Quiet,
    one_of,
    root,
    run_command,
    say,
    show_facts,
    tell_json,
)

if TYPE_CHECKING:
    from spark_audit.pipeline.run import Outcome, Request

SEVERAL = (
    "--data",
    "--ckpt",
    "--fail-if",
    "--set",
    "--map",
    "--quantize",
    "--paper-method",
)
"""Options that accept both ``--x A B`` and ``--x A --x B``."""

AUDIT = {
    "ckpt": (Ckpt, inspect.Parameter.empty),
    "base": (Base, None),
    "baseline": (
        Annotated[
            str | None,
            typer.Option(
                metavar="NAME",
                help="The same run without the correction; gives contrasts.",
            ),
        ],
        None,
    ),
    "manifest": (ManifestFile, None),
    "output": (Output, None),
    "preset": (Preset, None),
    "seed": (Seed, 0),
    "format": (commands.Format, None),
    "limit": (
        Annotated[
            int | None,
            typer.Option(min=1, help="Score only N examples; the report is partial."),
        ],
        None,
    ),
    "scores": (
        Annotated[
            Path | None,
            typer.Option(metavar="DIR", help="Score store to share between reports."),
        ],
        None,
    ),
    "batch_size": (BatchSize, "auto"),
    "shard": (
        Annotated[
            str | None,
            typer.Option(
                metavar="I/N", help="This worker's part, from 0/N; N workers."
            ),
        ],
        None,
    ),
    "quantize": (Quantize, None),
    "show_text": (ShowText, False),
    "dry_run": (
        Annotated[
            bool,
            typer.Option("--dry-run", help="Say what would be scored, and stop."),
        ],
        False,
    ),
    "json": (Json, False),
    "quiet": (Quiet, False),
    **LOADING,
}
"""Flags that every audit has; its own come from its signature."""

ALL = "all"
DATA = (
    Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR|DATA...",
            help="JSONL of `data`, in place of a manifest: its test rows are answered.",
        ),
    ],
    None,
)
"""The flag of audits that look at the stages of a series."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code (never raises)."""
    return run_command(
        arguments,
        program=PROGRAM,
        app=lambda argv: _app(argv, arguments),
        several=SEVERAL,
    )


def _app(argv: Sequence[str], arguments: Sequence[str]) -> typer.Typer:
    """The application, with only the called audit's module imported.

    ``arguments`` are what the user typed: reports say it.
    """
    app = typer.Typer(
        name=PROGRAM,
        no_args_is_help=True,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Find out what a language-model checkpoint gives away about the personal "
        "data it was trained on.",
    )
    app.callback()(root)
    data = typer.Typer(no_args_is_help=True, help="Import, annotate and inject data.")
    data.command("import")(commands.data_import)
    data.command("annotate")(commands.data_annotate)
    data.command("inject")(commands.data_inject)
    manifest = typer.Typer(no_args_is_help=True, help="Build and look at manifests.")
    manifest.command("build")(commands.manifest_build)
    manifest.command("show")(commands.manifest_show)
    manifest.command("verify")(commands.manifest_verify)
    manifest.command("export")(commands.manifest_export)
    app.command("demo")(commands.demo)
    app.add_typer(data, name="data")
    app.add_typer(manifest, name="manifest")
    app.command("inspect")(commands.inspect)
    for name in in_order(AUDITS.names()):
        called = name in argv
        summary = AUDITS.summary(name)
        made = _audit([name], arguments) if called else root
        app.command(name, help=summary)(made)
    every = _audit(in_order(AUDITS.names()), arguments) if ALL in argv else root
    app.command(ALL, help="Every audit from one scoring pass.")(every)
    app.command("report")(commands.report)
    app.command("compare")(commands.compare)
    app.command("gate")(commands.gate)
    return app


def _audit(names: Sequence[str], arguments: Sequence[str]) -> Callable[..., None]:
    """The command of one audit or several: common flags plus their own."""
    own: dict[str, tuple[Any, Any]] = {}
    common = dict(AUDIT)
    for name in names:
        own |= _own_flags(name)
    if len(names) == 1 and AUDITS.of_stages(names[0]):
        common["data"] = DATA

    def command(**flags: Any) -> None:
        options = {key: flags.pop(key) for key in own}
        _run_audits(tuple(names), flags, options, arguments)

    flags = {**common, **own}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )
            for key, (kind, default) in flags.items()
        ]
    )
    command.__annotations__ = {key: kind for key, (kind, _) in flags.items()}
    return command


def _own_flags(name: str) -> dict[str, tuple[Any, Any]]:
    """Flags of an audit's signature that not every audit has."""
    entry = AUDITS.get(name)
    parameters = {
        parameter.name: parameter
        for parameter in inspect.signature(entry.run).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in AUDIT
    }
    # Only these annotations are evaluated: others may name types not imported here.
    annotations = {key: parameter.annotation for key, parameter in parameters.items()}
    hints = get_type_hints(
        type("Options", (), {"__annotations__": annotations}),
        globalns=inspect.unwrap(entry.run).__globals__,
        include_extras=True,
    )
    own: dict[str, tuple[Any, Any]] = {}
    for key, hint in hints.items():
        kind, *texts = get_args(hint)
        option = typer.Option(help=texts[0])
        own[key] = (Annotated[kind, option], parameters[key].default)
    return own


def _run_audits(
    names: tuple[str, ...],
    flags: dict[str, Any],
    own: dict[str, Any],
    arguments: Sequence[str],
) -> None:
    from spark_audit.pipeline.run import Request, estimate_cost, run
    from spark_audit.terminal.progress import progress as progress_bar

    if flags.get("data") and flags["manifest"] is not None:
        raise InputError(
            "stands in place of a manifest", where="--data", fix="leave one out"
        )
    quantize = flags.pop("quantize") or ()
    request = Request(
        audits=names,
        ckpt=tuple(flags["ckpt"]),
        manifest=flags["manifest"],
        data=tuple(flags.get("data") or ()),
        base=flags["base"],
        baseline=flags["baseline"],
        output=flags["output"],
        preset=one_of(flags["preset"], "--preset", (None, "robust", "paper")),
        seed=flags["seed"],
        formats=commands.formats_of(flags["format"]),
        limit=flags["limit"],
        scores=flags["scores"],
        batch_size=commands.batch_size_of(flags["batch_size"]),
        show_text=flags["show_text"],
        shard=_shard(flags["shard"]),
        loading={key: flags[key] for key in LOADING} | {"quantize": tuple(quantize)},
        audit_options=own,
        command=(PROGRAM, *arguments),
    )
    if flags["dry_run"]:
        show_facts(estimate_cost(request), as_json=flags["json"])
        return
    with progress_bar(quiet=flags["quiet"] or request.shard[0] > 0) as progress:
        outcome = run(request, progress=progress)
    _print_outcome(outcome, request, as_json=flags["json"])


def _print_outcome(outcome: Outcome, request: Request, *, as_json: bool) -> None:
    if outcome.report is None:
        say(
            f"part {request.shard[0] + 1} of {request.shard[1]} is done, "
            f"{outcome.missing} items are left to the other workers; the last one "
            "writes the report"
        )
    elif as_json:
        tell_json(outcome.report.model_dump(mode="json"))
    else:
        from spark_audit.cli.show import show_report

        show_report(outcome.report)
        commands.say_where(outcome.folder)


def _shard(text: str | None) -> tuple[int, int]:
    """The part of this worker: from ``--shard``, else from the launcher's variables."""
    for rank, world in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if text is None and rank in os.environ and world in os.environ:
            text = f"{os.environ[rank]}/{os.environ[world]}"
    index, _, count = (text or "0/1").partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise InputError(
            f"{text!r} is no part of a whole", where="--shard", fix="give I/N, I < N"
        )
    return int(index), int(count)
