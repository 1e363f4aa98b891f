"""``spark-audit``: its commands, put together.

Only what is called gets imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

import typer

from spark_audit.audits import AUDITS
from spark_audit.cli import PROGRAM, look, report
from spark_audit.cli.audit import audit_command
from spark_audit.terminal.console import root, run_command

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
ALL = "all"
GROUPS = {
    "data": "Import, annotate and inject data.",
    "manifest": "Build and look at manifests.",
}
"""Commands with commands of their own, each a module here."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code (never raises)."""
    return run_command(arguments, program=PROGRAM, app=_app, several=SEVERAL)


def _app(argv: Sequence[str]) -> typer.Typer:
    """The application, with only the called modules imported."""
    app = typer.Typer(
        name=PROGRAM,
        no_args_is_help=True,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Find out what a language-model checkpoint gives away about the personal "
        "data it was trained on.",
    )
    app.callback()(root)
    app.command("demo")(look.demo)
    for name, text in GROUPS.items():
        group = typer.Typer()
        if name in argv:
            group = import_module(f"spark_audit.cli.{name}").app
        app.add_typer(group, name=name, help=text)
    app.command("inspect")(look.inspect)
    audits = AUDITS.in_order()
    for name in audits:
        made = audit_command([name]) if name in argv else root
        app.command(name, help=AUDITS.summary(name))(made)
    every = audit_command(audits) if ALL in argv else root
    app.command(ALL, help="Every audit from one scoring pass.")(every)
    one: Callable[..., None]
    for one in (report.report, report.compare, report.gate):
        app.command(one.__name__)(one)
    return app
