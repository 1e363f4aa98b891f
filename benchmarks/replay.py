"""What the weight of replay does: two forms, three lambdas, beside er and no replay.

The demo's data, base and settings (``spark_audit.demo``), anew for each seed;
``sd-replay`` under each form of ``replay.weighting`` and each ``replay.lambda``. What
is printed: Last, Avg and BWT, means over seeds with 95% intervals of Student's t, and
the difference of Last to er's of the same seed.

``OMP_NUM_THREADS=1 python benchmarks/replay.py --seeds 5 --jobs 2``; what is finished
is in ``--out`` and is not trained again.
"""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from command_line import (
    benchmark_parser,
    positive_number,
    process_pool,
    run_benchmark,
)
from scipy.stats import t as student_t

from spark_audit.data.examples import write_examples
from spark_audit.demo import FULL_SIZE, SETTINGS, make_data, make_tokenizer, train_base
from spark_audit.demo_rows import TASKS
from spark_audit.stats.accuracy import avg, bwt, last

FORMS, LAMBDAS = ("count", "mean"), (1, 5, 30)
NAMES = {"Last": last, "Avg": avg, "BWT": bwt}


def cells() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, method and settings of each run of a seed."""
    yield "seqft", "seqft", {}
    yield "er", "er", {}
    for form in FORMS:
        for weight in LAMBDAS:
            more = {"replay.weighting": form, "replay.lambda": weight}
            yield f"{form}, lambda {weight}", "sd-replay", more


def prepare(work: Path, seed: int) -> None:
    """Data and base of a seed."""
    background, audited = make_data(seed, FULL_SIZE)
    for task in TASKS:
        rows = [row for row in audited if row.task == task]
        write_examples(work / str(seed) / "data" / f"{task}.jsonl", rows)
    tokenizer = make_tokenizer([example.text for example in background])
    base = work / str(seed) / "base"
    train_base(base, background, tokenizer, seed=seed, progress=lambda *_: None)


def trained(work: Path, seed: int, name: str, method: str, more: dict[str, Any]) -> Any:
    """A run's matrix of accuracies."""
    import torch

    from spark_train.training_methods import groups
    from spark_train.training_request import StudentLoading, TrainRequest
    from spark_train.training_run import train
    from spark_train.training_settings import names

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = names(groups(method))
    chosen = {key: value for key, value in SETTINGS.items() if key in known}
    chosen |= {"epochs": FULL_SIZE.epochs, **more}
    folder = work / str(seed)
    request = TrainRequest(
        method=method,
        base=str(folder / "base"),
        order=",".join(TASKS),
        data=tuple(folder / "data" / f"{task}.jsonl" for task in TASKS),
        output=folder / "runs" / name.replace(", ", "-").replace(" ", "-"),
        settings=tuple(f"{key}={value}" for key, value in chosen.items()),
        seed=seed,
        loading=StudentLoading(device="cpu"),
    )
    return seed, name, train(request).accuracy


def figures(matrix: list[list[float | None]]) -> dict[str, float]:
    """Last, Avg and BWT of one run, as shares."""
    known = np.array(matrix, dtype=np.float64)
    return {name: float(of(known)) for name, of in NAMES.items()}


def interval(values: list[float]) -> str:
    """Mean and 95% limits over seeds."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.2f}"
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    width = float(student_t.ppf(0.975, len(values) - 1)) * error
    return f"{mean:.2f} [{mean - width:.2f}, {mean + width:.2f}]"


def table(lines: list[dict[str, Any]]) -> None:
    found: dict[str, dict[int, dict[str, float]]] = {}
    for line in lines:
        found.setdefault(line["name"], {})[line["seed"]] = line["figures"]
    print("| | seeds | " + " | ".join(NAMES) + " | Last beside er |")
    print("|" + "---|" * (len(NAMES) + 3))
    er = found.get("er", {})
    for name, _, _ in cells():
        runs = found.get(name, {})
        if not runs:
            continue
        told = [interval([run[key] for run in runs.values()]) for key in NAMES]
        apart = [
            run["Last"] - er[seed]["Last"] for seed, run in runs.items() if seed in er
        ]
        beside = interval(apart) if apart and name != "er" else ""
        print(f"| {name} | {len(runs)} | " + " | ".join(told) + f" | {beside} |")


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--seeds", type=positive_number, default=5)
    parser.add_argument("--jobs", type=positive_number, default=1)
    parser.add_argument("--out", type=Path, default=Path("replay.jsonl"))
    options = parser.parse_args()
    text = options.out.read_text() if options.out.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    done = {(line["seed"], line["name"]) for line in lines}
    todo = [
        (seed, *cell)
        for seed in range(options.seeds)
        for cell in cells()
        if (seed, cell[0]) not in done
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        process_pool(options.jobs) as pool,
    ):
        work = Path(folder)
        seeds = sorted({seed for seed, *_ in todo})
        list(pool.map(prepare, [work] * len(seeds), seeds))
        futures = [pool.submit(trained, work, *one) for one in todo]
        for future in futures:
            seed, name, matrix = future.result()
            line = {"seed": seed, "name": name, "figures": figures(matrix)}
            lines.append({**line, "matrix": matrix})
            with options.out.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
    table(lines)


if __name__ == "__main__":
    run_benchmark(main, resumes=True)
