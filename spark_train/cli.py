"""``spark-train``: the command line.

Commands are thin: flags are the fields of a request, which the library takes. Only
what is called gets imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_audit.errors import InputError
from spark_audit.terminal.commands import add
from spark_audit.terminal.console import (
    keep_apart,
    root,
    run_command,
    say,
    show_facts,
    show_table,
    tell,
)
from spark_audit.terminal.flags import Json, Only, Quiet
from spark_train.request import (
    OPENED,
    Opening,
    RelearnRequest,
    ScoreRequest,
    TrainRequest,
    layer_names,
)

if TYPE_CHECKING:
    from spark_train.methods.method import Method
    from spark_train.privacy.protected import Option
    from spark_train.run import Outcome

PROGRAM = "spark-train"
EXAMPLES = {
    "run": (
        "run --method spark --base models/base --data data/injected "
        "--order reviews,support -o runs/spark",
        "run --method er --base models/base --data data/injected "
        "--order reviews,support --dp fn --set fn.sigma=0.01 -o runs/er",
    ),
    "methods": ("methods", "methods --json"),
    "relearn": (
        "relearn runs/spark --base models/base --data data/injected "
        "-o runs/spark-relearned",
    ),
    "score": ("score data/injected --base models/base",),
}
"""What ``--help`` shows as examples, by command: each is one that works."""
AUDITING = ("data", "manifest", "inspect", "all", "report", "compare", "gate")
"""Commands of `spark-audit`, which people look for here."""
FIGURES = {"last": "Last", "avg": "Avg", "bwt": "BWT"}
"""What a run's end tells of its accuracy matrix."""

Opened = Annotated[Opening, Only(OPENED)]


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code (never raises)."""
    return run_command(
        arguments,
        program=PROGRAM,
        app=lambda _: _app(),
        anew=("relearn", "score"),
        others={name: f"spark-audit {name}" for name in AUDITING},
    )


def _app() -> typer.Typer:
    app = typer.Typer(
        name=PROGRAM,
        no_args_is_help=True,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Fine-tune a language model on a sequence of tasks, with or without "
        "privacy correction.",
    )
    app.callback()(root)
    commands = {
        "run": train_run,
        "methods": methods,
        "relearn": relearn,
        "score": score,
    }
    for name, function in commands.items():
        add(app, name, function, program=PROGRAM, examples=EXAMPLES[name])
    return app


# --- run ------------------------------------------------------------------------------


def train_run(
    context: typer.Context,
    *,
    request: TrainRequest,
    loading: Opened,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn the tasks of an order one after the other; the same command resumes."""
    from spark_audit.checkpoints.offline import quiet as silence

    with silence():  # what is imported has things to say of its own
        from spark_train.run import train

    request = replace(
        request,
        lora_targets=layer_names(request.lora_targets),
        loading=loading,
        command=(PROGRAM, *context.obj),
    )
    with _one_voice(quiet=quiet) as (show, note):
        outcome = train(request, progress=show, note=note)
    for text in outcome.notes:
        note(text)
    if _first():
        _show_outcome(outcome, as_json=json)


def _show_outcome(outcome: Outcome, *, as_json: bool) -> None:
    figures = _figures(outcome.matrix)
    if as_json:
        told = {
            "run": str(outcome.folder),
            "tasks": list(outcome.tasks),
            "accuracy": outcome.matrix,
            **figures,
            "seconds": dict(outcome.seconds),
            "notes": list(outcome.notes),
            "privacy": outcome.privacy,
        }
        show_facts(told, as_json=True)
        return
    if outcome.matrix:
        # Methods that learn all tasks at once have one row.
        at_once = len(outcome.matrix) < len(outcome.tasks)
        rows = [
            ("all" if at_once else task, *map(_cell, accuracies))
            for task, accuracies in zip(outcome.tasks, outcome.matrix, strict=False)
        ]
        show_table(
            "accuracy",
            ("after", *outcome.tasks),
            rows,
            remarks=[
                f"{FIGURES[name]} {value:.3f}"
                for name, value in figures.items()
                if value is not None
            ],
        )
        tell()
    epsilons: dict[str, float] = outcome.privacy.get("epsilon", {})
    private = {f"epsilon, {task}": f"{value:.3f}" for task, value in epsilons.items()}
    if "no_epsilon" in outcome.privacy:
        private["no epsilon"] = outcome.privacy["no_epsilon"]
    show_facts(
        {f"seconds, {kind}": f"{s:.1f}" for kind, s in outcome.seconds.items()}
        | private
        | {"run": outcome.folder}
    )


def _figures(matrix: Sequence[Sequence[float | None]]) -> dict[str, float | None]:
    """Last, Avg and BWT, ``None`` where an accuracy that they need was not measured."""
    import numpy as np

    from spark_audit.stats.accuracy import METRICS, reason_against

    figures: dict[str, float | None] = dict.fromkeys(FIGURES)
    table = np.array(matrix, dtype=np.float64)  # None becomes NaN
    if table.ndim != 2 or not table.size:
        return figures
    stages, tasks = table.shape
    for name in FIGURES:
        if reason_against(name, stages=stages, tasks=tasks) is None:
            value = float(METRICS[name](table))
            figures[name] = value if np.isfinite(value) else None
    return figures


# --- methods --------------------------------------------------------------------------


def methods(*, json: Json = False) -> None:
    """Methods, privacy options and their settings, with defaults and sources."""
    from spark_audit.checkpoints.offline import quiet as silence
    from spark_train.settings import describe

    with silence():
        from spark_train.methods import METHODS, groups
        from spark_train.privacy import PRIVACY
        from spark_train.privacy import groups as privacy_groups

        listed = {
            "methods": _entries(METHODS, groups),
            "privacy": _entries(PRIVACY, privacy_groups),
        }
    settings = describe()
    if json:
        show_facts({**listed, "settings": settings}, as_json=True)
        return
    for title, name, remarks in (
        ("methods", "name", []),
        ("privacy options", "--dp", ["Each goes with every method."]),
    ):
        show_table(
            title,
            (name, "what it does", "settings"),
            [
                (one["name"], one["summary"], ", ".join(one["reads"]))
                for one in listed[title.partition(" ")[0]]
            ],
            remarks=remarks,
            figures=False,
        )
    show_table(
        "settings",
        ("name", "default", "meaning", "source"),
        [(s["name"], s["default"], s["meaning"], s["source"]) for s in settings],
        remarks=["Settings without a dot in their name are every method's."],
        figures=False,
    )


def _entries(
    choices: Mapping[str, Method | Option], reads: Callable[[str], Sequence[str]]
) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "summary": (choice.summary or "").partition("\n")[0],
            "reads": list(reads(name)),
        }
        for name, choice in choices.items()
    ]


# --- relearn --------------------------------------------------------------------------


def relearn(
    *,
    request: RelearnRequest,
    loading: Annotated[Opening, Only((*OPENED, "lora_alpha"))],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """A short fine-tune without identifiers, to see whether suppression lasts.

    An adapter is trained on and stays one; full weights stay full weights.
    """
    from spark_audit.checkpoints.offline import quiet as silence

    with silence():
        from spark_train.relearn import relearn as relearned

    targets = layer_names(request.lora_targets)
    with _one_voice(quiet=quiet) as (show, note):
        left = relearned(
            replace(request, lora_targets=targets, loading=loading),
            progress=show,
            note=note,
        )
    if not _first():
        return
    if json:
        told = {
            "checkpoint": str(left.folder),
            "rows": left.rows,
            "left_out": left.left_out,
            "losses": list(left.losses),
        }
        show_facts(told, as_json=True)
        return
    show_facts(
        {
            "rows without identifiers": left.rows,
            **{f"rows left out, {why}": n for why, n in left.left_out.items()},
            "loss, first step": f"{left.losses[0]:.3f}",
            "loss, last step": f"{left.losses[-1]:.3f}",
            "checkpoint": left.folder,
        }
    )


# --- score ----------------------------------------------------------------------------


def score(
    *,
    request: ScoreRequest,
    loading: Opened,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tokens with their sensitivity scores; identifiers only with --show-text.

    Without it, [NAME], [EMAIL] and so on stand for each token of what is annotated in
    the data or found by the rules, and a row's figures end before the first of them:
    with the model, those behind it tell what it is. Plain text is shown, and with it
    identifiers that neither annotations nor rules know. A file of -o has all scores,
    and is as private as the data.
    """
    from spark_audit.checkpoints.offline import quiet as silence
    from spark_audit.data.examples import data_files, read_examples
    from spark_audit.files import check_writable
    from spark_audit.terminal.progress import progress

    files, output = data_files(request.data), request.output
    if output is not None:
        keep_apart([output], files)
        _check_scores(output)
    examples = read_examples(*files)
    if output is not None:
        check_writable(output.parent)
    with silence():  # what is imported has things to say of its own
        from spark_audit.checkpoints.open import open_checkpoint
        from spark_train.token_scores.scores import write_scores
        from spark_train.token_scores.shown import score_examples

    ckpt = request.ckpt
    loaded = open_checkpoint(
        ckpt or request.base,
        replace(loading, base=request.base if ckpt else None),
        name=None if ckpt else "base",
    )
    with progress(quiet=quiet) as show:
        scored = score_examples(
            examples,
            loaded,
            alpha=request.alpha,
            limit=request.limit if output is None else None,
            progress=lambda done, total: show("scoring", done, total),
        )
    if output is not None:
        write_scores(output, [one.row for one in scored], [one.score for one in scored])
    told = [
        one.told(loaded.tokenizer, show_text=request.show_text)
        for one in scored[: request.limit]
    ]
    if json:
        show_facts({"examples": told}, as_json=True)
        return
    for one in told:
        show_table(
            f"{one['example']} ({one['task']})",
            list(one["tokens"][0]),
            [[_cell(value) for value in token.values()] for token in one["tokens"]],
        )
    if output is not None:
        tell(f"\nScores: {output}")


def _check_scores(output: Path) -> None:
    """Write over nothing but a table of scores."""
    place = str(output)
    if output.suffix != ".parquet":
        raise InputError(
            "is no name of a table of scores", where=place, fix="give -o FILE.parquet"
        )
    if not output.exists():
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(output).names
    except (OSError, pa.ArrowException):
        names = []
    if not {"example", "position", "score", "pii"} <= {*names}:
        raise InputError(
            "is there already, and no table of scores",
            where=place,
            fix="give another -o",
        )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    # Line breaks and blanks of a token stay visible.
    return "-" if value is None else str(value).replace("\n", "\\n")


# --- odds and ends --------------------------------------------------------------------


def _first() -> bool:
    """Whether this is the process of a launch that prints."""
    several = os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1")
    return not several or os.environ.get("RANK", "0") == "0"


@contextmanager
def _one_voice(
    *, quiet: bool
) -> Iterator[tuple[Callable[[str, int, int], None], Callable[[str], None]]]:
    """Progress, and notes as plain lines on stderr, each once: of the first process.

    Leaves without a word where another process tells what was wrong.
    """
    from spark_audit.terminal.progress import progress
    from spark_train.distributed import ElsewhereError

    said: set[str] = set()

    def note(text: str) -> None:
        if text not in said and _first():
            say(text)
        said.add(text)

    with progress(quiet=quiet or not _first()) as show:
        try:
            yield show, note
        except ElsewhereError as error:
            if _first():
                raise
            raise typer.Exit(error.exit_code) from None
