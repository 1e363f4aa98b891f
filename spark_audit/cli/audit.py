"""The commands that audit: common flags, and each audit's own from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from spark_audit.terminal.flags import (
    Flag,
    Json,
    Option,
    Quiet,
    Verbose,
    build,
    options,
    with_parameters,
)


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

    ``all`` leaves out what takes most of the time, until it or one of its own options
    is asked for.
    """
    several = len(audits) > 1
    of_series = not several and audits[0].of_series
    common = [one for one in options(Request) if one.field != "data" or of_series]
    by_audit = {audit.name: list(_own(audit, named=several)) for audit in audits}
    audit_options = list(
        {one.field: one for each in by_audit.values() for one in each}.values()
    )
    slow = [audit.name for audit in audits if several and audit.slow]
    loading, way = options(Loading), options(_Way)
    name = ALL if several else audits[0].name
    left = [_skip(list(by_audit)), _also(slow)] if several else []

    def command(context: typer.Context, **flags: Any) -> None:
        out, also = (one.taken_from(flags) for one in left) if left else ((), ())
        typed = {*given(context)}
        waiting = [
            each
            for each in slow
            if each not in (*out, *also)
            and not typed & {one.name for one in by_audit[each]}
        ]
        values = {one.field: one.taken_from(flags) for one in audit_options}
        request = build(
            Request,
            common,
            flags,
            audits=tuple(
                audit(**{one.field: values[one.field] for one in by_audit[audit.name]})
                for audit in audits
                if audit.name not in (*out, *waiting)
            ),
            loading=build(Loading, loading, flags),
            command=(PROGRAM, *context.obj),
        )
        asked = build(_Way, way, flags)
        folder = _audit(request, asked)
        if waiting and not asked.quiet:
            listed = " ".join(waiting)
            say(f"left out, as it takes most of the time: {listed} (--also {listed})")
        if folder is not None:
            path = folder / f"command-{name}.toml"
            write_config(path, given(context), command=f"{PROGRAM} {name}")

    shown = [
        one.parameter() for one in (*common, *left, *way, *audit_options, *loading)
    ]
    own_context = inspect.signature(command).parameters["context"]
    return with_parameters(command, [own_context, *shown])


def _skip(names: Sequence[str]) -> Option:
    """``--skip`` of the command for all audits."""
    flag = Flag("Audits to leave out.", metavar="AUDIT...", choices=names)
    return Option("skip", tuple[str, ...], flag, ())


def _also(slow: Sequence[str]) -> Option:
    """``--also`` of the command for all audits: what it leaves out by itself."""
    text = "Audits that `all` leaves out as they take most of the time."
    flag = Flag(text, metavar="AUDIT...", choices=slow)
    return Option("also", tuple[str, ...], flag, ())


def _own(audit: type[Audit], *, named: bool) -> Iterator[Option]:
    """The options of an audit.

    Parameters
    ----------
    named
        Whether their help says whose they are.
    """
    for one in options(audit):
        text = f"{audit.name}: {one.flag.help}" if named else one.flag.help
        yield replace(one, flag=replace(one.flag, help=text))


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
