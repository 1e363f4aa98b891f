"""The audits audited: claims on tiny models of which the truth is known.

``python benchmarks/known_truth.py --seeds 0:20 --jobs 2`` makes the models of each
scenario anew for each seed (``known_truth_models.py``), runs the real commands on them
and counts what reports claim. A finished (seed, scenario) is a line of
``known_truth.jsonl``; the same command goes on where it was interrupted. ``--table``
prints the table of what there is, in Markdown, and writes it as JSON beside the lines.

Identifiers are injected in even seeds, with canaries; in odd seeds they are annotated
only, and there are no canaries. Limits are exact (Clopper and Pearson), one-sided 95%.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy.stats import beta

HERE = Path(__file__).parent
CLAIMS = {
    "memory": ("memory", "verbatim"),
    "membership": ("membership",),
    "suppressed where trained": ("betrays",),
    "suppressed kind": ("suppressed_kind",),
    "formats": ("formats",),
}
"""Families of claims, and the claims of findings in each."""
DETECTIONS = tuple(list(CLAIMS)[:4])
FLAGS = ("--no-rematched", "--sigmas", "0.05", "--draws", "1")
"""Of ``all``: tables that no claim rests on are left out."""
NONE = dict.fromkeys(DETECTIONS, False)
NO_IDENTIFIER = {name: False for name in DETECTIONS if name != "membership"}
MEMORY = {
    "memory": True,
    "memory, dose 4": True,
    "memory, dose 16": True,
    "membership": True,
    "suppressed where trained": False,
    "suppressed kind": False,
}
RETURNED = {"memory": True}
LESS = {"less memory": True}
BETRAYS = {"suppressed where trained": True, "memory": False}


@dataclass(frozen=True)
class Scenario:
    """A checkpoint and what is true of it; claims that are not named are only counted.

    ``truth``: family -> whether the claim must be made (True) or must not be (False).
    """

    name: str
    checkpoint: str
    truth: dict[str, bool]


@dataclass(frozen=True)
class Group:
    """Scenarios that one command audits together, over one manifest."""

    scenarios: tuple[Scenario, ...]
    sets: tuple[str, str] = ("member", "other")
    baseline: str = ""
    flags: tuple[str, ...] = ()
    last: str = ""


def _last_four(kind: str, name: str, **more: Any) -> Group:
    truths = {"full": MEMORY, "corrected": {}, "over": BETRAYS, "relearned": RETURNED}
    form = f"{kind}-of-{{}}" if kind else "{}"
    return Group(
        tuple(
            Scenario(f"{TITLES[of]}, {name}", form.format(of), truth)
            for of, truth in truths.items()
        ),
        baseline=form.format("full"),
        **more,
    )


TITLES = {
    "full": "full text, doses 1, 4, 16",
    "corrected": "the same after SPARK's correction",
    "over": "after over-correction of trained strings",
    "relearned": "corrected, after relearning",
}
GROUPS = (
    Group(
        (
            Scenario("untouched base", "untouched", NONE),
            Scenario("final norm divided by up to 2", "scaled-of-down", NONE),
            Scenario("final norm times up to 2", "scaled-of-up", NONE),
            Scenario("weights with noise", "noisy", NONE),
            Scenario("continued on unrelated text", "unrelated", NONE),
            Scenario("all candidates tied", "collapsed", NONE),
            Scenario(
                "full text, audited on rows it never saw",
                "foreign",
                NONE | {"formats": True},
            ),
        ),
    ),
    Group(
        (
            Scenario("labels only", "labels", NO_IDENTIFIER),
            Scenario("labels only, another rate", "labels_rate", NO_IDENTIFIER),
            Scenario("labels only, fewer epochs", "labels_epochs", NO_IDENTIFIER),
            Scenario("labels only, another seed", "labels_seed", NO_IDENTIFIER),
        ),
        baseline="labels",
    ),
    Group(
        (Scenario("members of another topic, trained on third rows", "topics", NONE),),
        sets=("first", "second"),
    ),
    Group(
        (
            Scenario(
                "rows repeated, identifiers out of the loss",
                "rows",
                # Its baseline learned identifiers: that they are less likely is true.
                {"memory": False, "membership": True},
            ),
            Scenario(TITLES["full"], "full", MEMORY),
            Scenario(TITLES["corrected"], "corrected", LESS),
            Scenario(TITLES["over"], "over", BETRAYS),
            Scenario(TITLES["relearned"], "relearned", RETURNED),
        ),
        baseline="full",
    ),
    _last_four("merged", "merged bfloat16"),
    _last_four("", "int8", flags=("--quantize", "int8"), last="+int8"),
    _last_four("stacked", "adapter on adapter"),
)
SCENARIOS = {s.name: s for group in GROUPS for s in group.scenarios}


# --- one seed -------------------------------------------------------------------------


def run_seed(
    seed: int, work: Path, lines: Path, names: Sequence[str], size: str
) -> None:
    """Make and audit what is still missing of a seed, a group after the other."""
    import torch
    from known_truth_models import Lab
    from known_truth_rows import SIZES
    from transformers.utils import logging

    warnings.simplefilter("ignore")
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    lab = Lab(work / f"seed-{seed}", seed, SIZES[size])
    done = {line["scenario"] for line in read(lines) if line["seed"] == seed}
    for group in GROUPS:
        wanted = [s for s in group.scenarios if s.name in names and s.name not in done]
        if not wanted:
            continue
        start = time.perf_counter()
        report = audited(lab, group, wanted)
        seconds = (time.perf_counter() - start) / len(wanted)
        for scenario in wanted:
            line = {"seed": seed, "scenario": scenario.name, "annotated": lab.natural}
            line |= claimed(report, scenario.checkpoint + group.last)
            line["truth"] = measured(lab, scenario.checkpoint, group.sets)
            append(lines, line | {"seconds": round(seconds, 1)})
    shutil.rmtree(lab.folder)


def audited(lab: Any, group: Group, wanted: Sequence[Scenario]) -> Any:
    """The report of a group's checkpoints, by the real commands."""
    from known_truth_models import called

    import spark_audit as sa
    from spark_audit.cli.main import run

    base, store = str(lab.path("base")), str(lab.folder / "scores")
    name = "-".join(group.sets)
    manifest = lab.folder / f"{name}.json"
    if not manifest.exists():
        rows = [row for part in group.sets for row in lab.sets[part]]
        command = ["manifest", "build", "--base", base, "--device", "cpu", "--quiet"]
        command += ["--data", str(lab.data(name, rows)), "-o", str(manifest)]
        called(run, [*command, "--scores", store])
    needed = [*filter(None, [group.baseline]), *(s.checkpoint for s in wanted)]
    checkpoints = list(dict.fromkeys(needed))
    out = lab.folder / f"report-{GROUPS.index(group)}"
    command = ["all", "--ckpt", *(f"{c}={lab.path(c)}" for c in checkpoints)]
    command += ["--base", base, "--manifest", str(manifest), "-o", str(out)]
    command += ["--scores", store, "--format", "json", "--device", "cpu", "--quiet"]
    command += ["--seed", str(lab.seed), *FLAGS, *group.flags]
    called(run, command + (["--baseline", group.baseline] if group.baseline else []))
    return sa.read_report(out)


def claimed(report: Any, checkpoint: str) -> dict[str, Any]:
    """Findings and figures of memory of one checkpoint, as plain data."""
    fields = ("audit", "claim", "alone", "metric", "of", "group", "p", "p_adjusted")
    claims = [
        {name: getattr(finding, name, None) for name in fields}
        for finding in report.findings
        if finding.checkpoint == checkpoint
    ]
    figures = {
        row.group: [row.value, row.low, row.high]
        for row in report.results
        if (row.checkpoint, row.metric, row.of) == (checkpoint, "memory", "")
    }
    return {"claims": claims, "memory": figures}


def measured(lab: Any, name: str, sets: tuple[str, str]) -> dict[str, float]:
    """What is true of a checkpoint, by plain torch.

    ``A1``, ``A4`` ...: change of the NLL a token since the base, of identifiers that
    stand in so many trained rows, minus that of held-out ones; ``K``: that of held-out
    ones; ``AUC``: of rows' change, trained ones against others.
    """
    rows = [row for part in sets for row in lab.sets[part]]
    now, before = lab.nll(name, rows), lab.nll("base", rows)
    moved = [(after - first).tolist() for after, first in zip(now, before, strict=True)]
    change: dict[str, list[float]] = defaultdict(list)
    trained: Counter[str] = Counter()
    for row, values in zip(rows, moved, strict=True):
        if row.canary is None and row.spans:
            (span,) = row.spans
            told = lab.tokenizer(row.text, return_offsets_mapping=True)
            places = told["offset_mapping"][1:]
            inside = [
                value
                for value, (a, b) in zip(values, places, strict=True)
                if a < span.end and span.start < b
            ]
            string = row.text[span.start : span.end]
            change[string].append(fmean(inside))
            trained[string] += row.split == "train"
    by_dose: dict[int, list[float]] = defaultdict(list)
    for string, own in change.items():
        by_dose[trained[string]].append(fmean(own))
    means = {dose: fmean(by_dose[dose]) for dose in sorted(by_dose)}
    told = {f"A{dose}": mean - means[0] for dose, mean in means.items() if dose}
    sums = [fmean(values) for values in moved]
    member = [m for m, row in zip(sums, rows, strict=True) if row.split == "train"]
    other = [m for m, row in zip(sums, rows, strict=True) if row.split == "test"]
    wins = sum((a < b) + 0.5 * (a == b) for a in member for b in other)
    told |= {"K": means[0], "AUC": wins / (len(member) * len(other))}
    return {key: round(value, 4) for key, value in told.items()}


# --- lines and table ------------------------------------------------------------------


def read(lines: Path) -> list[dict[str, Any]]:
    """The finished lines; one that an interrupt cut is left out."""
    found = []
    for text in lines.read_text("utf-8").splitlines() if lines.exists() else []:
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found


def append(lines: Path, line: dict[str, Any]) -> None:
    """A line in one piece, for several processes write the same file."""
    handle = os.open(lines, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
    finally:
        os.close(handle)


def limits(found: int, n: int) -> tuple[float, float]:
    """Exact one-sided 95% limits of a share, lower and upper."""
    low = beta.ppf(0.05, found, n - found + 1) if found else 0.0
    high = beta.ppf(0.95, found + 1, n - found) if found < n else 1.0
    return float(low), float(high)


def made(line: dict[str, Any], what: str, lines: dict[Any, Any]) -> bool | None:
    """Whether a line makes a claim; None: the report holds no such figure."""
    if what == "less memory":
        full = lines.get((line["seed"], TITLES["full"]), {})
        both = [one.get("memory", {}).get("pooled", [None])[0] for one in (line, full)]
        return None if None in both else both[0] > both[1]
    if match := re.fullmatch(r"memory, dose (\d+)", what):
        figures = {
            int(found[1]): row
            for group, row in line["memory"].items()
            if (found := re.match(r"dose:(\d+)", group))
        }
        row = figures.get(int(match[1]))
        return None if row is None or row[2] is None else row[2] < 0
    return any(claim["claim"] in CLAIMS[what] for claim in line["claims"])


def table(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record for each scenario and claim: how often it was made, and by whom."""
    lines = list(lines)
    by_key = {(line["seed"], line["scenario"]): line for line in lines}
    records = []
    for scenario in SCENARIOS.values():
        own = [line for line in lines if line["scenario"] == scenario.name]
        for what in dict.fromkeys([*CLAIMS, *scenario.truth]) if own else ():
            said = [made(line, what, by_key) for line in own]
            n, found = len(said) - said.count(None), said.count(True)
            claims = [c for line in own for c in line["claims"]]
            kinds = CLAIMS.get(what, ())
            by = Counter(c["audit"] for c in claims if c["claim"] in kinds)
            alone = [
                any((c["alone"] or c["claim"]) in kinds for c in line["claims"])
                for line in own
            ]
            low, high = limits(found, n) if n else (math.nan, math.nan)
            records.append(
                {
                    "scenario": scenario.name,
                    "claim": what,
                    "true": scenario.truth.get(what),
                    "made": found,
                    "of": n,
                    "low": round(low, 3) if n else None,
                    "high": round(high, 3) if n else None,
                    "alone": sum(alone) if kinds else None,
                    "findings by audit": dict(by),
                }
            )
    return records


def truths(lines: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Scenario -> mean of what was measured by plain torch."""
    found: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        own = found.setdefault(line["scenario"], defaultdict(list))
        for key, value in line["truth"].items():
            own[key].append(value)
    means = {
        name: {key: sum(v) / len(v) for key, v in own.items()}
        for name, own in found.items()
    }
    return {
        name: f"{m['A1']:+.2f} / {m['A4']:+.2f} / {m['A16']:+.2f} | {m['K']:+.2f} | "
        f"{m['AUC']:.2f}"
        for name, m in means.items()
    }


def markdown(lines: Sequence[dict[str, Any]]) -> str:
    """The table for readers."""
    records, true = table(lines), truths(lines)
    seeds = len({line["seed"] for line in lines})
    heads = ("memory", "dose 4", "dose 16", *tuple(CLAIMS)[1:])
    out = [
        f"{seeds} seeds. A cell says in how many a claim was made; **wrong** ones with "
        "the exact upper limit of the share of false claims, found ones with the lower "
        "limit; in brackets: neither true nor false by construction. A, K, AUC: means "
        "of what plain torch measures: change of identifiers' NLL a token against "
        "held-out ones by dose, that of held-out ones, and the AUC of rows' change.",
        "",
        f"| scenario | {' | '.join(heads)} | A at 1 / 4 / 16 | K | AUC |",
        "|---" * (len(heads) + 4) + "|",
    ]
    cells = {(r["scenario"], r["claim"].replace("memory, ", "")): r for r in records}
    for name in true:
        row = [_cell(cells.get((name, head))) for head in heads]
        out.append(f"| {name} | {' | '.join(row)} | {true[name]} |")
    wrong = [r for r in records if r["true"] is False and r["made"]]
    missed = [r for r in records if r["true"] is True and r["made"] < r["of"]]
    absent = [r for r in records if r["true"] is True and not r["of"]]
    for title, rows in (("False claims", wrong), ("True claims not made", missed)):
        out += [
            "",
            f"| {title} | claim | of seeds | by audit, findings |",
            "|---" * 4 + "|",
        ]
        for r in rows:
            count = r["made"] if r["true"] is False else r["of"] - r["made"]
            by = ", ".join(f"{k} {v}" for k, v in r["findings by audit"].items())
            out.append(f"| {r['scenario']} | {r['claim']} | {count}/{r['of']} | {by} |")
    if absent:
        told = sorted({r["claim"] for r in absent})
        out += ["", f"Not in these reports: {', '.join(told)}."]
    return "\n".join(out) + "\n"


def _cell(record: dict[str, Any] | None) -> str:
    if record is None or not record["of"]:
        return "-"
    count = f"{record['made']}/{record['of']}"
    if record["true"] is None:
        return f"({count})"
    if record["true"]:
        return f"{count}, >= {record['low']:.0%}"
    bold = "**" if record["made"] else ""
    return f"{bold}{count}{bold}, <= {record['high']:.0%}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:20", help="FIRST:END or N,N")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--scenarios", default="", help="regular expression")
    parser.add_argument("--out", type=Path, default=HERE / "known_truth.jsonl")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--work", type=Path, help="folder of models, kept if given")
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
        with tempfile.TemporaryDirectory() as temporary:
            work = options.work or Path(temporary)
            jobs = [(seed, work, options.out, names, options.size) for seed in seeds]
            # A fresh process a seed: nothing of one is left to the next.
            context = multiprocessing.get_context("spawn")
            with context.Pool(options.jobs, maxtasksperchild=1) as pool:
                pool.starmap(run_seed, jobs, chunksize=1)
    lines = [line for line in read(options.out) if line["scenario"] in names]
    records = json.dumps(table(lines), indent=1)
    options.out.with_suffix(".json").write_text(records + "\n", encoding="utf-8")
    print(markdown(lines), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
