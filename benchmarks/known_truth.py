"""The audits audited: claims on tiny models of which the truth is known.

``python benchmarks/known_truth.py --seeds 0:20 --jobs 2`` makes the models of each
scenario anew for each seed (``known_truth_models.py``), runs the real commands on them
and counts what reports claim, the states that they show and the exit codes of ``gate``.
A finished (seed, scenario) is a line of ``known_truth.jsonl``; the same command resumes
where it was interrupted. ``--table`` prints the table of what there is, in Markdown,
and writes it as JSON next to the lines.

With ``--keep FOLDER`` models and scores stay: the same command with another ``--out``
then builds manifests and concludes again, and scores only what is not there.

Identifiers are injected in even seeds, with canaries; in odd seeds they are annotated
only, and there are no canaries. Limits are exact (Clopper and Pearson), one-sided 95%.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from known_truth_scenarios import GROUPS, GUARDS, SCENARIOS, Group, Scenario
from known_truth_table import append, markdown, read, records

HERE = Path(__file__).parent
FLAGS = (
    *("--no-rematched", "--placebo-draws", "0"),
    *("--skip", "rank", "noise", "stages", "utility"),
)
"""Of ``all``: audits and tables that no claim here rests on are left out."""
REFUSED: dict[str, Any] = {
    "claims": [],
    "memory": {},
    "guards": [],
    "state": "refused",
    "gate": None,
    "asks": False,
}
"""What a line says where a command refused the set-up."""


def run_seed(
    seed: int, keep: Path | None, lines: Path, names: Sequence[str], size: str
) -> None:
    """Make and audit what is still missing of a seed, one group after the other."""
    import torch
    from known_truth_models import Lab
    from known_truth_rows import SIZES
    from transformers.utils import logging

    warnings.simplefilter("ignore")
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    done = {line["scenario"] for line in read(lines) if line["seed"] == seed}
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary)
        lab = Lab((keep or out) / f"seed-{seed}", seed, SIZES[size])
        for group in GROUPS:
            wanted = [
                s for s in group.scenarios if s.name in names and s.name not in done
            ]
            for line in _lines(lab, group, wanted, out) if wanted else ():
                append(lines, line)


def _lines(
    lab: Any, group: Group, wanted: Sequence[Scenario], out: Path
) -> list[dict[str, Any]]:
    """What a group comes to: a line per scenario.

    ``seconds`` are those of the processor, shared equally by the scenarios.
    """
    start = time.process_time()
    truths = [measured(lab, one.checkpoint, group) for one in wanted]
    models = time.process_time() - start
    needed = [*filter(None, [group.baseline]), *(one.checkpoint for one in wanted)]
    report, tripped, refused = None, list[str](), {}
    try:
        report, tripped = audited(lab, group, list(dict.fromkeys(needed)), out)
    except SystemExit as error:
        refused = REFUSED | {"why": str(error)}
    took = time.process_time() - start - models
    timing = {} if report is None else report.timing
    scoring = sum(
        spent
        for part, spent in timing.items()
        if part.startswith(("loading", "tokenising", "scoring"))
    )
    share = scoring / max(sum(timing.values()), 1e-9)
    seconds = {"models": models, "scores": took * share, "rest": took * (1 - share)}
    return [
        {
            "seed": lab.seed,
            "scenario": one.name,
            "annotated": lab.natural,
            **(refused or concluded(report, one.checkpoint, group.last, tripped)),
            "truth": truth,
            "seconds": {k: round(v / len(wanted), 1) for k, v in seconds.items()},
        }
        for one, truth in zip(wanted, truths, strict=True)
    ]


def audited(
    lab: Any, group: Group, checkpoints: Sequence[str], out: Path
) -> tuple[Any, list[str]]:
    """The report of a group's checkpoints, and for which of them ``gate`` exits 1."""
    from known_truth_models import called

    import spark_audit as sa
    from spark_audit.cli.main import run

    base, store = str(lab.path(group.base)), str(lab.folder / "scores")
    name = "-".join((group.base, *group.sets))
    manifest = out / f"{name}.json"
    if not manifest.exists():
        command = ["manifest", "build", "--base", base, "--device", "cpu", "--quiet"]
        data = lab.data(name, lab.rows(group.sets))
        command += ["--data", str(data), "-o", str(manifest)]
        called(run, [*command, "--scores", store])
    folder = out / f"report-{GROUPS.index(group)}"
    command = ["all", "--ckpt", *(f"{c}={lab.path(c)}" for c in checkpoints)]
    command += ["--base", base, "--manifest", str(manifest), "-o", str(folder)]
    command += ["--scores", store, "--format", "json", "--device", "cpu", "--quiet"]
    command += ["--seed", str(lab.seed), "--jobs", "1", *FLAGS, *group.flags]
    called(run, command + (["--baseline", group.baseline] if group.baseline else []))
    verdicts = json.loads(called(run, ["gate", str(folder), "--json"], (0, 1)))
    tripped = [one["checkpoint"] for one in verdicts if one["state"] == "tripped"]
    return sa.read_report(folder), tripped


def concluded(
    report: Any, original: str, rounding: str, tripped: Sequence[str]
) -> dict[str, Any]:
    """Findings, figures of memory, state, gate and guards of one checkpoint.

    ``asks``: whether the report asks if its trained rows are those that are listed.
    """
    from spark_audit.report.checkpoint_states import checkpoint_states
    from spark_audit.results.findings import UNUSABLE

    checkpoint = original + rounding
    fields = (
        "audit",
        "claim",
        "alone",
        "metric",
        "variant",
        "group",
        "p",
        "p_adjusted",
    )
    claims = [
        {name: getattr(finding, name) for name in fields}
        for finding in report.findings
        # What a guard voids is no claim, whatever it would have been.
        if finding.checkpoint == checkpoint and finding.status not in UNUSABLE
    ]
    figures = {
        row.group: [row.value, row.low, row.high]
        for row in report.results
        if (row.checkpoint, row.metric, row.variant) == (checkpoint, "memory", "")
    }
    whose = ("", "base", original, checkpoint)
    failed = {
        guard.name
        for guard in report.guards
        if guard.passed is False and guard.checkpoint in whose
    }
    checkpoint_state = {one.name: one for one in checkpoint_states(report)}.get(
        checkpoint
    )
    return {
        "claims": claims,
        "memory": figures,
        "state": checkpoint_state and checkpoint_state.state,
        "gate": int(bool({checkpoint, "-"} & {*tripped})),
        "guards": [name for name in GUARDS if name in failed],
        "asks": bool(checkpoint_state and checkpoint_state.question),
    }


def measured(lab: Any, name: str, group: Group) -> dict[str, float]:
    """What is true of a checkpoint, by plain torch; kept with the models.

    ``A1``, ``A4`` ...: change of the NLL per token since the base, of identifiers that
    stand in so many trained rows, minus that of held-out ones; ``K``: that of held-out
    ones; ``AUC``: of rows' change, trained ones against others. ``back`` and ``back
    held``: the share of identifiers of trained and held-out rows that greedy decoding
    gives word for word. ``NLL``: mean per token of all rows.
    """
    kept = lab.folder / "truths" / f"{name}-{group.base}-{'-'.join(group.sets)}.json"
    if kept.exists():
        found: dict[str, float] = json.loads(kept.read_text("utf-8"))
        return found
    rows = lab.rows(group.sets)
    now, before = lab.nll(name, rows), lab.nll(group.base, rows)
    moved = [(a - b).tolist() for (a, _), (b, _) in zip(now, before, strict=True)]
    change: dict[str, list[float]] = defaultdict(list)
    back: dict[str, list[bool]] = defaultdict(list)
    trained: Counter[str] = Counter()
    for row, values, (_, hits) in zip(rows, moved, now, strict=True):
        offsets = lab.tokenizer(row.text, return_offsets_mapping=True)
        places = offsets["offset_mapping"][1:]
        for span in row.spans if row.canary is None else ():
            inside = [
                i
                for i, (a, b) in enumerate(places)
                if a < span.end and span.start < b and i < len(values)
            ]
            string = row.text[span.start : span.end]
            change[string].append(fmean(values[i] for i in inside))
            back[string].append(all(bool(hits[i]) for i in inside))
            trained[string] += row.split == "train"
    doses: dict[int, list[float]] = defaultdict(list)
    for string, own in change.items():
        doses[trained[string]].append(fmean(own))
    means = {dose: fmean(doses[dose]) for dose in sorted(doses)}
    truth = {
        f"A{dose}": mean - means.get(0, 0.0) for dose, mean in means.items() if dose
    }
    truth |= {"K": means[0]} if 0 in means else {}
    for key, wanted in (("back", True), ("back held", False)):
        hit = [any(back[s]) for s in back if bool(trained[s]) is wanted]
        truth |= {key: fmean(hit)} if hit else {}
    truth["NLL"] = fmean(v for values, _ in now for v in values.tolist())
    member, other = (
        [fmean(m) for m, row in zip(moved, rows, strict=True) if row.split == split]
        for split in ("train", "test")
    )
    wins = sum((a < b) + 0.5 * (a == b) for a in member for b in other)
    truth |= {"AUC": wins / (len(member) * len(other))} if other else {}
    truth = {key: round(value, 4) for key, value in truth.items()}
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(truth), encoding="utf-8")
    return truth


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:20", help="FIRST:END or N,N")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--scenarios", default="", help="regular expression")
    parser.add_argument("--out", type=Path, default=HERE / "known_truth.jsonl")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--keep", type=Path, help="folder that keeps models and scores")
    parser.add_argument("--table", action="store_true", help="only print the table")
    options = parser.parse_args(arguments)
    names = [name for name in SCENARIOS if re.search(options.scenarios, name)]
    if not options.table:
        first, colon, end = options.seeds.partition(":")
        seeds = (
            range(int(first), int(end))
            if colon
            else map(int, filter(None, first.split(",")))
        )
        given = (options.keep, options.out, names, options.size)
        # A fresh process per seed: nothing of one is left to the next.
        context = multiprocessing.get_context("spawn")
        with context.Pool(options.jobs, maxtasksperchild=1) as pool:
            pool.starmap(run_seed, [(seed, *given) for seed in seeds], chunksize=1)
    lines = [line for line in read(options.out) if line["scenario"] in names]
    text = json.dumps(records(lines), indent=1) + "\n"
    options.out.with_suffix(".json").write_text(text, encoding="utf-8")
    print(markdown(lines), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
