"""``spark-train``: the command line.

Commands are thin: each turns its flags into one call of the library. Only what is
called gets imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_audit.errors import InputError, SparkError
from spark_audit.terminal.console import (
    keep_apart,
    root,
    run_command,
    say,
    show_facts,
    show_table,
    tell,
)
from spark_audit.terminal.flags import (
    Json,
    LoraAlpha,
    Quiet,
    Revision,
    Tokenizer,
    TrustRemoteCode,
    command,
    one_of,
)

if TYPE_CHECKING:
    from spark_train.run import Outcome
    from spark_train.token_scores.shown import Inspected

PROGRAM = "spark-train"
SEVERAL = ("--data", "--set", "--lora-targets")
"""Options that accept both ``--x A B`` and ``--x A --x B``."""
DTYPES = ("float32", "bfloat16")
FIGURES = ("last", "avg", "bwt")
"""What a run's end tells of its accuracy matrix."""

Base = Annotated[
    str, typer.Option(metavar="MODEL", help="Base model: a folder or hf:ORG/NAME.")
]
Device = Annotated[
    str, typer.Option(metavar="auto|cpu|cuda|cuda:N", help="Where to compute.")
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="float32|bfloat16", help="Of the base; what is trained is float32."
    ),
]
LoraTargets = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME...", help="Layers with LoRA; default: q, k, v and o."),
]


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code (never raises)."""
    return run_command(
        arguments,
        program=PROGRAM,
        app=lambda _: _app(),
        several=SEVERAL,
        anew=("relearn", "score"),
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
    app.command("run")(train_run)
    app.command("methods")(methods)
    app.command("relearn")(relearn)
    app.command("score")(score)
    return app


# --- run ------------------------------------------------------------------------------


@command
def train_run(
    context: typer.Context,
    method: Annotated[
        str, typer.Option(metavar="NAME", help="One of `spark-train methods`.")
    ],
    base: Base,
    data: Annotated[
        list[Path],
        typer.Option(metavar="DIR|DATA...", help="JSONL of `spark-audit data`."),
    ],
    order: Annotated[
        str,
        typer.Option(
            metavar="1|t1,t2,...", help="A numbered order, or the tasks as they come."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Run folder.")
    ],
    dp: Annotated[
        str,
        typer.Option(
            metavar="none|dpsgd|fn", help="Privacy option, beside any method."
        ),
    ] = "none",
    set: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE...", help="Settings that differ."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of everything random.")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    gradient_checkpointing: Annotated[
        bool,
        typer.Option(
            "--gradient-checkpointing",
            help="Compute the forward pass twice and keep less of it in memory.",
        ),
    ] = False,
    lora_targets: LoraTargets = None,
    tokenizer: Tokenizer = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn the tasks of an order one after the other; the same command resumes."""
    _check(device, dtype)
    _one_seed(seed, set or ())
    from spark_audit.checkpoints.offline import quiet as silence
    from spark_audit.terminal.progress import progress

    with silence():  # what is imported has things to say of its own
        from spark_train.distributed import ElsewhereError
        from spark_train.run import train

    note = _Notes()
    with progress(quiet=quiet or not _first()) as show, _one_voice(ElsewhereError):
        outcome = train(
            method=method,
            base=base,
            data=data,
            order=order,
            output=output,
            dp=dp,
            settings=tuple(set or ()),
            seed=seed,
            device=device,
            dtype=dtype,
            gradient_checkpointing=gradient_checkpointing,
            lora_targets=_names(lora_targets),
            loading={
                "tokenizer": tokenizer,
                "revision": revision,
                "trust_remote_code": trust_remote_code,
            },
            command=(PROGRAM, *context.obj),
            progress=show,
            note=note,
        )
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
            ("all" if at_once else outcome.tasks[i], *map(_share, accuracies))
            for i, accuracies in enumerate(outcome.matrix)
        ]
        known = {name: value for name, value in figures.items() if value is not None}
        show_table(
            "accuracy",
            ("after", *outcome.tasks),
            rows,
            remarks=[f"{_TITLES[name]} {value:.3f}" for name, value in known.items()],
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


_TITLES = {"last": "Last", "avg": "Avg", "bwt": "BWT"}


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _figures(matrix: Sequence[Sequence[float | None]]) -> dict[str, float | None]:
    """Last, Avg and BWT, ``None`` where an accuracy that they need was not measured."""
    import numpy as np

    from spark_audit.stats.accuracy import METRICS, reason_against

    found: dict[str, float | None] = dict.fromkeys(FIGURES)
    table = np.array(matrix, dtype=np.float64)  # None becomes NaN
    if table.ndim != 2 or not table.size:
        return found
    stages, tasks = table.shape
    for name in FIGURES:
        if reason_against(name, stages=stages, tasks=tasks) is None:
            value = float(METRICS[name](table))
            found[name] = value if np.isfinite(value) else None
    return found


# --- methods --------------------------------------------------------------------------


@command
def methods(json: Json = False) -> None:
    """Methods, privacy options and their settings, with defaults and sources."""
    from spark_audit.checkpoints.offline import quiet as silence
    from spark_train.settings import describe

    with silence():
        from spark_train.methods import METHODS, groups
        from spark_train.privacy import PRIVACY
        from spark_train.privacy import groups as privacy_groups

        found: list[dict[str, Any]] = [
            {
                "name": name,
                "summary": METHODS.summary(name),
                "reads": list(groups(name)),
            }
            for name in METHODS.names()
        ]
        options: list[dict[str, Any]] = [
            {
                "name": name,
                "summary": PRIVACY.summary(name),
                "reads": list(privacy_groups(name)),
            }
            for name in PRIVACY.names()
        ]
    settings = describe()
    if json:
        told = {"methods": found, "privacy": options, "settings": settings}
        show_facts(told, as_json=True)
        return
    show_table(
        "methods",
        ("name", "what it does", "settings"),
        [(m["name"], m["summary"], ", ".join(m["reads"])) for m in found],
        figures=False,
    )
    show_table(
        "privacy options",
        ("--dp", "what it does", "settings"),
        [(o["name"], o["summary"], ", ".join(o["reads"])) for o in options],
        remarks=["Each goes with every method."],
        figures=False,
    )
    show_table(
        "settings",
        ("name", "default", "meaning", "source"),
        [(s["name"], s["default"], s["meaning"], s["source"]) for s in settings],
        remarks=["Settings without a dot in their name are every method's."],
        figures=False,
    )


# --- relearn --------------------------------------------------------------------------


@command
def relearn(
    ckpt: Annotated[str, typer.Argument(help="Checkpoint to go on from.")],
    data: Annotated[
        list[Path],
        typer.Option(metavar="DATA...", help="JSONL of `spark-audit data`."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder of the new checkpoint."
        ),
    ],
    base: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Default: the base an adapter names."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the optimizer.")] = 50,
    lr: Annotated[float, typer.Option(help="Peak of the learning rate.")] = 5e-4,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows a step.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    device: Device = "auto",
    dtype: Dtype = "float32",
    lora_targets: LoraTargets = None,
    lora_alpha: LoraAlpha = None,
    tokenizer: Tokenizer = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """A short fine-tune without identifiers, to see whether suppression lasts.

    An adapter is trained on and stays one; full weights stay full weights.
    """
    _check(device, dtype)
    from spark_audit.checkpoints.offline import quiet as silence
    from spark_audit.terminal.progress import progress

    with silence():
        from spark_train.distributed import ElsewhereError
        from spark_train.relearn import relearn as relearned

    note = _Notes()
    with progress(quiet=quiet or not _first()) as show, _one_voice(ElsewhereError):
        found = relearned(
            ckpt=ckpt,
            base=base,
            data=data,
            output=output,
            steps=steps,
            lr=lr,
            batch_size=batch_size,
            seed=seed,
            device=device,
            dtype=dtype,
            lora_targets=_names(lora_targets),
            lora_alpha=lora_alpha,
            tokenizer=tokenizer,
            revision=revision,
            trust_remote_code=trust_remote_code,
            progress=show,
            note=note,
        )
    if not _first():
        return
    if json:
        told = {
            "checkpoint": str(found.folder),
            "rows": found.rows,
            "left_out": found.left_out,
            "losses": list(found.losses),
        }
        show_facts(told, as_json=True)
        return
    show_facts(
        {
            "rows without identifiers": found.rows,
            **{f"rows left out, {why}": n for why, n in found.left_out.items()},
            "loss, first step": f"{found.losses[0]:.3f}",
            "loss, last step": f"{found.losses[-1]:.3f}",
            "checkpoint": found.folder,
        }
    )


# --- score ----------------------------------------------------------------------------


@command
def score(
    data: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR|DATA...", help="JSONL of `spark-audit data`; its train rows."
        ),
    ],
    base: Base,
    ckpt: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Checkpoint to score; default: the base."),
    ] = None,
    alpha: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Weight of the NLL beside how a token tells tasks apart."
        ),
    ] = 0.5,
    limit: Annotated[int, typer.Option(min=1, help="Examples to print.")] = 5,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Parquet with all rows."),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    tokenizer: Tokenizer = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    show_text: Annotated[
        bool, typer.Option("--show-text", help="Show the text of identifiers, too.")
    ] = False,
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
    _check(device, dtype)
    from spark_audit.checkpoints.offline import quiet as silence
    from spark_audit.data.examples import data_files, read_examples
    from spark_audit.files import check_writable
    from spark_audit.terminal.progress import progress

    files = data_files(data)
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

    loaded = open_checkpoint(
        ckpt or base,
        base=base if ckpt else None,
        name=None if ckpt else "base",
        device=device,
        dtype=dtype,
        tokenizer=tokenizer,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    with progress(quiet=quiet) as show:
        found = score_examples(
            examples,
            loaded,
            alpha=alpha,
            limit=limit if output is None else None,
            progress=lambda done, total: show("scoring", done, total),
        )
    if output is not None:
        write_scores(output, [one.row for one in found], [one.score for one in found])
    told = [
        _tokens(one, loaded.tokenizer, show_text=show_text) for one in found[:limit]
    ]
    if json:
        show_facts({"examples": told}, as_json=True)
        return
    for one, tokens in zip(found, told, strict=False):
        show_table(
            f"{one.row.id} ({one.row.task})",
            list(tokens["tokens"][0]),
            [[_cell(value) for value in token.values()] for token in tokens["tokens"]],
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


def _tokens(one: Inspected, tokenizer: Any, *, show_text: bool) -> dict[str, Any]:
    """A row as records; identifiers by their type, unless their text is asked for."""
    row = one.row
    # A figure depends on all that stands before its token, and the one beside what is
    # hidden may on how it is cut: there the figures end.
    hidden = [t for t, type in enumerate(one.hidden) if type and not show_text]
    told = min(hidden) - 1 if hidden else len(row)
    records = []
    for t in range(len(row)):
        # In the order of precedence.
        kinds = (
            ("special", t in row.special),
            ("pii", row.pii[t]),
            ("template or stop word", row.fixed[t]),
            ("response", row.response[t]),
            ("text", True),
        )
        type = None if show_text else one.hidden[t]
        records.append(
            {
                "position": t,
                "text": f"[{type}]" if type else tokenizer.decode([int(row.ids[t])]),
                "kind": next(kind for kind, holds in kinds if holds),
                "nll": float(one.nll[t - 1]) if 0 < t < told else None,
                "score": float(one.score[t]) if t < told else None,
            }
        )
    return {"example": row.id, "task": row.task, "tokens": records}


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    # Line breaks and blanks of a token stay visible.
    return "-" if value is None else str(value).replace("\n", "\\n")


# --- odds and ends --------------------------------------------------------------------


class _Notes:
    """Warnings as plain lines on stderr, each once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, text: str) -> None:
        if text not in self._said and _first():
            say(text)
        self._said.add(text)


def _first() -> bool:
    """Whether this is the process of a launch that prints."""
    several = os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1")
    return not several or os.environ.get("RANK", "0") == "0"


def _check(device: str, dtype: str) -> None:
    one_of(dtype, "--dtype", DTYPES)
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise InputError(
            f"{device!r} is unknown",
            where="--device",
            fix="give auto, cpu, cuda or cuda:N",
        )


def _one_seed(seed: int | None, settings: Sequence[str]) -> None:
    """Refuse two seeds: one of them would be dropped in silence."""
    for text in settings:
        name, _, value = (part.strip() for part in text.partition("="))
        if seed is not None and name == "seed" and value != str(seed):
            raise InputError(
                f"is {seed}, and --set gives the seed {value}",
                where="--seed",
                fix="give one of them",
            )


@contextmanager
def _one_voice(elsewhere: type[SparkError]) -> Iterator[None]:
    """Leave without a word where another process tells what was wrong."""
    try:
        yield
    except elsewhere as error:
        if _first():
            raise
        raise typer.Exit(error.exit_code) from None


def _names(given: Sequence[str] | None) -> tuple[str, ...]:
    """Names, with blanks or commas between them; a set, so in one order."""
    parts = {part.strip() for text in given or () for part in text.split(",")}
    return tuple(sorted(parts - {""}))
