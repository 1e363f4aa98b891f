"""``spark-audit inspect`` and ``spark-audit demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import CheckpointError
from spark_audit.terminal.console import show_facts
from spark_audit.terminal.flags import (
    Json,
    Quiet,
    Seed,
    Verbose,
    hidden,
)


@hidden("trust_remote_code", "quantize", "model", "agree")
class Opened(Loading):
    """How a checkpoint is opened to be looked at."""


def inspect(
    ckpt: str,
    /,
    *,
    base: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    loading: Opened = Opened(),
    json: Json = False,
) -> None:
    """Report the type of a checkpoint and whether it would load; no scoring.

    Parameters
    ----------
    ckpt
        Checkpoint to inspect.
    base
        Base model of adapters; audited as 'base'.
    """
    from spark_audit.checkpoints.inspection import inspect_checkpoint

    seen = inspect_checkpoint(ckpt, loading, base=base)
    facts: dict[str, Any] = {
        "source": seen.source,
        "format": seen.format or "unknown",
        **seen.facts,
    }
    if seen.stages:
        facts["stages"] = ", ".join(seen.stages)
    for number, note in enumerate(seen.notes, start=1):
        facts[f"note {number}"] = note
    # Of what is large headers are read: NaN, or no effect, shows on opening only.
    would = "yes" if seen.opened else "yes, by its headers"
    facts["would load"] = "no" if seen.problems else would
    show_facts(facts, as_json=json)
    if seen.problems:
        raise CheckpointError("; ".join(seen.problems))


def demo(
    *,
    output: Annotated[Path, Parameter(metavar="DIR", alias="-o")] = Path(
        "reports/demo-run"
    ),
    seed: Seed = 0,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """A complete small example, offline: data, base, five runs, manifest, all audits.

    Interrupted, the same command resumes.

    Parameters
    ----------
    output
        Report folder.
    """
    from spark_audit.cli.show import say_where, show_report
    from spark_audit.demo.demo import run_demo
    from spark_audit.terminal.progress import progress

    with progress(quiet=quiet) as show:
        outcome = run_demo(output, seed=seed, progress=show)
    assert outcome.report is not None
    show_report(outcome.report, verbose=verbose)
    say_where(outcome.folder)
