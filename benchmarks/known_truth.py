"""The audits audited: claims on tiny models of which the truth is known.

``python benchmarks/known_truth.py --seeds 0:20 --jobs 2`` makes the models of each
scenario anew for each seed (``known_truth_models.py``), runs the real commands on them
and counts what reports claim, the states that they show and the exit codes of ``gate``.
A finished (seed, scenario) is a line of ``known_truth.jsonl``; the same command resumes
where it was interrupted. ``--table`` only prints the tables of what there is.

With ``--keep FOLDER`` models and scores stay: the same command with another ``--out``
then builds manifests and concludes again, and scores only what is not there.

Identifiers are injected in even seeds, with canaries; in odd seeds they are annotated
only, and there are no canaries. Limits are exact (Clopper and Pearson), one-sided 95%.

===============================  =======================================================
File                             What stands there
===============================  =======================================================
``known_truth_scenarios``        Scenarios: checkpoints, set-ups, and what is true.
``known_truth_models``           How checkpoints are made; ``known_truth_rows`` of what.
``known_truth_measurement``      What plain torch measures of them.
``known_truth_lines``            The finished lines, one a scenario and seed.
``known_truth_claim_counts``     How often which claim was made, by scenario.
``known_truth_outcome_counts``   How often which state was shown and which guard failed.
``known_truth_table``            The tables of these counts.
===============================  =======================================================
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from command_line import (
    benchmark_parser,
    check_finished_lines,
    ignore_interrupts,
    positive_number,
    regular_expression,
    run_benchmark,
    seed_list,
)
from finished_lines import Line, append, read
from known_truth_lines import refused_fields
from known_truth_measurement import make_and_measure
from known_truth_scenarios import GROUPS, GUARDS, SCENARIOS, Group, Scenario
from known_truth_table import markdown

HERE = Path(__file__).parent

OPTIONS_OF_ALL = (
    "--no-rematched",
    "--placebo-draws",
    "0",
    "--skip",
    "rank",
    "noise",
    "stages",
    "utility",
)
"""Options of ``all``: audits and tables that no claim here rests on are left out."""

FIELDS_OF_LINE = ("seed", "scenario", "claims", "guards", "truth")
"""What tells a line from those of other benchmarks."""

FIELDS_OF_FINDING = (
    "audit",
    "claim",
    "alone",
    "metric",
    "variant",
    "group",
    "p",
    "p_adjusted",
)
"""What a line keeps of each finding."""


class Audited(NamedTuple):
    """The report of a group of checkpoints, and those that ``gate`` stops."""

    report: Any
    stopped: frozenset[str]


def run_seed(
    seed: int, keep: Path | None, lines_path: Path, names: Sequence[str], size: str
) -> None:
    """Make and audit what is still missing of a seed, one group after the other.

    Parameters
    ----------
    keep
        A folder that keeps models and scores; None: nothing is kept.
    lines_path
        The file of finished lines, which is appended to.
    names
        Names of the scenarios that are wanted.
    """
    # Each seed has a process of its own, which imports these.
    import torch
    from known_truth_models import Lab
    from known_truth_rows import SIZES
    from transformers.utils import logging

    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    torch.set_num_threads(1)

    lines = read(lines_path, *FIELDS_OF_LINE)
    finished = {line["scenario"] for line in lines if line["seed"] == seed}
    missing = set(names) - finished
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary)
        lab = Lab((keep or out) / f"seed-{seed}", seed, SIZES[size])
        for group in GROUPS:
            scenarios = [item for item in group.scenarios if item.name in missing]
            if not scenarios:
                continue
            for line in make_and_audit_group(lab, group, scenarios, out):
                append(lines_path, line)


def make_and_audit_group(
    lab: Any, group: Group, scenarios: Sequence[Scenario], out: Path
) -> list[Line]:
    """Make and audit checkpoints together, and return a line per scenario.

    ``seconds`` of a line are those of the processor, shared equally by the scenarios.
    """
    start = time.process_time()
    truths = [
        make_and_measure(lab, scenario.checkpoint, group) for scenario in scenarios
    ]
    seconds_of_models = time.process_time() - start

    # The baseline is audited, too.
    checkpoints = [scenario.checkpoint for scenario in scenarios]
    if group.baseline:
        checkpoints.insert(0, group.baseline)

    start = time.process_time()
    audited = None
    refusal = ""
    try:
        audited = audit_checkpoints(lab, group, list(dict.fromkeys(checkpoints)), out)
    except SystemExit as error:
        refusal = str(error)
    seconds_of_audits = time.process_time() - start

    scored_share = _scored_share(audited)
    seconds = {
        "models": seconds_of_models,
        "scores": seconds_of_audits * scored_share,
        "rest": seconds_of_audits * (1 - scored_share),
    }
    lines = []
    for scenario, truth in zip(scenarios, truths, strict=True):
        if audited is None:
            fields = refused_fields(refusal)
        else:
            fields = summarise_checkpoint(
                audited, scenario.checkpoint, name_suffix=group.name_suffix
            )
        lines.append(
            {
                "seed": lab.seed,
                "scenario": scenario.name,
                "annotated": lab.natural,
                **fields,
                "truth": truth,
                "seconds": {
                    part: round(value / len(scenarios), 1)
                    for part, value in seconds.items()
                },
            }
        )
    return lines


def _scored_share(audited: Audited | None) -> float:
    """Return which share of an audit's time was scoring, with what comes before it."""
    if audited is None:
        return 0.0
    timing = audited.report.timing
    scoring = sum(
        seconds
        for part, seconds in timing.items()
        if part.startswith(("loading", "tokenising", "scoring"))
    )
    return float(scoring / max(sum(timing.values()), 1e-9))


def audit_checkpoints(
    lab: Any, group: Group, checkpoints: Sequence[str], out: Path
) -> Audited:
    """Run the real commands on the checkpoints of a group.

    Raises
    ------
    SystemExit
        A command refuses them; the error has its words.
    """
    from known_truth_models import run_command

    import spark_audit as sa
    from spark_audit.cli.main import run as spark_audit

    base = str(lab.path(group.base))
    manifest = _build_manifest(lab, group, out)

    report_folder = out / f"report-{GROUPS.index(group)}"
    command = ["all", "--ckpt", *(f"{name}={lab.path(name)}" for name in checkpoints)]
    command += ["--base", base, "--manifest", str(manifest), "-o", str(report_folder)]
    command += ["--scores", _store(lab), "--format", "json", "--device", "cpu"]
    command += ["--quiet", "--seed", str(lab.seed), "--jobs", "1"]
    command += [*OPTIONS_OF_ALL, *group.flags]
    if group.baseline:
        command += ["--baseline", group.baseline]
    run_command(spark_audit, command)

    # The gate exits with 0 or 1; any other code is an error.
    printed = run_command(
        spark_audit, ["gate", str(report_folder), "--json"], codes=(0, 1)
    )
    stopped = frozenset(
        verdict["checkpoint"]
        for verdict in json.loads(printed)
        if verdict["state"] == "tripped"
    )
    return Audited(sa.read_report(report_folder), stopped)


def _build_manifest(lab: Any, group: Group, out: Path) -> Path:
    """Return the manifest of a group's rows, built once for all groups that have it."""
    from known_truth_models import run_command

    from spark_audit.cli.main import run as spark_audit

    name = "-".join((group.base, *group.sets))
    manifest = out / f"{name}.json"
    if not manifest.exists():
        data = lab.data(name, lab.rows(group.sets))
        command = ["manifest", "build", "--base", str(lab.path(group.base))]
        command += ["--data", str(data), "-o", str(manifest)]
        command += ["--scores", _store(lab), "--device", "cpu", "--quiet"]
        run_command(spark_audit, command)
    return manifest


def _store(lab: Any) -> str:
    """Return the folder of scores that all groups of a seed share."""
    return str(lab.folder / "scores")


def summarise_checkpoint(audited: Audited, original: str, *, name_suffix: str) -> Line:
    """Return findings, figures of memory, state, gate and guards of one checkpoint.

    ``asks``: whether the report asks if its trained rows are those that are listed.

    Parameters
    ----------
    original
        Name of the checkpoint, or of the one that it is a copy of.
    name_suffix
        The end of a copy's name, such as ``+int8``; empty: it is no copy.
    """
    from spark_audit.report.checkpoint_states import checkpoint_states
    from spark_audit.report.gate.judge import NO_CHECKPOINT
    from spark_audit.results.findings import UNUSABLE

    report = audited.report
    name = original + name_suffix
    claims = [
        {field: getattr(finding, field) for field in FIELDS_OF_FINDING}
        for finding in report.findings
        # What a guard voids is no claim, whatever it would have been.
        if finding.checkpoint == name and finding.status not in UNUSABLE
    ]
    memory = {
        row.group: [row.value, row.low, row.high]
        for row in report.results
        if (row.checkpoint, row.metric, row.variant) == (name, "memory", "")
    }

    # Guards of the whole report, of the base, and of the model as it was made.
    failed = {
        guard.name
        for guard in report.guards
        if guard.passed is False and guard.checkpoint in ("", "base", original, name)
    }
    states = {state.name: state for state in checkpoint_states(report)}
    state = states.get(name)

    # What `gate` stops of no checkpoint in particular stops all of them.
    is_stopped = name in audited.stopped or NO_CHECKPOINT in audited.stopped
    return {
        "claims": claims,
        "memory": memory,
        "state": state.state if state else None,
        "gate": int(is_stopped),
        "guards": [guard for guard in GUARDS if guard in failed],
        "asks": bool(state and state.question),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, and print the tables of what there is."""
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument(
        "--seeds", type=seed_list, default="0:20", help="FIRST:END or N,N"
    )
    parser.add_argument("--jobs", type=positive_number, default=1, help="processes")
    parser.add_argument(
        "--scenarios",
        type=regular_expression,
        default="",
        help="regular expression of their names",
    )
    parser.add_argument("--out", type=Path, default=HERE / "known_truth.jsonl")
    parser.add_argument("--size", choices=("full", "small"), default="small")
    parser.add_argument("--keep", type=Path, help="folder that keeps models and scores")
    parser.add_argument("--table", action="store_true", help="only print the tables")
    options = parser.parse_args(arguments)

    names = [name for name in SCENARIOS if options.scenarios.search(name)]
    if not names:
        parser.error("argument --scenarios: no scenario has such a name")
    if options.table:
        check_finished_lines(options.out)
    # Lines of another benchmark are refused before any work.
    read(options.out, *FIELDS_OF_LINE)
    if not options.table:
        tasks = [
            (seed, options.keep, options.out, names, options.size)
            for seed in options.seeds
        ]
        # A fresh process per seed: nothing of one is left to the next.
        context = multiprocessing.get_context("spawn")
        with context.Pool(
            options.jobs, initializer=ignore_interrupts, maxtasksperchild=1
        ) as pool:
            pool.starmap(run_seed, tasks, chunksize=1)

    lines = [
        line for line in read(options.out, *FIELDS_OF_LINE) if line["scenario"] in names
    ]
    print(markdown(lines), end="")
    return 0


if __name__ == "__main__":
    run_benchmark(main, resumes=True)
