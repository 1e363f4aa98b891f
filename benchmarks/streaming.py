"""What concluding takes: peak memory and seconds by rows and checkpoints.

    python benchmarks/streaming.py [--rows 1000 10000] [--checkpoints 1 8] [-o FOLDER]

A manifest of that many rows and a store filled with scores are made up, without a
forward, and ``conclude`` runs in a process of its own, as ``spark-audit all`` calls it
after the last checkpoint, without what takes long and needs no memory. Printed are the
most resident memory after the imports and in the end; on stderr its rise. Linux only.
``--evidence`` makes up what ``nll`` concludes from in their place, a row a text: sizes
that no manifest and store were made of here.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from building import peak
from command_line import (
    benchmark_parser,
    positive_float,
    positive_number,
    run_benchmark,
)

from spark_audit.audits import NLL, Matched, Membership
from spark_audit.audits.base import Context
from spark_audit.manifest.content import seal
from spark_audit.manifest.file import read_manifest, write_manifest
from spark_audit.pipeline.conclude import conclude
from spark_audit.pipeline.job import CheckpointJob, Clock, Job
from spark_audit.pipeline.lineup import Lineup, make_plans
from spark_audit.pipeline.request import Request
from spark_audit.results import CheckpointFacts
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import Pass

TOKENS = 48
"""Of a text."""
SETS = 8
"""Of scores that are made up; checkpoints beyond have those of earlier ones."""
QUICK = {
    "matched": Matched(placebo_draws=0),
    "mia": Membership(blind_permutations=0),
}
AUDITS = ("matched", "rank", "nll", "mia", "extract")
WORDS = np.array("some plain words that stand in any row of data as they do".split())


def main() -> None:
    given = parsed()
    if given.conclude and given.evidence:
        from_evidence(given.rows[0], given.checkpoints[0], given)
        return
    if given.conclude:
        measured(given.output, given.rows[0], given.checkpoints[0], given)
        return
    print("|rows|checkpoints|MB at the start|MB at most|seconds|")
    print("|---|---|---|---|---|", flush=True)
    for rows in given.rows:
        if not given.evidence:
            made(given.output, rows)
        for count in given.checkpoints:
            if not given.evidence:
                filled(given.output, rows, count)
            own = ["--evidence"] * given.evidence
            own += [f"--rows={rows}", f"--checkpoints={count}", "--conclude"]
            own += [f"--output={given.output}", f"--most={given.most}"]
            own += ["--audits", *given.audits]
            done = subprocess.run(
                [sys.executable, __file__, *own],
                stdout=subprocess.PIPE,
                text=True,
                # As `spark-audit` has it.
                env=os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"},
            )
            print(done.stdout or f"|{rows}|{count}|failed|", end="", flush=True)


def parsed() -> argparse.Namespace:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument(
        "--rows", type=positive_number, nargs="+", default=[1000, 10_000]
    )
    parser.add_argument(
        "--checkpoints", type=positive_number, nargs="+", default=[1, 8]
    )
    parser.add_argument("--audits", nargs="+", choices=AUDITS, default=AUDITS)
    parser.add_argument(
        "--most", type=positive_float, default=8, help="GB of memory at most"
    )
    parser.add_argument("--evidence", action="store_true", help="nothing else is made")
    parser.add_argument("-o", "--output", type=Path, default=Path("streaming"))
    parser.add_argument("--conclude", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def names_of(count: int) -> list[str]:
    """The base and so many checkpoints."""
    return ["base", *(f"c{k}" for k in range(1, count + 1))]


def losses(row: int) -> np.ndarray:
    """Reference scores of a row's tokens, nats; controls are as hard as identifiers."""
    nll = np.random.default_rng(row).gamma(2.0, 1.0, TOKENS)
    nll[20:23], nll[40:42] = nll[10:13] + 0.01, nll[30:32] + 0.02
    return np.round(nll, 6)


def made(folder: Path, rows: int) -> None:
    """Write the manifest, if it is not there."""
    path = folder / f"{rows}.arrow"
    if not path.exists():
        write_manifest(seal(content_of(rows)), path)


def content_of(rows: int) -> dict[str, Any]:
    """What the manifest holds; lists are made as they are gone through."""
    sides = [[f"row-{k}" for k in range(rows) if (k % 4 == 3) == t] for t in (0, 1)]
    return {
        "kind": "spark-audit-manifest",
        "schema_version": 1,
        "name": f"rows-{rows}",
        "redacted_from": None,
        "reference": {
            "name": "none",
            "weights_sha256": "0" * 64,
            "tokenizer_sha256": "1" * 64,
            "model_id": "2" * 64,
            "architecture": "LlamaForCausalLM",
            "dtype": "float32",
            "vocab_size": 32_000,
            "usable_vocab": 32_000,
            "max_positions": 1024,
        },
        "settings": {
            "preset": "robust",
            "seed": 0,
            "caliper": 0.5,
            "distance": "mean",
            "buffer": 1,
            "controls": "any",
            "exclude_template": True,
            "max_length": 1024,
            "tau": 0.6,
            "alpha": 0.5,
            "canary_contexts": 1,
            "n_candidates": 512,
        },
        "versions": {},
        "data": [],
        "counts": {},
        "examples": (example_of(row)[0] for row in range(rows)),
        "pairs": (pair for row in range(rows) for pair in example_of(row)[1]),
        "unmatched": [],
        "canaries": [],
        "twins": [],
        "membership": {"members": sides[0], "non_members": sides[1]},
        "balance": [],
        "notes": [],
    }


def example_of(row: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A text of words of five characters, a token each, with two identifiers."""
    rng = np.random.default_rng(row)
    words = [f"{word:>5.5}" for word in rng.choice(WORDS, TOKENS)]
    number = f"{row:015d}"
    words[10:13] = number[:5], number[5:10], number[10:]
    words[30:32] = f" k{row % 1000:03d}", f"{row // 1000:04d}@"
    unll = [None, *np.rint(1e6 * losses(row)[1:]).astype(int).tolist()]
    key, spans, pairs = f"row-{row}", [], []
    for kind, start, end, control in (("PHONE", 10, 13, 20), ("EMAIL", 30, 32, 40)):
        place = {"token_start": start, "token_end": end, "partial": False}
        chars = {"start": 5 * start, "end": 5 * end, "type": kind}
        spans.append({**chars, "origin": "injected", "part": None, **place})
        sides = [side(unll, at, at + end - start) for at in (start, control)]
        pairs.append(
            {
                "example": key,
                "pii": {**sides[0], "type": kind},
                "control": sides[1],
                "distance": abs(sides[0]["nll"] - sides[1]["nll"]),
                "weight": 1.0,
            }
        )
    example = {
        "id": key,
        "task": ("first", "second")[row % 2],
        "source_id": key,
        "cluster": key,
        "split": "test" if row % 4 == 3 else "train",
        "prompt": "".join(words[:-1]),
        "response": words[-1],
        "spans": spans,
        "canary_id": None,
        "template": [],
        "kept": [0, TOKENS],
        "response_token": TOKENS - 1,
        "reference_unll": unll,
        "excluded": [[9, 14], [29, 33]],
        "classes": "".join(
            "d" if 10 <= k < 13 or 30 <= k < 32 else "a" for k in range(TOKENS)
        ),
        "low": [2, 5, 8, 16, 25, 36, 45],
    }
    return example, pairs


def side(unll: list[Any], start: int, end: int) -> dict[str, Any]:
    place = {"token_start": start, "token_end": end}
    chars = {"char_start": 5 * start, "char_end": 5 * end}
    return {**place, **chars, "nll": float(np.mean(unll[start:end])) / 1e6}


def store_key(number: int, row: int) -> str:
    """Of a checkpoint's scores of a row; the base is number 0."""
    name = number and 1 + (number - 1) % SETS
    return hashlib.sha256(f"{name} {row}".encode()).hexdigest()


def filled(folder: Path, rows: int, count: int) -> None:
    """Add to the store what it lacks of the checkpoints' plain pass."""
    store = Store(folder / f"store-{rows}")
    positions = np.arange(1, TOKENS, dtype=np.int32)
    for number in range(min(count, SETS) + 1):
        if not store.lacking([store_key(number, rows - 1)]):
            continue
        for row in range(rows):
            store.add(store_key(number, row), positions, scores(row, number))
        store.flush()


def scores(row: int, number: int) -> dict[str, np.ndarray]:
    """Columns of the plain pass: trained rows became a little likelier."""
    nll = losses(row)[1:]
    if number:
        nll = nll * (0.97 if row % 4 == 3 else 0.9 - 0.001 * number)
        nll[9:12] *= 0.99 if row % 4 == 3 else 0.8
    rank = np.exp(nll).astype(np.int32) + 1
    return {
        "nll": nll.astype(np.float32),
        "rank_lo": rank,
        "ties": np.zeros(len(nll), np.int32),
        "mean_logp": (-nll - 1).astype(np.float32),
        "sd_logp": np.full(len(nll), 2, np.float32),
        "top1_margin": (1 - nll).astype(np.float32),
        "top40_logp": np.full(len(nll), -0.1, np.float32),
    }


def measured(folder: Path, rows: int, count: int, given: argparse.Namespace) -> None:
    """Conclude, and print a line of the table; on stderr the peak by stage."""
    limit(given)
    shutil.rmtree(folder / f"report-{rows}-{count}", ignore_errors=True)
    first, start, clock = peak(), time.monotonic(), Clock()
    names = names_of(count)
    with stage("manifest", clock):
        manifest = read_manifest(folder / f"{rows}.arrow")
    request = Request(
        audits=tuple(QUICK.get(name, name) for name in given.audits),
        checkpoints=tuple(names[1:]),
        base="base",
        baseline="c1",
        formats=("csv",),
        # 2,000 resamples, and none of what takes long and needs no memory.
        preset="paper",
    )
    with stage("plans", clock):
        view, plans = make_plans(manifest, request.audits)
    lineup = Lineup((), frozenset(), frozenset())
    store = Store(folder / f"store-{rows}")
    report = folder / f"report-{rows}-{count}"
    opening: Any = None
    job = Job(
        *(request, lineup, opening, manifest, view, plans, store, report, shown()),
        clock,
    )
    scored = [facts_of(name, number, rows) for number, name in enumerate(names)]
    with stage("concluding", clock):
        conclude(job, scored)
    spent = time.monotonic() - start
    cells = f"{first:.0f}|{peak():.0f}|{spent:.0f}"
    print(f"|{rows:,}|{count}|{cells}|")
    for what, seconds in clock.items():
        print(f"{what}: {seconds:.1f} s", file=sys.stderr)


def from_evidence(rows: int, count: int, given: argparse.Namespace) -> None:
    """Conclude from evidence that was never a table; print as the other."""
    limit(given)
    names = names_of(count)
    first, start = peak(), time.monotonic()
    sums = ((name, {"num": sums_of(number, rows)}) for number, name in enumerate(names))
    evidence = Evidence.of(units_of(rows), sums)
    print(f"{peak():.0f} MB after evidence", file=sys.stderr, flush=True)
    context = Context({name: "c1" for name in names[2:]}, paper=True, replicates=2000)
    NLL().conclude(evidence, context)
    cells = f"{first:.0f}|{peak():.0f}|{time.monotonic() - start:.0f}"
    print(f"|{rows:,}|{count}|{cells}|")


def units_of(rows: int) -> pd.DataFrame:
    """Units of ``nll``: an identifier a text, each in a cluster of its own."""
    row = np.arange(rows)
    return pd.DataFrame(
        {
            "variant": "pii",
            "split": np.where(row % 4 == 3, "test", "train"),
            "task": np.where(row % 2, "second", "first"),
            "type": np.where(row % 3, "PHONE", "EMAIL"),
            "cluster": [f"row-{k}" for k in range(rows)],
            "den": 3.0,
        }
    )


def sums_of(number: int, rows: int) -> np.ndarray:
    return np.random.default_rng(number).gamma(6.0, 1 - 0.1 * bool(number), rows)


def limit(given: argparse.Namespace) -> None:
    """Let no more memory be had than was given."""
    most = int(given.most * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


@contextmanager
def stage(name: str, clock: Clock) -> Iterator[None]:
    """Count the time of the block, and tell the peak after it."""
    with clock(name):
        yield
    print(f"{peak():.0f} MB after {name}", file=sys.stderr, flush=True)


def shown() -> Callable[[str, int, int], None]:
    """Tell the peak before each audit."""
    return lambda what, done, total: print(
        f"{peak():.0f} MB before {what} {done}/{total}", file=sys.stderr, flush=True
    )


def facts_of(name: str, number: int, rows: int) -> CheckpointJob:
    facts = CheckpointFacts(
        name=name,
        source=name,
        format="none",
        weights_sha256=name,
        model_id=name,
        dtype="float32",
    )
    items: Any = MadeUpItems(number, rows)
    return CheckpointJob(facts, {Pass(): items})


@dataclass(frozen=True)
class MadeUpItems:
    """Items of a pass with made-up scores, which know their store keys."""

    number: int
    rows: int

    def store_keys(self) -> dict[str, str]:
        return {f"row-{k}": store_key(self.number, k) for k in range(self.rows)}


if __name__ == "__main__":
    run_benchmark(main)
