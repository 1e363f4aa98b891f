"""The commands that run audits, with common options and those of each audit.

An option of all audits is a field of ``Request`` (``pipeline/request.py``) or of
``Loading``. An option of one audit is a field of its class, with a ``Parameter`` or a
sentence for the help; nothing here names it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from cyclopts import Parameter

from spark_audit import options
from spark_audit.audits import AUDITS_ON_REQUEST, Audit
from spark_audit.checkpoints.endpoint_options import Asking
from spark_audit.checkpoints.specs import Loading
from spark_audit.cli.again import copied_stdout, keep_shown, nothing_to_do
from spark_audit.messages import is_watched, say
from spark_audit.pipeline.request import Request, shard_of
from spark_audit.terminal import flags
from spark_audit.terminal.console import tell, tell_json
from spark_audit.terminal.signature import with_options

if TYPE_CHECKING:
    from spark_audit.pipeline.run import Outcome


def audit_command(audits: Sequence[type[Audit]]) -> Callable[..., None]:
    """Return the command of one audit, or of all, some of which may be left out.

    ``all`` leaves out audits on request, unless the user names them or gives one of
    their own options.

    Parameters
    ----------
    audits
        The class of one audit, or of every installed one for ``all``.
    """
    is_of_several = len(audits) > 1
    # A single audit runs in any case: its command is the request.
    on_request: list[type[Audit]] = []
    if is_of_several:
        on_request = [audit for audit in audits if audit.name in AUDITS_ON_REQUEST]
    usual_options = _options_of_usual_audits(audits)
    audit_options = _options_of(audits, is_named=is_of_several)

    def command(
        *,
        request: Request,
        loading: Loading = Loading(),
        asking: Asking = Asking(),
        dry_run: Annotated[bool, Parameter(group=options.WHAT)] = False,
        json: options.Json = False,
        quiet: options.Quiet = False,
        verbose: options.Verbose = False,
        typed: flags.TypedLine,
        **values_of_options: Any,
    ) -> None:
        """Run audits.

        Parameters
        ----------
        dry_run
            Say what would be done and how long it takes, and stop.
        """
        skipped = values_of_options.get("skip", ())
        also = values_of_options.get("also", ())
        # An option that no usual audit has is a request for its audits.
        options_that_ask = {*typed.given} - usual_options
        not_asked_for = []
        for audit in on_request:
            has_typed_option = bool(options_that_ask & _names_of_options(audit))
            is_asked_for = audit.name in also or has_typed_option
            if audit.name not in skipped and not is_asked_for:
                not_asked_for.append(audit.name)

        # An option that was not typed keeps the default of its field.
        values = {
            option.name: values_of_options.get(option.name, option.default)
            for option in audit_options
        }
        chosen_audits = []
        for audit in audits:
            if audit.name not in skipped and audit.name not in not_asked_for:
                # Every field of an audit is an option, so only this call gives a dict.
                fields_of_audit = {key: values[key] for key in _names_of_options(audit)}
                chosen_audits.append(audit(**fields_of_audit))

        # Without --shard, the launcher's environment gives the part of this worker.
        shard = request.shard
        if "shard" not in typed.given:
            shard = shard_of(None)
        request = replace(
            request,
            audits=tuple(chosen_audits),
            shard=shard,
            loading=loading,
            asking=asking,
            command=typed.words,
        )
        shown = _audit(
            request, dry_run=dry_run, json=json, quiet=quiet, verbose=verbose
        )
        messages = []
        if not_asked_for and not quiet:
            names = " ".join(not_asked_for)
            messages.append(f"left out unless asked for: {names} (--also {names})")
        if shown is not None and not quiet:
            from spark_audit.report.folder import what_is_not_written

            report = shown.outcome.report
            if report is not None:
                messages += what_is_not_written(report, request.formats)
        for message in messages:
            say(message)
        if shown is not None:
            _keep_shown(shown, request, messages)

    choices = []
    if is_of_several:
        choices = [
            _choice_of_audits("skip", audits, "Audits to leave out."),
            _choice_of_audits(
                "also", on_request, "Audits that `all` runs on request only."
            ),
        ]
    return with_options(command, [*choices, *audit_options])


def _names_of_options(audit: type[Audit]) -> set[str]:
    """Return the names of an audit's options, which are its fields."""
    return {field.name for field in fields(audit)}


def _options_of_usual_audits(audits: Sequence[type[Audit]]) -> set[str]:
    """Return the names of options of audits that run without a request.

    To give one of them is not a request for another audit that has it, too.
    """
    names: set[str] = set()
    for audit in audits:
        if audit.name not in AUDITS_ON_REQUEST:
            names |= _names_of_options(audit)
    return names


def _choice_of_audits(
    name: str, audits: Sequence[type[Audit]], help: str
) -> inspect.Parameter:
    """Return an option ``--NAME AUDIT...`` whose values are names of audits."""
    description = Parameter(
        group=options.WHAT,
        metavar="AUDIT...",
        choices=[audit.name for audit in audits],
        help=help,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=(),
        annotation=Annotated[tuple[str, ...], description],
    )


def _options_of(
    audits: Sequence[type[Audit]], *, is_named: bool
) -> list[inspect.Parameter]:
    """Return the options of audits, each once even if several audits have it.

    Options are the fields whose ``Annotated`` type has a ``Parameter`` or a sentence,
    which becomes the help. The help begins with the names of the audits that have the
    option if ``is_named``. If several have it, the last one gives help and default.
    """
    audits_by_option: dict[str, list[str]] = {}
    for audit in audits:
        for field in fields(audit):
            audits_by_option.setdefault(field.name, []).append(audit.name)

    options_by_name: dict[str, inspect.Parameter] = {}
    for audit in audits:
        hints = get_type_hints(audit, include_extras=True)
        for field in fields(audit):
            hint = hints[field.name]
            # Fields without such a note are not options.
            for note in getattr(hint, "__metadata__", ()):
                text = note.help if isinstance(note, Parameter) else note
                names = ", ".join(audits_by_option[field.name])
                options_by_name[field.name] = _option(
                    field.name,
                    hint,
                    default=field.default,
                    help=f"{names}: {text}" if is_named else text,
                )
    return list(options_by_name.values())


def _option(
    name: str, hint: object, *, default: object, help: str | None
) -> inspect.Parameter:
    """Return an option as a parameter of a function, made from a field of an audit."""
    # Only an option that is on by default needs a form that turns it off.
    switch_off: str | tuple[()] = ()
    if default is True:
        switch_off = f"--no-{name}".replace("_", "-")
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[hint, Parameter(help=help, negative=switch_off)],
    )


@dataclass(frozen=True)
class _Shown:
    """A report that was printed, and what was printed of it to stdout."""

    outcome: Outcome
    created: str
    text: str


def _keep_shown(shown: _Shown, request: Request, messages: Sequence[str]) -> None:
    """Keep what was printed, for the same command again.

    Parameters
    ----------
    messages
        Messages behind the report, on stderr.
    """
    from spark_audit.pipeline import up_to_date

    # The folder's record may be that of an earlier request.
    if up_to_date.unchanged(request) != shown.outcome.folder:
        return
    keep_shown(
        request.command[1:],
        shown.outcome.folder,
        created=shown.created,
        text=shown.text,
        messages=messages,
    )


def _confirmation() -> Callable[[str], bool] | None:
    """Return a function that asks the user a question; ``None`` without a terminal."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    def is_agreed(question: str) -> bool:
        say(f"{question} [y/N]")
        return sys.stdin.readline().strip().casefold() in ("y", "yes")

    return is_agreed


def _audit(
    request: Request, *, dry_run: bool, json: bool, quiet: bool, verbose: bool
) -> _Shown | None:
    """Estimate or run a request, and print the result; return a report's own text."""
    if dry_run and request.asks_endpoint:
        from spark_audit.pipeline.asking_cost import cost_lines
        from spark_audit.pipeline.text_endpoint import cost_of

        cost = cost_of(request)
        if json:
            tell_json(asdict(cost))
        else:
            tell("\n".join(cost_lines(cost)))
        return None
    if dry_run:
        from spark_audit.pipeline.estimate import estimate, estimate_lines

        estimated = estimate(request)
        if json:
            tell_json(estimated)
        else:
            tell("\n".join(estimate_lines(estimated)))
        return None

    if not quiet and is_watched():
        # Imports and headers take a while before there is progress to show.
        say("reading the manifest and what the checkpoints are, then their tokenizers")
    from spark_audit.messages import progress
    from spark_audit.pipeline.run import run

    # Workers share a terminal or a log, so only the first shows progress.
    shard_number, n_shards = request.shard
    with progress(quiet=quiet or shard_number > 0) as update:
        outcome = run(request, progress=update, confirm=_confirmation())

    # Another worker has the missing parts; the last one to end concludes.
    if outcome.report is None:
        say(
            f"part {shard_number + 1} of {n_shards} is scored; {outcome.missing} items "
            "of others are missing: the worker that ends last writes the report"
        )
        return None
    # A report with the same inputs is kept as it is, and only shown.
    if not outcome.anew:
        say(nothing_to_do(outcome.report.created))
    with copied_stdout() as copy:
        if json:
            tell_json(outcome.report.model_dump(mode="json"))
        else:
            from spark_audit.cli.show import say_where, show_report

            show_report(outcome.report, verbose=verbose)
            say_where(outcome.folder)
    return _Shown(outcome, outcome.report.created, copy.getvalue())
