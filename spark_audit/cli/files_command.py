"""The command of an audit of files that a model wrote: ``spark-audit generated``.

Files take the place of ``--ckpt``, and options of models are left out. With
``--through`` a second report follows: of the model that was trained on each file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from spark_audit import options
from spark_audit.audits import Generated
from spark_audit.messages import progress as shown_progress
from spark_audit.messages import say
from spark_audit.pipeline.request import Request
from spark_audit.terminal import flags
from spark_audit.terminal.console import tell_json

if TYPE_CHECKING:
    from spark_audit.report.audit_report import AuditReport


def generated(
    files: Annotated[list[str], Parameter(metavar="[NAME=]FILE...")],
    /,
    *,
    manifest: Annotated[
        Path | None, Parameter(metavar="FILE", env_var="SPARK_AUDIT_MANIFEST")
    ] = None,
    output: Annotated[Path | None, Parameter(metavar="DIR", alias="-o")] = None,
    formats: options.Formats = (),
    passage_words: PositiveInt = 10,
    field: Annotated[str | None, Parameter(metavar="COLUMN")] = None,
    through: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    through_steps: PositiveInt | None = None,
    through_lr: float = 1e-3,
    device: Annotated[str, Parameter(env_var="SPARK_AUDIT_DEVICE")] = "auto",
    preset: options.Preset = None,
    seed: options.Seed = 0,
    show_text: options.ShowText = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    typed: flags.TypedLine,
) -> None:
    """Search a file that a model wrote for its training data; needs no model.

    Parameters
    ----------
    files
        Synthetic data, or a replay buffer: JSON lines, CSV, Parquet, or .txt with a
        text per line.
    manifest
        Default: the only one in manifests/.
    output
        Default: reports/<manifest>-<names>.
    passage_words
        Words that a passage has at least, which no row of another source holds.
    field
        The column of text; default: that of a usual name, or all messages.
    through
        Base model: train it on each file, and run all audits on the result, in a second
        report.
    through_steps
        Steps of that training, 8 texts each; default: three times over the file.
    through_lr
        Its peak learning rate.
    device
        Where that model is trained and scored.
    """
    from spark_audit.pipeline.run import run
    from spark_audit.pipeline.through import Through, run_through

    plan = None
    if through is not None:
        plan = Through(base=through, steps=through_steps, lr=through_lr, device=device)
    request = Request(
        audits=(Generated(passage_words=passage_words, field=field),),
        checkpoints=tuple(files),
        manifest=manifest,
        output=output,
        formats=formats,
        preset=preset,
        seed=seed,
        show_text=show_text,
        command=typed.words,
    )
    with shown_progress(quiet=quiet) as update:
        outcome = run(request, progress=update)
    # A report is missing only if other workers share the work; files have none.
    assert outcome.report is not None
    _show(outcome.report, outcome.folder, json=json, verbose=verbose)
    if plan is None:
        return

    with shown_progress(quiet=quiet) as update:
        through_outcome = run_through(
            replace(request, output=outcome.folder), plan, progress=update
        )
    assert through_outcome.report is not None
    say("and of the model that was trained on it:")
    _show(through_outcome.report, through_outcome.folder, json=json, verbose=verbose)


def _show(report: AuditReport, folder: Path, *, json: bool, verbose: bool) -> None:
    """Print a report, and where it is."""
    if json:
        tell_json(report.model_dump(mode="json"))
        return
    from spark_audit.cli.show import say_where, show_report

    show_report(report, verbose=verbose)
    say_where(folder)
