"""The commands that audit: common flags, and each audit's own from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from spark_audit.audits import AUDITS
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
    option,
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


def audit_command(names: Sequence[str]) -> Callable[..., None]:
    """The command of one audit, or of all, some of which may be left out.

    ``all`` leaves out what takes most of the time, until it or one of its own options
    is asked for.
    """
    several = len(names) > 1
    of_stages = len(names) == 1 and AUDITS.of_stages(names[0])
    common = [one for one in options(Request) if one.field != "data" or of_stages]
    by_name = {name: list(_own(name, several)) for name in names}
    own = list({one.field: one for each in by_name.values() for one in each}.values())
    slow = [name for name in names if several and AUDITS.about(name).asked]
    loading, way = options(Loading), options(_Way)
    told = ALL if several else names[0]
    left = [_skip(names), _also(slow)] if several else []

    def command(context: typer.Context, **flags: Any) -> None:
        out, also = (one.taken_from(flags) for one in left) if left else ((), ())
        typed = {*given(context)}
        waiting = [
            name
            for name in slow
            if name not in (*out, *also)
            and not typed & {one.name for one in by_name[name]}
        ]
        request = build(
            Request,
            common,
            flags,
            audits=tuple(name for name in names if name not in (*out, *waiting)),
            loading=build(Loading, loading, flags),
            audit_options=build(dict, own, flags),
            command=(PROGRAM, *context.obj),
        )
        asked = build(_Way, way, flags)
        folder = _audit(request, asked)
        if waiting and not asked.quiet:
            listed = " ".join(waiting)
            say(f"left out, as it takes most of the time: {listed} (--also {listed})")
        if folder is not None:
            path = folder / f"command-{told}.toml"
            write_config(path, given(context), command=f"{PROGRAM} {told}")

    shown = [one.parameter() for one in (*common, *left, *way, *own, *loading)]
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


def _own(name: str, named: bool) -> Iterator[Option]:
    """The options of an audit's signature that not every audit has.

    Parameters
    ----------
    named
        Whether their help says whose they are.
    """
    run = AUDITS.get(name).run
    common = {one.field for one in options(Request)}
    parameters = {
        key: one
        for key, one in inspect.signature(run).parameters.items()
        if one.kind is one.KEYWORD_ONLY and key not in common
    }
    # Only these annotations are evaluated: others may name types not imported here.
    annotations = {key: one.annotation for key, one in parameters.items()}
    hints = get_type_hints(
        type("Options", (), {"__annotations__": annotations}),
        globalns=inspect.unwrap(run).__globals__,
        include_extras=True,
    )
    for key, hint in hints.items():
        one = option(key, hint, parameters[key].default)
        if one is not None:
            text = f"{name}: {one.flag.help}" if named else one.flag.help
            yield replace(one, flag=replace(one.flag, help=text))


def _audit(request: Request, way: _Way) -> Path | None:
    """Do what is asked; the folder of a report that was written."""
    if way.dry_run:
        from spark_audit.pipeline.estimate import estimate, told

        found = estimate(request)
        if way.json:
            tell_json(found.record())
        else:
            tell("\n".join(told(found)))
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
