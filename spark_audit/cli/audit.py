"""The commands that audit: common flags, and each audit's own from its fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, get_type_hints

from cyclopts import Parameter

from spark_audit import options
from spark_audit.audits import AUDITS_ON_REQUEST, Audit
from spark_audit.checkpoints.specs import Loading
from spark_audit.messages import awaited, say
from spark_audit.pipeline.request import Request, shard_of
from spark_audit.terminal import flags
from spark_audit.terminal.console import tell, tell_json
from spark_audit.terminal.signature import with_options


def audit_command(audits: Sequence[type[Audit]]) -> Callable[..., None]:
    """Return the command of one audit, or of all, some of which may be left out.

    ``all`` leaves out what runs on request, until it or one of its own options
    is asked for.
    """
    is_of_several = len(audits) > 1
    by_name = {audit.name: audit for audit in audits}
    on_request = [name for name in by_name if name in AUDITS_ON_REQUEST]
    if not is_of_several:
        on_request = []
    # Options that some audit has which runs unasked: they ask for no other.
    usual_options = {
        field.name
        for name, audit in by_name.items()
        if name not in AUDITS_ON_REQUEST
        for field in fields(audit)
    }
    own_options = _options_of(audits, is_named=is_of_several)

    def command(
        *,
        request: Request,
        loading: Loading = Loading(),
        dry_run: Annotated[bool, Parameter(group=options.WHAT)] = False,
        json: options.Json = False,
        quiet: options.Quiet = False,
        verbose: options.Verbose = False,
        typed: flags.Line,
        **given: Any,
    ) -> None:
        """Run audits.

        Parameters
        ----------
        dry_run
            Say what would be done and how long it takes, and stop.
        """
        skip, also = given.pop("skip", ()), given.pop("also", ())
        values = {one.name: given.get(one.name, one.default) for one in own_options}

        asked = {*typed.given} - usual_options
        waiting = [
            name
            for name in on_request
            if name not in (*skip, *also)
            and not asked & {field.name for field in fields(by_name[name])}
        ]
        request = replace(
            request,
            audits=tuple(
                audit(**{field.name: values[field.name] for field in fields(audit)})
                for name, audit in by_name.items()
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

    choices = []
    if is_of_several:
        choices = [
            _choice_of_audits("skip", by_name, "Audits to leave out."),
            _choice_of_audits(
                "also", on_request, "Audits that `all` runs on request only."
            ),
        ]
    return with_options(command, [*choices, *own_options])


def _choice_of_audits(
    name: str, choices: Collection[str], help: str
) -> inspect.Parameter:
    """Return an option that takes names of audits."""
    shown = Parameter(
        group=options.WHAT, metavar="AUDIT...", choices=choices, help=help
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=(),
        annotation=Annotated[tuple[str, ...], shown],
    )


def _options_of(
    audits: Sequence[type[Audit]], *, is_named: bool
) -> list[inspect.Parameter]:
    """Return the options of audits; what several have is one option.

    They are the fields with a ``Parameter``, or with a sentence that is the help, which
    begins with the audit's name where it is named.
    """
    found: dict[str, inspect.Parameter] = {}
    for audit in audits:
        hints = get_type_hints(audit, include_extras=True)
        for field in fields(audit):
            hint = hints[field.name]
            for note in getattr(hint, "__metadata__", ()):
                text = note.help if isinstance(note, Parameter) else note
                help = f"{audit.name}: {text}" if is_named else text
                # Only what is on can be switched off.
                flag = f"--no-{field.name}".replace("_", "-")
                shown = Parameter(
                    help=help, negative=flag if field.default is True else ()
                )
                found[field.name] = inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=Annotated[hint, shown],
                )
    return list(found.values())


def _audit(
    request: Request, *, dry_run: bool, json: bool, quiet: bool, verbose: bool
) -> None:
    """Do what is asked."""
    if dry_run:
        from spark_audit.pipeline.estimate import estimate, estimate_lines

        estimated = estimate(request)
        if json:
            tell_json(estimated)
        else:
            tell("\n".join(estimate_lines(estimated)))
        return
    if not quiet and awaited():
        # Libraries and headers take a while before anything can be counted.
        say("reading the manifest and what the checkpoints are, then their tokenizers")
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

        show_report(outcome.report, verbose=verbose)
        say_where(outcome.folder)
