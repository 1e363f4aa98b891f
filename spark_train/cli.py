"""The command line ``spark-train``.

Commands are thin: options are the fields of a request to the library
(``training_request.py``). Only modules of the called command are imported, so that
``--help`` answers at once.

A new command is a function here: its parameters are the options, and its docstring is
the help. It also needs entries in :data:`TRAIN_COMMANDS` and :data:`TRAIN_EXAMPLES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.types import PositiveInt
from cyclopts.validators import Number

from spark_audit import options
from spark_audit.checkpoints.typed_paths import check_typed_paths
from spark_audit.checkpoints.untrusted import quiet as silence
from spark_audit.errors import InputError
from spark_audit.messages import say
from spark_audit.terminal import flags
from spark_audit.terminal.console import run_command, show_facts, show_table, tell
from spark_train.kept_work import keeps_nothing
from spark_train.training_request import (
    Base,
    RelearnRequest,
    StudentLoading,
    TrainRequest,
)

TRAIN_PROGRAM = "spark-train"

ACCURACY_NAMES = {"last": "Last", "avg": "Avg", "bwt": "BWT"}
"""Metric of the accuracy matrix (``stats/accuracy.py``) -> its name in the output."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code (never raises)."""
    return run_command(
        arguments,
        program=TRAIN_PROGRAM,
        app=command_app,
        keeps_nothing=keeps_nothing,
    )


def command_app(argv: Sequence[str]) -> App:
    """Return the program with its commands."""
    app = flags.program(
        TRAIN_PROGRAM,
        argv,
        help="Fine-tune a language model on a sequence of tasks, with or without "
        "privacy correction.",
        check=check_typed_paths,
    )
    for name, function in TRAIN_COMMANDS.items():
        examples = [f"{TRAIN_PROGRAM} {example}" for example in TRAIN_EXAMPLES[name]]
        flags.add(app, name, function, examples=examples)
    return app


def train_run(
    *,
    request: TrainRequest,
    loading: StudentLoading = StudentLoading(),
    typed: flags.TypedLine,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Learn the tasks of an order one after the other; the same command resumes."""
    from spark_audit.messages import progress

    # Imported libraries print messages of their own.
    with silence():
        from spark_train.processes import assemble, rank
        from spark_train.training_run import train

    loading = replace(loading, device=assemble(loading.device))
    request = replace(request, loading=loading, command=typed.words)
    if rank():
        # All processes meet the same error, and only the first reports it.
        try:
            train(request)
        except InputError as error:
            raise SystemExit(error.exit_code) from None
        return

    with progress(quiet=quiet) as update:
        record = train(request, progress=update, note=say)

    figures = _figures(record.accuracy)
    if json:
        # Settings are left out, because they contain the seed of DP-SGD.
        facts = record.model_dump(include={"tasks", "accuracy", "notes", "privacy"})
        show_facts({"run": str(request.output), **facts, **figures}, as_json=True)
        return
    if record.accuracy:
        _show_accuracy(record.tasks, record.accuracy, figures)
        tell()
    show_facts({"run": request.output})


def _show_accuracy(
    tasks: Sequence[str],
    matrix: Sequence[Sequence[float | None]],
    figures: Mapping[str, float | None],
) -> None:
    """Show the accuracy on each task after each stage, and the figures below.

    Parameters
    ----------
    matrix
        ``matrix[stage][task]``; None: not measured.
    figures
        Figures by metric; None: not estimable.
    """
    # Methods that learn all tasks at once have a single stage.
    stage_names = ["all"] if len(matrix) < len(tasks) else tasks
    rows = []
    for name, accuracies in zip(stage_names, matrix, strict=False):
        rows.append((name, *[_cell(value) for value in accuracies]))

    remarks = []
    for metric, figure in figures.items():
        if figure is not None:
            remarks.append(f"{ACCURACY_NAMES[metric]} {figure:.3f}")
    show_table("accuracy", ("after", *tasks), rows, remarks=remarks)


def _figures(matrix: Sequence[Sequence[float | None]]) -> dict[str, float | None]:
    """Return Last, Avg and BWT of an accuracy matrix, by name.

    A figure is ``None`` if an accuracy that it needs was not measured.
    """
    import numpy as np

    from spark_audit.stats.accuracy import ACCURACY_METRICS, reason_against

    figures: dict[str, float | None] = dict.fromkeys(ACCURACY_NAMES)
    # None becomes NaN.
    table = np.array(matrix, dtype=np.float64)  # (stages, tasks)
    if not table.size:
        return figures

    stages, tasks = table.shape
    for name in ACCURACY_NAMES:
        if reason_against(name, stages=stages, tasks=tasks) is None:
            value = float(ACCURACY_METRICS[name](table))
            figures[name] = value if np.isfinite(value) else None
    return figures


def methods(*, json: options.Json = False) -> None:
    """Methods, privacy options and their settings, with defaults and sources.

    Settings without a dot in their name are every method's; each privacy option goes
    with every method.
    """
    from spark_train.training_settings import describe, describe_fixed

    with silence():
        from spark_train import method_summaries

    def described(summary: method_summaries.MethodSummary) -> dict[str, object]:
        """Return the row of a method or an option."""
        return {
            "name": summary.name,
            "what it does": summary.summary,
            "settings": list(summary.groups),
        }

    method_rows = []
    for summary in method_summaries.methods():
        method_rows.append(described(summary))
    privacy_rows = []
    for summary in method_summaries.privacy_options():
        privacy_rows.append(described(summary))
    tables: dict[str, Sequence[Mapping[str, object]]] = {
        "methods": method_rows,
        "privacy": privacy_rows,
        "settings": describe(),
        "fixed": describe_fixed(),
    }
    if json:
        show_facts(tables, as_json=True)
        return

    # The rows of a table have the same keys, which are its header.
    for title, rows in tables.items():
        rows_of_texts = []
        for row in rows:
            texts = []
            for value in row.values():
                if isinstance(value, list):
                    texts.append(", ".join(value))
                else:
                    texts.append(str(value))
            rows_of_texts.append(texts)
        show_table(title, [*rows[0]], rows_of_texts, figures=False)


def relearn(
    ckpt: str,
    /,
    *,
    request: RelearnRequest,
    loading: StudentLoading = StudentLoading(),
    lora_alpha: options.LoraAlpha = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """A short fine-tune without identifiers, to see whether suppression lasts.

    An adapter is trained on and stays one; full weights stay full weights.

    Parameters
    ----------
    ckpt
        Checkpoint to continue from.
    """
    from spark_audit.messages import progress

    with silence():
        from spark_train.relearn import relearn as relearned

    loading = replace(loading, lora_alpha=lora_alpha)
    request = replace(request, ckpt=ckpt, loading=loading)
    with progress(quiet=quiet) as update:
        record = relearned(request, progress=update)

    rows = record["rows"]
    losses = record["losses"]
    facts: dict[str, object] = {"checkpoint": str(request.output)}
    if json:
        facts["rows"] = rows
        facts["losses"] = losses
    else:
        facts["rows without identifiers"] = rows["used"]
        for reason, n_rows in rows["left_out"].items():
            facts[f"rows left out, {reason}"] = n_rows
        facts["loss, first step"] = f"{losses[0]:.3f}"
        facts["loss, last step"] = f"{losses[-1]:.3f}"
    show_facts(facts, as_json=json)


def score(
    data: tuple[Path, ...],
    /,
    *,
    base: Base,
    ckpt: Annotated[str | None, Parameter(metavar="PATH")] = None,
    alpha: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] = 0.5,
    limit: PositiveInt = 5,
    show_text: options.ShowText = False,
    loading: StudentLoading = StudentLoading(),
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Tokens with their sensitivity scores; identifiers only with --show-text.

    Without it, [NAME], [EMAIL] and so on stand for each token of what is annotated in
    the data or found by the rules, and a row's figures end before the first of them:
    with the model, those behind it tell what it is. Plain text is shown, and with it
    identifiers that neither annotations nor rules know.

    Parameters
    ----------
    data
        JSONL of `spark-audit data`; its train rows.
    ckpt
        Checkpoint to score; default: the base.
    alpha
        Weight of the NLL relative to how a token distinguishes tasks.
    limit
        Examples to print.
    """
    from spark_audit.data.examples import data_files, read_examples
    from spark_audit.messages import progress

    examples = read_examples(*data_files(data))
    with silence():
        from spark_audit.checkpoints.open import open_checkpoint
        from spark_train.scored_examples import score_examples

    # Without a checkpoint, the base itself is scored.
    if ckpt:
        loaded = open_checkpoint(ckpt, replace(loading, base=base))
    else:
        loaded = open_checkpoint(base, replace(loading, base=None), name="base")
    with progress(quiet=quiet) as update:
        rows = score_examples(
            examples,
            loaded,
            alpha=alpha,
            limit=limit,
            show_text=show_text,
            progress=lambda done, total: update("scoring", done, total),
        )
    if json:
        show_facts({"examples": rows}, as_json=True)
        return

    # A table for each row of the data, with a line for each of its tokens.
    for row in rows:
        tokens = row["tokens"]
        lines = []
        for token in tokens:
            lines.append([_cell(value) for value in token.values()])
        show_table(f"{row['example']} ({row['task']})", list(tokens[0]), lines)


def _cell(value: object) -> str:
    """Return the text of a table's cell."""
    if isinstance(value, float):
        return f"{value:.3f}"
    # Line breaks and blanks of a token stay visible.
    return "-" if value is None else str(value).replace("\n", "\\n")


TRAIN_COMMANDS: Mapping[str, Callable[..., None]] = {
    "run": train_run,
    "methods": methods,
    "relearn": relearn,
    "score": score,
}

TRAIN_EXAMPLES: Mapping[str, tuple[str, ...]] = {
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
"""Examples of ``--help`` by command, which work as they are."""
