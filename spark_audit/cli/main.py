"""``spark-audit``: its commands, put together.

Only what is called gets imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from spark_audit import options, sentences
from spark_audit.audits import AUDITS, about, all_audits, audit_names
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.typed_paths import check_typed_paths
from spark_audit.cli import ALL_AUDITS, AUDIT_PROGRAM, report_commands
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
"""Commands with commands of their own, each a module here."""
AUDIT_QUESTIONS = Path(sentences.__file__).parent / "en" / "audits.toml"
"""Holds what each of them asks."""

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
"""What ``--help`` shows as an example, by command."""
COMMANDS_THAT_START_AGAIN = (
    "inspect",
    "report",
    "persons",
    "compare",
    "verify",
    "epsilon",
    "gate",
)
"""Commands that keep nothing of work that was interrupted."""
EXAMPLE_OPTIONS = "--ckpt runs/mine --base models/base"
"""The example of an audit that has none here."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code (never raises)."""
    return run_command(
        arguments, program=AUDIT_PROGRAM, app=_app, anew=COMMANDS_THAT_START_AGAIN
    )


def _commands_of(group: str) -> Mapping[str, Callable[..., None]]:
    """Return the commands of a group, which are imported when one is called."""
    if group == "data":
        from spark_audit.cli.data_commands import DATA_COMMANDS

        return DATA_COMMANDS

    from spark_audit.cli.manifest_commands import MANIFEST_COMMANDS

    return MANIFEST_COMMANDS


def _app(argv: Sequence[str]) -> App:
    """The application, with only the called modules imported."""
    if "--install-completion" in argv:
        argv = [
            *argv,
            *AUDITS,
            *COMMAND_GROUPS,
            ALL_AUDITS,
        ]  # what it writes names every option
    app = flags.program(
        AUDIT_PROGRAM,
        argv,
        help="Find out what a language-model checkpoint gives away about the personal "
        "data it was trained on.",
        check=check_typed_paths,
    )
    put = partial(_add, app)
    put("demo", demo)
    for name, text in COMMAND_GROUPS.items():
        place = len([*app])
        group = App(name=name, help=text, group_parameters=options.HOW, sort_key=place)
        if name in argv:
            for one, function in _commands_of(name).items():
                _add(group, one, function, within=f"{name} ")
        app.command(group)
    put("inspect", inspect)
    told = tomllib.loads(AUDIT_QUESTIONS.read_text(encoding="utf-8"))["audit"].items()
    asked = {name: one["question"] for name, one in told if "question" in one}
    asked[ALL_AUDITS] = "All audits from one scoring pass; noise if asked for."
    for name in (*audit_names(), ALL_AUDITS):
        made: Callable[..., None] = _not_called
        example = ""
        if name in argv:
            from spark_audit.cli.audit import audit_command

            audits = all_audits().values() if name == ALL_AUDITS else [about(name)]
            made = audit_command([*audits])
            example = about(name).example
        help = asked.get(name) or (about(name).__doc__ or "").split("\n")[0]
        put(name, made, help=help, example=example)
    for name in ("report", "persons", "compare", "verify", "epsilon", "gate"):
        put(name, getattr(report_commands, name))
    return app


def _not_called() -> None:
    """Stands for a command until it is called."""


def _add(
    app: App,
    name: str,
    function: Callable[..., None],
    *,
    within: str = "",
    example: str = "",
    help: str | None = None,
) -> None:
    """Give an application, or a group of commands, its next command."""
    example = EXAMPLES.get(within + name) or example or f"{name} {EXAMPLE_OPTIONS}"
    examples = [f"{AUDIT_PROGRAM} {example}"]
    flags.add(app, name, function, help=help, examples=examples)


@dataclass(frozen=True, kw_only=True)
class Opened(Loading):
    """How a checkpoint is opened to be looked at: some fields are no options."""

    trust_remote_code: Annotated[bool, options.NO_OPTION] = False
    quantize: Annotated[tuple[str, ...], options.NO_OPTION] = ()
    model: Annotated[str | None, options.NO_OPTION] = None
    agree: Annotated[str | None, options.NO_OPTION] = None


def inspect(
    ckpt: str,
    /,
    *,
    base: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    loading: Opened = Opened(),
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
    # What does not load is an error, and does not come this far.
    loads = "loads" if facts.pop(WOULD_LOAD) == "yes" else "loads_by_headers"
    show_line(
        sentences.render(f"inspect.{loads}", source=facts["source"]), style="bold"
    )
    tell()
    show_facts(facts)
    tell()
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

    with progress(quiet=quiet) as show:
        outcome = run_demo(output, seed=seed, progress=show)
    assert outcome.report is not None
    show_report(outcome.report, verbose=verbose)
    say_where(outcome.folder)
