"""The commands that audit: common flags, and each audit's own from its fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any

from cyclopts import Parameter

from spark_audit import options
from spark_audit.audits import AUDITS_ON_REQUEST, Audit
from spark_audit.checkpoints.specs import Loading
from spark_audit.messages import say
from spark_audit.pipeline.request import Request, shard_of
from spark_audit.sentences import spoken
from spark_audit.terminal import flags
from spark_audit.terminal.console import tell, tell_json


def audit_command(audits: Sequence[type[Audit]]) -> Callable[..., None]:
    """The command of one audit, or of all, some of which may be left out.

    ``all`` leaves out what runs on request, until it or one of its own options
    is asked for.
    """
    several = len(audits) > 1
    named = {audit.name: audit for audit in audits}
    waits = [name for name in named if several and name in AUDITS_ON_REQUEST]
    own = flags.options(*audits, named=several)
    usual = {
        f.name
        for k, a in named.items()
        if k not in AUDITS_ON_REQUEST
        for f in fields(a)
    }

    def command(
        *,
        request: Request,
        own: Any = own(),
        loading: Loading = Loading(),
        dry_run: Annotated[bool, Parameter(group=options.WHAT)] = False,
        json: options.Json = False,
        quiet: options.Quiet = False,
        verbose: options.Verbose = False,
        skip: tuple[str, ...] = (),
        also: tuple[str, ...] = (),
        typed: flags.Line,
    ) -> None:
        """Run audits.

        Parameters
        ----------
        dry_run
            Say what would be done and how long it takes, and stop.
        skip
            Audits to leave out.
        also
            Audits that `all` runs on request only.
        """
        asked = {*typed.given} - usual
        waiting = [
            one
            for one in waits
            if one not in (*skip, *also)
            and not asked & {field.name for field in fields(named[one])}
        ]
        request = replace(
            request,
            audits=tuple(
                audit(**{one.name: getattr(own, one.name) for one in fields(audit)})
                for name, audit in named.items()
                if name not in (*skip, *waiting)
            ),
            shard=request.shard if "shard" in typed.given else shard_of(None),
            loading=loading,
            command=typed.words,
        )
        _audit(request, dry_run=dry_run, json=json, quiet=quiet, verbose=verbose)
        if waiting and not quiet:
            listed = " ".join(waiting)
            say(f"left out unless asked for: {listed} (--also {listed})")

    none = Annotated[Any, options.NO_OPTION]
    names = Annotated[
        tuple[str, ...], Parameter(group=options.WHAT, metavar="AUDIT...")
    ]
    command.__annotations__ |= {
        "own": own if fields(own) else none,
        "skip": Annotated[names, Parameter(choices=named)] if several else none,
        "also": Annotated[names, Parameter(choices=waits)] if several else none,
    }
    return command


def _audit(
    request: Request, *, dry_run: bool, json: bool, quiet: bool, verbose: bool
) -> None:
    """Do what is asked."""
    if dry_run:
        from spark_audit.pipeline.estimate import estimate, told

        estimated = estimate(request)
        if json:
            tell_json(estimated)
        else:
            tell("\n".join(told(estimated)))
        return
    from spark_audit.messages import progress
    from spark_audit.pipeline.run import run

    with progress(quiet=quiet or request.shard[0] > 0) as show:
        outcome = run(request, progress=show)
    if outcome.report is None:
        part, parts = request.shard
        say(
            f"part {part + 1} of {parts} is scored; {outcome.missing} items of others "
            "are missing: the worker that ends last writes the report"
        )
        return
    if not outcome.anew:
        say(
            f"nothing to do: checkpoints, manifest, options and program are those of "
            f"the report of {outcome.report.created}"
        )
    if json:
        tell_json(outcome.report.model_dump(mode="json"))
    else:
        from spark_audit.cli.show import say_where, show_report

        with spoken(request.language):
            show_report(outcome.report, verbose=verbose)
            say_where(outcome.folder)
