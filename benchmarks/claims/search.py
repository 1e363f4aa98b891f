"""Settings of small models and small data, by a rule and on tasks of the demo.

The paper's settings are for 7 billion weights and 507 steps a task. The rule is carried
out once, before anything of the study is trained, on tasks that no table uses; nothing
is chosen after an audit was looked at.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.data.examples import write_examples
from spark_audit.demo_base import Progress
from spark_audit.demo_rows import TASKS, make_examples
from spark_audit.pipeline.engines.local import Work, run_jobs

PAPER_STEPS, PAPER_CORRECTION = 507, 200
"""Steps a task (2,700 rows, 3 epochs, half of 32 rows its own), and of PTPC."""
PAPER_LR, PAPER_PTPC_LR = 5e-4, 1e-5
EPOCHS, LEAST_STEPS, LEAST_CORRECTION = 3, 30, 25
FACTORS, CLOSE, SEED, MADE_TASKS = (1, 4, 16), 0.02, 1000, 3
RULE = (
    f"batch_size: the largest of 32, 16 and 8 with at least {LEAST_STEPS} steps a task "
    f"in {EPOCHS} epochs of the median task, else 8",
    f"lr: the paper's {PAPER_LR:g} times {', '.join(map(str, FACTORS))}; of seqft on "
    f"the demo's first {MADE_TASKS} tasks, as many rows as the median task, seed "
    f"{SEED}, the smallest whose mean accuracy when learned is within {CLOSE} of the "
    "best",
    f"ptpc.steps: {PAPER_CORRECTION} by the steps of a task without replay over "
    f"{PAPER_STEPS}, at least {LEAST_CORRECTION}, at most {PAPER_CORRECTION}; of "
    "8 rows and 4 replayed where they are fewer than the paper's",
    f"ptpc.lr: {PAPER_PTPC_LR:g} by the same factor as lr, and by "
    f"{PAPER_CORRECTION} / ptpc.steps",
)


def of_size(rows: int) -> dict[str, Any]:
    """Batch size, epochs and steps of correction for the median task's train rows."""
    fitting = [b for b in (32, 16) if EPOCHS * math.ceil(rows / b) >= LEAST_STEPS]
    batch = fitting[0] if fitting else 8
    steps = EPOCHS * math.ceil(rows / batch)
    correction = round(PAPER_CORRECTION * steps / PAPER_STEPS)
    correction = min(max(correction, LEAST_CORRECTION), PAPER_CORRECTION)
    found: dict[str, Any] = {
        "batch_size": batch,
        "epochs": EPOCHS,
        "ptpc.steps": correction,
    }
    if correction < PAPER_CORRECTION:
        found |= {"ptpc.batch_size": 8, "ptpc.old_batch_size": 4}
    return found


def steps(rows: int, settings: Mapping[str, Any]) -> int:
    """Steps of a task with replay: half of a batch is its own (paper: about 507)."""
    batch = int(settings.get("batch_size", 32))
    return int(settings.get("epochs", EPOCHS)) * math.ceil(rows / max(batch // 2, 1))


def unlike(rows: int, settings: Mapping[str, Any]) -> str:
    """Why a task's correction is not to its learning as in the paper; empty: it is.

    The paper's reads 200 times 3 rows beside 507 times 32: 0.04 a row. Where few steps
    are left to learning, its share of the time says nothing of the paper's.
    """
    paper = PAPER_CORRECTION * 3 / (PAPER_STEPS * 32)
    read = int(settings.get("ptpc.steps", PAPER_CORRECTION)) * (
        int(settings.get("ptpc.batch_size", 2))
        + int(settings.get("ptpc.old_batch_size", 1))
    )
    here = read / (steps(rows, settings) * int(settings.get("batch_size", 32)))
    if paper / 2 <= here <= paper * 2:
        return ""
    return (
        f"correction reads {here:.2f} rows for each row of learning, in the paper "
        f"{paper:.2f}; more rows would tell"
    )


def search(
    base: str,
    folder: Path,
    *,
    rows: int,
    processes: int,
    device: str,
    progress: Progress,
) -> tuple[dict[str, Any], dict[str, float]]:
    """Carry the rule out; ``folder`` keeps its runs, which resume.

    Parameters
    ----------
    rows
        Train rows of the median task.

    Returns
    -------
    settings, accuracies
        What :mod:`spark_train.training_settings` calls them; the mean accuracy when
        learned of each factor of lr.
    """
    sized = of_size(rows)
    tasks = list(TASKS)[:MADE_TASKS]
    made = make_examples(rows, split="train", seed=SEED)
    made += make_examples(max(rows // 2, 20), split="test", seed=SEED)
    files = [folder / "data" / f"{task}.jsonl" for task in tasks]
    for task, file in zip(tasks, files, strict=True):
        write_examples(file, [row for row in made if row.task == task])
    learned = partial(_learned, base, device, folder, files, tasks, sized)
    jobs: list[Work] = [partial(learned, factor) for factor in FACTORS]
    done = count(1)
    run_jobs(
        jobs,
        processes=processes,
        ended=lambda _: progress("trying learning rates", next(done), len(jobs)),
    )
    accuracies = {str(f): _accuracy(folder / f"factor{f}") for f in FACTORS}
    best = max(accuracies.values())
    factor = next(f for f in FACTORS if accuracies[str(f)] >= best - CLOSE)
    more = PAPER_CORRECTION / sized["ptpc.steps"]
    sized["lr"] = PAPER_LR * factor
    sized["ptpc.lr"] = PAPER_PTPC_LR * factor * more
    return sized, accuracies


def _learned(
    base: str,
    device: str,
    folder: Path,
    files: Sequence[Path],
    tasks: Sequence[str],
    sized: dict[str, Any],
    factor: int,
) -> None:
    from spark_train.training_request import StudentLoading, TrainRequest
    from spark_train.training_run import train

    warnings.simplefilter("ignore")
    kept = {key: sized[key] for key in ("batch_size", "epochs")}
    kept["lr"] = PAPER_LR * factor
    train(
        TrainRequest(
            method="seqft",
            base=base,
            order=",".join(tasks),
            data=tuple(files),
            output=folder / f"factor{factor}",
            settings=tuple(f"{key}={value}" for key, value in kept.items()),
            seed=SEED,
            loading=StudentLoading(device=device),
        )
    )


def _accuracy(run: Path) -> float:
    matrix = pd.read_csv(run / "accuracy.csv", index_col="after").to_numpy()
    return float(np.nanmean(np.diagonal(matrix)))
