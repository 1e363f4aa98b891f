"""The commands that audit: common flags, and each audit's own from its fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_audit.audits import Audit
from spark_audit.checkpoints.specs import Loading
from spark_audit.cli import ALL, PROGRAM
from spark_audit.pipeline.request import Request
from spark_audit.sentences import spoken
from spark_audit.terminal.commands import given, write_config
from spark_audit.terminal.console import say, tell, tell_json
from spark_audit.terminal.flags import Flag, Json, Only, Quiet, Verbose


@dataclass(frozen=True, kw_only=True)
class _Request(Request):
    audits: tuple[Audit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Way:
    """What is done with a request."""

    dry_run: Annotated[
        bool, Flag("Say what would be done and how long it takes, and stop.")
    ] = False
    json: Json = False
    quiet: Quiet = False
    verbose: Verbose = False


def audit_command(audits: Sequence[type[Audit]]) -> Callable[..., None]:
    """The command of one audit, or of all, some of which may be left out.

    ``all`` leaves out what runs on request, until it or one of its own options
    is asked for.
    """
    several = len(audits) > 1
    names = [audit.name for audit in audits]
    name = ALL if several else names[0]
    waits = [audit.name for audit in audits if several and audit.on_request]
    shared = {
        one.name for audit in audits if not audit.on_request for one in fields(audit)
    }

    def command(
        context: typer.Context,
        *,
        request: Request,
        loading: Loading,
        way: _Way,
        skip: Sequence[str] = (),
        also: Sequence[str] = (),
        **asked: Audit,
    ) -> None:
        typed = {*given(context)}
        waiting = [
            name
            for name in waits
            if name not in (*skip, *also)
            and not typed & {one.name for one in fields(asked[name])} - shared
        ]
        left = (*skip, *waiting)
        request = replace(
            request,
            audits=tuple(audit for name, audit in asked.items() if name not in left),
            loading=loading,
            command=(PROGRAM, *context.obj),
        )
        folder = _audit(request, way)
        if waiting and not way.quiet:
            listed = " ".join(waiting)
            say(f"left out unless asked for: {listed} (--also {listed})")
        if folder is not None:
            path = folder / f"command-{name}.toml"
            write_config(path, given(context), command=f"{PROGRAM} {name}")

    of_series = audits[0].of_series and not several
    common = [one.name for one in fields(Request) if one.name != "data" or of_series]
    kinds: dict[str, Any] = {
        "context": typer.Context,
        "request": Annotated[_Request, Only(common)],
    }
    if several:
        skips = Flag("Audits to leave out.", metavar="AUDIT...", choices=names)
        text = "Audits that `all` runs on request only."
        adds = replace(skips, help=text, choices=waits)
        kinds["skip"] = Annotated[tuple[str, ...], skips]
        kinds["also"] = Annotated[tuple[str, ...], adds]
    kinds["way"] = _Way
    for audit in audits:
        kinds[audit.name] = Annotated[audit, Only(prefix=f"{audit.name}: " * several)]
    kinds["loading"] = Loading
    command.__annotations__ = kinds
    return command


def _audit(request: Request, way: _Way) -> Path | None:
    """Do what is asked; the folder of a report that was written."""
    if way.dry_run:
        from spark_audit.pipeline.estimate import estimate, told

        estimated = estimate(request)
        if way.json:
            tell_json(estimated)
        else:
            tell("\n".join(told(estimated)))
        return None
    from spark_audit.pipeline.run import run
    from spark_audit.terminal.progress import progress

    with progress(quiet=way.quiet or request.shard[0] > 0) as show:
        outcome = run(request, progress=show)
    if outcome.report is None:
        part, parts = request.shard
        say(
            f"part {part + 1} of {parts} is scored; {outcome.missing} items of others "
            "are missing: the worker that ends last writes the report"
        )
        return None
    if not outcome.anew:
        say(
            f"nothing to do: checkpoints, manifest, options and program are those of "
            f"the report of {outcome.report.created}"
        )
    if way.json:
        tell_json(outcome.report.model_dump(mode="json"))
    else:
        from spark_audit.cli.show import say_where, show_report

        with spoken(request.language):
            show_report(outcome.report, verbose=way.verbose)
            say_where(outcome.folder)
    return outcome.folder
