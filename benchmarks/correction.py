"""Compare corrections by their learning rate and schedule with sd-replay.

The demo's data, base and settings (``spark_audit.demo``), anew for each seed;
``spark`` at the paper's ``ptpc.lr`` and at larger ones, constant and by half a cosine,
audited beside ``sd-replay`` of the same seed. What is printed: DiD of the matched
audit (nats), what other tokens pay (NLL of low-sensitivity tokens, nats), and Last,
means over seeds with 95% intervals of Student's t.

``OMP_NUM_THREADS=1 python benchmarks/correction.py --seeds 5 --jobs 2``; what is
finished is in ``--work`` and is not done again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from command_line import (
    benchmark_parser,
    positive_number,
    process_pool,
    run_benchmark,
)
from replay import figures, interval, prepare, trained

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.specs import Loading
from spark_audit.data.examples import read_examples
from spark_audit.demo import FULL_SIZE
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.pipeline.request import Request
from spark_audit.pipeline.run import run

RATES = (
    (1e-5, "constant"),
    (8e-5, "constant"),
    (3.2e-4, "constant"),
    (1e-3, "constant"),
    (3.2e-4, "cosine"),
    (6.4e-4, "cosine"),  # as large in the mean as 3.2e-4 constant
)
"""``ptpc.lr`` and ``ptpc.schedule`` of each corrected run."""

COLUMNS = {"DiD, nats": "did", "change of low-sensitivity NLL, nats": "low_change"}
"""Heading of a column -> metric of the matched audit."""

LAST = "Last beside sd-replay"

REFERENCE = "sd-replay"
"""The run that the others are compared with."""


class Cell(NamedTuple):
    """A run of a seed."""

    name: str
    method: str
    settings: dict[str, Any]


def cells() -> Iterator[Cell]:
    """Yield the runs of a seed, first the one that the others are compared with."""
    yield Cell(REFERENCE, "sd-replay", {})
    for rate, schedule in RATES:
        settings = {
            "ptpc.lr": rate,
            "ptpc.schedule": schedule,
            "ptpc.steps": FULL_SIZE.correction_steps,
        }
        yield Cell(f"{rate:g}-{schedule}", "spark", settings)


def matrix(work: Path, seed: int, cell: Cell) -> Any:
    """Return a run's accuracies; a finished run is only looked at."""
    return trained(work, seed, *cell)[2]


def audited(work: Path, seed: int) -> dict[str, dict[str, float]]:
    """Return differences of each run to sd-replay, from one report of the seed.

    Name of a run -> metric -> value.
    """
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder = work / str(seed)
    base = str(folder / "base")

    manifest_path = folder / "manifest.json"
    if not manifest_path.exists():
        files = sorted((folder / "data").glob("*.jsonl"))
        rows = list(read_examples(*files))
        opened = open_checkpoint(base, name="base", device="cpu")
        manifest = build_manifest(rows, opened, name="rows", n_candidates=2, data=files)
        write_manifest(manifest, manifest_path)

    request = Request(
        audits=("matched",),
        checkpoints=tuple(
            f"{cell.name}={folder / 'runs' / cell.name}" for cell in cells()
        ),
        base=base,
        baseline=REFERENCE,
        manifest=manifest_path,
        output=folder / "report",
        formats=("json",),
        loading=Loading(device="cpu"),
    )
    report = run(request).report
    assert report is not None

    differences: dict[str, dict[str, float]] = {cell.name: {} for cell in cells()}
    for row in report.contrasts:
        if row.group != "pooled" or row.checkpoint not in differences:
            continue
        if row.value is not None:
            differences[row.checkpoint][row.metric] = row.value
    return differences


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--seeds", type=positive_number, default=5)
    parser.add_argument("--jobs", type=positive_number, default=1)
    parser.add_argument("--work", type=Path, default=Path("correction"))
    options = parser.parse_args()
    work = options.work
    seeds = range(options.seeds)

    with process_pool(options.jobs) as pool:
        # Data and base of each seed, then its runs, then one report.
        new_seeds = [seed for seed in seeds if not (work / str(seed) / "base").exists()]
        for preparation in [pool.submit(prepare, work, seed) for seed in new_seeds]:
            preparation.result()

        runs = {}
        for seed in seeds:
            for cell in cells():
                runs[seed, cell.name] = pool.submit(matrix, work, seed, cell)
        last = {key: figures(run.result())["Last"] for key, run in runs.items()}

        reports = {seed: pool.submit(audited, work, seed) for seed in seeds}
        differences = {seed: report.result() for seed, report in reports.items()}

    print("| ptpc.lr, schedule | " + " | ".join([*COLUMNS, LAST]) + " |")
    print("|" + "---|" * (len(COLUMNS) + 2))
    for cell in cells():
        if cell.name == REFERENCE:
            continue
        texts = []
        for metric in COLUMNS.values():
            texts.append(interval([differences[s][cell.name][metric] for s in seeds]))
        texts.append(interval([last[s, cell.name] - last[s, REFERENCE] for s in seeds]))
        print(f"| {cell.name.replace('-c', ', c')} | " + " | ".join(texts) + " |")


if __name__ == "__main__":
    run_benchmark(main, resumes=True)
