"""What correction does by its learning rate and schedule, beside sd-replay.

The demo's data, base and settings (``spark_audit.demo``), anew for each seed;
``spark`` at the paper's ``ptpc.lr`` and at larger ones, constant and by half a cosine,
audited beside ``sd-replay`` of the same seed. What is printed: DiD of the matched
audit (nats), what other tokens pay (NLL of low-sensitivity tokens, nats), and Last,
means over seeds with 95% intervals of Student's t.

``OMP_NUM_THREADS=1 python benchmarks/correction.py --seeds 5 --jobs 2``; what is
finished is in ``--work`` and is not done again.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

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
COLUMNS = {"DiD, nats": "did", "change of low-sensitivity NLL, nats": "low_change"}
LAST = "Last beside sd-replay"


def cells() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, method and settings of each run of a seed."""
    yield "sd-replay", "sd-replay", {}
    for rate, schedule in RATES:
        more = {"ptpc.lr": rate, "ptpc.schedule": schedule}
        steps = {"ptpc.steps": FULL_SIZE.correction_steps}
        yield f"{rate:g}-{schedule}", "spark", more | steps


def matrix(work: Path, seed: int, cell: tuple[str, str, dict[str, Any]]) -> Any:
    """A run's accuracies; a finished run is only looked at."""
    return trained(work, seed, *cell)[2]


def audited(work: Path, seed: int) -> dict[str, dict[str, float]]:
    """Differences of each run to sd-replay, from one report of the seed."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder = work / str(seed)
    files = sorted((folder / "data").glob("*.jsonl"))
    manifest, base = folder / "manifest.json", str(folder / "base")
    if not manifest.exists():
        opened = open_checkpoint(base, name="base", device="cpu")
        rows = list(read_examples(*files))
        made = build_manifest(rows, opened, name="rows", n_candidates=2, data=files)
        write_manifest(made, manifest)
    request = Request(
        audits=("matched",),
        ckpt=tuple(f"{name}={folder / 'runs' / name}" for name, *_ in cells()),
        base=base,
        baseline="sd-replay",
        manifest=manifest,
        output=folder / "report",
        formats=("json",),
        loading=Loading(device="cpu"),
    )
    report = run(request).report
    assert report is not None
    found: dict[str, dict[str, float]] = {name: {} for name, *_ in cells()}
    for row in report.contrasts:
        if row.group == "pooled" and row.value is not None and row.checkpoint in found:
            found[row.checkpoint][row.metric] = row.value
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("correction"))
    options = parser.parse_args()
    work, seeds = options.work, range(options.seeds)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        new = [seed for seed in seeds if not (work / str(seed) / "base").exists()]
        list(pool.map(partial(prepare, work), new))
        pairs = [(seed, cell) for seed in seeds for cell in cells()]
        matrices = pool.map(partial(matrix, work), *zip(*pairs, strict=True))
        last = {
            (seed, cell[0]): figures(found)["Last"]
            for (seed, cell), found in zip(pairs, matrices, strict=True)
        }
        contrasts = dict(
            zip(seeds, pool.map(partial(audited, work), seeds), strict=True)
        )
    print("| ptpc.lr, schedule | " + " | ".join([*COLUMNS, LAST]) + " |")
    print("|" + "---|" * (len(COLUMNS) + 2))
    for name, *_ in list(cells())[1:]:
        line = [
            interval([contrasts[seed][name][metric] for seed in seeds])
            for metric in COLUMNS.values()
        ]
        apart = [last[seed, name] - last[seed, "sd-replay"] for seed in seeds]
        line.append(interval(apart))
        print(f"| {name.replace('-c', ', c')} | " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
