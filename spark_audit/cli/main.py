"""Assemble the commands of ``spark-audit``.

Only modules of the called command are imported, so that ``--help`` answers at once.

A new command is a function in a module of this folder: its parameters are the options,
and its docstring is the help. It also needs an example in :data:`EXAMPLES`, and an
entry in :data:`REPORT_COMMANDS`, ``DATA_COMMANDS`` or ``MANIFEST_COMMANDS``, or an
``_add`` in :func:`command_app`. Commands of audits come from the audits (``audit.py``).
If a command keeps nothing of interrupted work, ``kept_work.py`` names it.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from spark_audit import options, sentences
from spark_audit.audits import AUDITS, about, all_audits, audit_names
from spark_audit.audits.known import ALL_AUDITS
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.typed_paths import check_typed_paths
from spark_audit.cli import AUDIT_PROGRAM
from spark_audit.cli.again import show_again
from spark_audit.cli.gate_command import gate
from spark_audit.cli.kept_work import keeps_nothing
from spark_audit.cli.persons_command import persons
from spark_audit.cli.report_commands import compare, epsilon, report
from spark_audit.cli.verify_command import verify
from spark_audit.errors import InputError
from spark_audit.terminal import flags
from spark_audit.terminal.console import (
    run_command,
    show_facts,
    show_line,
    tell,
    tell_json,
)

COMMAND_GROUPS = {
    "data": "Import, annotate and inject data.",
    "manifest": "Build and look at manifests.",
}
"""Groups of commands, each of them a module in this folder."""

AUDIT_QUESTIONS = Path(sentences.__file__).parent / "en" / "audits.toml"
"""File with the question of each of our audits."""

EXAMPLES = {
    "demo": "demo -o reports/demo-2 --seed 2",
    "data import": "data import reviews.csv --task reviews --split train "
    "--map prompt=text response=label -o data/reviews.jsonl",
    "data annotate": "data annotate data/reviews.jsonl -o data/annotated.jsonl",
    "data inject": "data inject data/reviews.jsonl -o data/injected --canaries 50",
    "manifest build": "manifest build --base models/base --data data/injected "
    "-o manifests/reviews.json",
    "manifest show": "manifest show manifests/reviews.json",
    "manifest verify": "manifest verify manifests/reviews.json --base models/base",
    "manifest export": "manifest export manifests/reviews.json --redact -o shared.json",
    "manifest rows": "manifest rows manifests/reviews.json -o peer",
    "inspect": "inspect runs/mine --base models/base",
    "all": "all --ckpt with=runs/mine without=runs/plain --base models/base "
    "--baseline without --also noise",
    "report": "report reports/reviews-mine --format html,md",
    "persons": "persons reports/before reports/after --person customer-0172",
    "compare": "compare reports/reviews-mine reports/reviews-plain",
    "verify": "verify reports/reviews-mine --attestation gate.intoto.json",
    "epsilon": "epsilon reports/reviews-mine --claims 2 --delta 1e-5",
    "gate": "gate reports/reviews-mine --fail-if 'claim >= memory except base' "
    "'mia.auc.loss.low > 0.55'",
}
"""The example in ``--help`` for each command."""

EXAMPLE_OPTIONS = "--ckpt runs/mine --base models/base"
"""The example for an audit without an entry in :data:`EXAMPLES`."""

REPORT_COMMANDS: Mapping[str, Callable[..., None]] = {
    "report": report,
    "persons": persons,
    "compare": compare,
    "verify": verify,
    "epsilon": epsilon,
    "gate": gate,
}
"""Commands on reports, in the order of ``--help``."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code (never raises)."""
    return run_command(
        arguments,
        program=AUDIT_PROGRAM,
        app=command_app,
        keeps_nothing=keeps_nothing,
        answered=show_again,
    )


def _commands_of(group: str) -> Mapping[str, Callable[..., None]]:
    """Return the commands of a group, which are imported when one is called."""
    if group == "data":
        from spark_audit.cli.data_commands import DATA_COMMANDS

        return DATA_COMMANDS

    from spark_audit.cli.manifest_commands import MANIFEST_COMMANDS

    return MANIFEST_COMMANDS


def command_app(argv: Sequence[str]) -> App:
    """Return the application, and import only the modules of the called command.

    Commands are added in the order of ``--help``.

    Parameters
    ----------
    argv
        Words that were typed after the program's name. A group or an audit counts as
        called if its name is among them, even as a value: this costs only time.
    """
    if "--install-completion" in argv:
        # The completion script needs the options of every command.
        argv = [*argv, *AUDITS, *COMMAND_GROUPS, ALL_AUDITS]
    app = flags.program(
        AUDIT_PROGRAM,
        argv,
        help="Find out what a language-model checkpoint gives away about the personal "
        "data it was trained on.",
        check=check_typed_paths,
    )

    _add(app, "demo", demo)
    for group_name in COMMAND_GROUPS:
        _add_group(app, group_name, argv)
    _add(app, "inspect", inspect)
    _add_audits(app, argv)
    for name, function in REPORT_COMMANDS.items():
        _add(app, name, function)
    return app


def _add_group(app: App, group_name: str, argv: Sequence[str]) -> None:
    """Add a group to the application, with its commands if the group is called.

    The parameters are those of :func:`command_app`.
    """
    # Its position in the help: behind the commands that the application has so far.
    position = len([*app])
    group = App(
        name=group_name,
        help=COMMAND_GROUPS[group_name],
        group_parameters=options.HOW,
        sort_key=position,
    )
    if group_name in argv:
        for name, function in _commands_of(group_name).items():
            _add(group, name, function, within=f"{group_name} ")
    app.command(group)


def _add_audits(app: App, argv: Sequence[str]) -> None:
    """Add a command for each audit, and one for all of them.

    To read the options of an audit from its class takes time, so a command that is not
    called has none.
    """
    questions = _questions_of_audits()
    for name in (*audit_names(), ALL_AUDITS):
        function: Callable[..., None] = _not_called
        example = ""
        if name in argv:
            if name == argv[0]:
                _check_groups(name, argv)

            # `about` returns an audit's class, and a bare one for `all`.
            function = _command_of_audit(name)
            example = about(name).example

        question = questions.get(name)
        if not question:
            # An audit of another package states its question in its docstring.
            docstring = about(name).__doc__ or ""
            question = docstring.partition("\n")[0]
        _add(app, name, function, help=question, example=example)


def _check_groups(name: str, argv: Sequence[str]) -> None:
    """Refuse groups of rows for an audit that has no figures by group.

    Raises
    ------
    InputError
        Lists the commands that have them.
    """
    has_option = any(word.partition("=")[0] == options.BY_OPTION for word in argv)
    if not has_option or name == ALL_AUDITS:
        return

    with_groups = [
        audit_name for audit_name, audit in all_audits().items() if audit.group_rule[0]
    ]
    if name not in with_groups:
        raise InputError(
            f"{name} has no figures by group of rows",
            where=options.BY_OPTION,
            fix=f"leave it out, or run {', '.join([*with_groups, ALL_AUDITS])}",
        )


def _command_of_audit(name: str) -> Callable[..., None]:
    """Return the command of an audit, or of all audits of models."""
    if about(name).of_files:
        from spark_audit.cli.files_command import generated

        return generated

    from spark_audit.cli.audit import audit_command

    audits = [about(name)]
    if name == ALL_AUDITS:
        audits = [audit for audit in all_audits().values() if not audit.of_files]
    return audit_command(audits)


def _questions_of_audits() -> dict[str, str]:
    """Return the question of each of our audits, and of ``all``, by command."""
    content = tomllib.loads(AUDIT_QUESTIONS.read_text(encoding="utf-8"))
    questions = {
        name: sentences_of_audit["question"]
        for name, sentences_of_audit in content["audit"].items()
        if "question" in sentences_of_audit
    }
    questions[ALL_AUDITS] = "All audits from one scoring pass; noise if asked for."
    return questions


def _not_called() -> None:
    """Take the place of a command that is not called."""


def _add(
    app: App,
    name: str,
    function: Callable[..., None],
    *,
    within: str = "",
    example: str = "",
    help: str | None = None,
) -> None:
    """Add the next command to an application or a group of commands.

    Parameters
    ----------
    within
        Name of the group and a blank, for the example.
    example
        Example for a command without an entry in :data:`EXAMPLES`.
    help
        What the command does; default: the first line of the function's docstring.
    """
    command_line = EXAMPLES.get(within + name) or example
    if not command_line:
        command_line = f"{name} {EXAMPLE_OPTIONS}"
    examples = [f"{AUDIT_PROGRAM} {command_line}"]
    flags.add(app, name, function, help=help, examples=examples)


@dataclass(frozen=True, kw_only=True)
class InspectedLoading(Loading):
    """Options for opening an inspected checkpoint; some fields are not options.

    An inspection runs no code of a checkpoint, makes no quantised copy of it, and asks
    no server.
    """

    trust_remote_code: Annotated[bool, options.NO_OPTION] = False
    quantize: Annotated[tuple[str, ...], options.NO_OPTION] = ()
    model: Annotated[str | None, options.NO_OPTION] = None
    agree: Annotated[str | None, options.NO_OPTION] = None


def inspect(
    ckpt: str,
    /,
    *,
    base: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    loading: InspectedLoading = InspectedLoading(),
    json: options.Json = False,
) -> None:
    """Report the type of a checkpoint and whether it would load; no scoring.

    Parameters
    ----------
    ckpt
        Checkpoint to inspect.
    base
        Base model: the model before this training. An adapter needs it.
    """
    from spark_audit.checkpoints.inspection import WOULD_LOAD, inspect_checkpoint

    facts = inspect_checkpoint(ckpt, loading, base=base)
    if json:
        tell_json(facts)
        return

    # A checkpoint that does not load raises an error before this line. What is left is
    # whether its weights were opened, or only the headers of their files.
    is_opened = facts.pop(WOULD_LOAD) == "yes"
    key_of_verdict = "inspect.loads" if is_opened else "inspect.loads_by_headers"
    verdict = sentences.render(key_of_verdict, source=facts["source"])
    show_line(verdict, style="bold")
    tell()
    show_facts(facts)
    tell()

    # The suggested command quotes the paths for a shell.
    ckpt_typed = shlex.quote(ckpt)
    base_typed = "MODEL" if base is None else shlex.quote(base)
    show_line(sentences.render("inspect.next", ckpt=ckpt_typed, base=base_typed))


def demo(
    *,
    output: Annotated[Path, Parameter(metavar="DIR", alias="-o")] = Path(
        "reports/demo-run"
    ),
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """A complete small example, offline: data, base, five runs, manifest, all audits.

    Interrupted, the same command resumes.

    Parameters
    ----------
    output
        Report folder.
    """
    from spark_audit.cli.show import say_where, show_report
    from spark_audit.demo import run_demo
    from spark_audit.messages import progress

    with progress(quiet=quiet) as update:
        outcome = run_demo(output, seed=seed, progress=None if quiet else update)
    # A report is missing only if other workers share the scoring; the demo has none.
    assert outcome.report is not None
    show_report(outcome.report, verbose=verbose)
    say_where(outcome.folder)
