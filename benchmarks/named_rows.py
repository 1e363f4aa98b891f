"""How many rows `persons` names, and how many falsely, before and after its estimate.

``OMP_NUM_THREADS=1 python benchmarks/named_rows.py`` simulates 200 reports of each of
several worlds, in which some of the rows that were given as training data were not
trained on (strangers). Rows are named as the command names them: before, with every p
as it is, and after, with p multiplied by the estimated share of untrained rows. The
figures are in ``named_rows.md``. ``--report FOLDER`` counts the rows that a report
names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy
from command_line import (
    benchmark_parser,
    check_folder,
    positive_number,
    run_benchmark,
)

from spark_audit.audits import Membership
from spark_audit.errors import InputError
from spark_audit.names import BASE
from spark_audit.report.named import NAMED_SHARE
from spark_audit.results.evidence import Evidence
from spark_audit.stats.conformal import (
    conformal_p,
    discoveries,
    standardised,
    untrained_shares,
)
from spark_audit.stats.trained_share import trained_share

REPORTS = 200
"""Simulated reports of each world."""
DOSES = (1, 4, 16)
"""How often a row was trained on; each is as frequent."""
REPLICATES = 199
"""Resamples for the interval of the share."""
MIN_NAMED = 10
"""Named rows of a report from which on the false share of p alone is compared."""
LIMITS = tuple(np.arange(0.1, 1.0, 0.02).round(2).tolist())
"""Limits of the false share with which p alone is tried, to name as many falsely."""


@dataclass(frozen=True)
class World:
    """Rows of four or more tasks, of which some have rows in clusters.

    Attributes
    ----------
    strangers
        Share of rows given as training data that were not trained on, of each task.
    effect
        Rise of a row's score for each doubling of one plus its dose, of each task, in
        standard deviations.
    trained, held_out
        Rows of all tasks.
    in_clusters
        Share of draws that are a cluster of rows; the others are single rows.
    size
        Rows of a cluster.
    correlation
        Of two rows of a cluster.
    """

    name: str
    strangers: tuple[float, ...] = (0.3,) * 4
    effect: tuple[float, ...] = (0.6,) * 4
    trained: int = 240
    held_out: int = 160
    in_clusters: float = 0.3
    size: int = 5
    correlation: float = 0.36


def alike(name: str, strangers: float, effect: float) -> World:
    """Return a world whose tasks are remembered alike."""
    return World(name, strangers=(strangers,) * 4, effect=(effect,) * 4)


WORLDS = (
    alike("no strangers, weak memory", 0.0, 0.3),
    alike("no strangers, medium memory", 0.0, 0.6),
    alike("no strangers, strong memory", 0.0, 1.0),
    alike("30% strangers, weak memory", 0.3, 0.3),
    alike("30% strangers, medium memory", 0.3, 0.6),
    alike("30% strangers, strong memory", 0.3, 1.0),
    alike("70% strangers, medium memory", 0.7, 0.6),
    alike("70% strangers, strong memory", 0.7, 1.0),
    World("two of four tasks forgotten", effect=(0.0, 0.0, 0.6, 1.0)),
    World("two of four tasks with 95% strangers", strangers=(0.95, 0.95, 0.1, 0.1)),
    World(
        "eight tasks of 20 rows",
        strangers=(0.3,) * 8,
        effect=(0.6,) * 8,
        trained=160,
        held_out=240,
    ),
    World("24 held-out rows a task", held_out=96),
    World("clusters of 20, nearly one row", in_clusters=0.5, size=20, correlation=0.99),
    World(
        "60 rows in clusters of 8, nearly one row, 60% strangers",
        strangers=(0.6,) * 4,
        effect=(1.0,) * 4,
        trained=60,
        held_out=400,
        in_clusters=0.6,
        size=8,
        correlation=0.99,
    ),
    alike("strangers alone", 1.0, 0.0),
    World(
        "strangers alone, 16 rows, 400 held out",
        strangers=(1.0,) * 4,
        trained=16,
        held_out=400,
        in_clusters=0.0,
    ),
    World(
        "strangers alone, five clusters of 8 that are one row, 50 held out",
        strangers=(1.0,),
        effect=(0.0,),
        trained=40,
        held_out=400,
        in_clusters=1.0,
        size=8,
        correlation=0.999,
    ),
    World(
        "strangers alone, 40 rows in clusters of 8, 400 held out",
        strangers=(1.0,) * 4,
        trained=40,
        held_out=400,
        in_clusters=0.6,
        size=8,
        correlation=0.95,
    ),
)


class Rows(NamedTuple):
    """The rows of a simulated report, each field of shape ``(rows,)``.

    Attributes
    ----------
    dose
        How often a row was trained on; 0: a stranger, or held out.
    """

    task: np.ndarray
    cluster: np.ndarray
    is_held_out: np.ndarray
    dose: np.ndarray
    score: np.ndarray


def draw_rows(world: World, rng: np.random.Generator) -> Rows:
    """Draw the rows of a report; each task has a middle and a spread of its own."""
    rows: list[tuple[float, ...]] = []
    n_tasks = len(world.strangers)
    n_clusters = 0
    for task in range(n_tasks):
        middle = rng.normal()
        spread = rng.uniform(0.5, 2)
        for is_held_out, total in ((False, world.trained), (True, world.held_out)):
            missing = total // n_tasks
            while missing:
                is_single = rng.random() >= world.in_clusters
                size = min(1 if is_single else world.size, missing)
                is_stranger = rng.random() < world.strangers[task]
                dose = 0 if is_held_out or is_stranger else int(rng.choice(DOSES))

                shared = world.correlation**0.5 * rng.normal()
                own = (1 - world.correlation) ** 0.5 * rng.normal(size=size)
                rise = world.effect[task] * np.log2(1 + dose)
                for score in middle + spread * (shared + own + rise):
                    rows.append((task, n_clusters, is_held_out, dose, score))
                n_clusters += 1
                missing -= size

    task, cluster, is_held_out, dose, score = np.array(rows).T
    return Rows(task, cluster, is_held_out.astype(bool), dose, score)


def expected_share(world: World) -> float:
    """Return the share of rows beyond the median of held-out ones, less chance."""
    shares = []
    for strangers, effect in zip(world.strangers, world.effect, strict=True):
        rises = effect * np.log2(1 + np.array(DOSES))
        is_beyond = 1 - 2 * scipy.stats.norm.cdf(-rises)  # (doses,)
        shares.append((1 - strangers) * is_beyond.mean())
    return float(np.mean(shares))


class Counted(NamedTuple):
    """What one way of naming does in one report.

    Attributes
    ----------
    named, false
        Rows that are named, and strangers among them.
    strangers
        Share of the report's strangers that are named.
    """

    named: int
    false: int
    strangers: float


def counted(is_named: np.ndarray, is_stranger: np.ndarray) -> Counted:
    """Return how many rows are named, and how many falsely."""
    n_false = int((is_named & is_stranger).sum())
    n_strangers = max(int(is_stranger.sum()), 1)
    return Counted(int(is_named.sum()), n_false, n_false / n_strangers)


def simulate(world: World, reports: int) -> tuple[np.ndarray, np.ndarray]:
    """Simulate reports of a world.

    Returns
    -------
    counts
        Shape ``(reports, 1 + limits, 3)``: :class:`Counted` after, then by p alone with
        each of :data:`LIMITS`, of which the first is before.
    shares
        Shape ``(reports, 3)``: the estimated share and its limits.
    """
    counts = []
    shares = []
    for seed in range(reports):
        rows = draw_rows(world, np.random.default_rng(seed))
        scores = standardised(rows.score, rows.is_held_out, rows.task, rows.cluster)
        p = conformal_p(scores, rows.is_held_out, rows.cluster)
        untrained = untrained_shares(p, rows.cluster, rows.task)

        is_stranger = ~rows.is_held_out & (rows.dose == 0)
        masks = [discoveries(p, share=NAMED_SHARE, untrained=untrained)]
        masks += [discoveries(p, share=limit) for limit in LIMITS]
        counts.append([counted(is_named, is_stranger) for is_named in masks])

        share = trained_share(
            rows.score,
            rows.is_held_out,
            rows.task,
            rows.cluster,
            replicates=REPLICATES,
            seed=seed,
        )
        shares.append([share.value, share.low, share.high])
    return np.array(counts), np.array(shares, dtype=float)


def table(reports: int) -> Iterator[str]:
    """Yield the lines of the table of all worlds."""
    yield (
        "| world | named before | after | more | by p alone, at that error "
        "| false share before | after (2 SE) | of all named before | after "
        "| strangers named before | after | the share's interval holds it |"
    )
    yield "|---|" + "---|" * 11
    for world in WORLDS:
        counts, shares = simulate(world, reports)
        named = counts[:, :, 0]  # (reports, 1 + limits)
        false = counts[:, :, 1]
        false_shares = false / np.maximum(named, 1)
        error = 2 * false_shares[:, 0].std() / len(counts) ** 0.5
        after, before, *_ = named.mean(axis=0)
        of_all = false.sum(axis=0) / np.maximum(named.sum(axis=0), 1)
        strangers = counts[:, :, 2].mean(axis=0)

        # The most that p alone names without a larger share of false ones.
        mean_false_shares = false_shares.mean(axis=0)
        is_no_worse = mean_false_shares[1:] <= mean_false_shares[0]
        at_that_error = named.mean(axis=0)[1:][is_no_worse].max(initial=0.0)

        more = "" if before < 0.5 else f"{after / before - 1:+.0%}"
        is_telling = any(world.strangers) and after >= MIN_NAMED and is_no_worse.any()
        alone = f"{at_that_error:.1f}" if is_telling else ""
        truth = expected_share(world)
        covers = (shares[:, 1] <= truth) & (truth <= shares[:, 2])
        yield (
            f"| {world.name} | {before:.1f} | {after:.1f} | {more} "
            f"| {alone} | {mean_false_shares[1]:.1%} "
            f"| {mean_false_shares[0]:.1%} ({error:.1%}) "
            f"| {of_all[1]:.1%} | {of_all[0]:.1%} "
            f"| {strangers[1]:.1%} | {strangers[0]:.1%} | {covers.mean():.1%} |"
        )


def counts_of_report(folder: Path) -> Iterator[str]:
    """Yield how many rows a report names of each checkpoint, before and after.

    Raises
    ------
    InputError
        If the report has no evidence of ``mia``.
    """
    path = folder / "scores" / Membership.evidence_file()
    if not path.is_file():
        raise InputError(
            f"there is no {path.relative_to(folder)} in it",
            where=f"--report {folder}",
            fix="give the folder of a report with the audit mia",
        )
    evidence = Evidence.read(path)
    units = evidence.units
    is_held_out = ~units["member"].to_numpy(bool)
    for name in evidence.checkpoints:
        if name == BASE:
            continue
        score = evidence.row(name, Membership.naming_score)
        scores = standardised(score, is_held_out, units["task"], units["cluster"])
        p = conformal_p(scores, is_held_out, units["cluster"])
        untrained = untrained_shares(p, units["cluster"], units["task"])
        before = discoveries(p, share=NAMED_SHARE).sum()
        after = discoveries(p, share=NAMED_SHARE, untrained=untrained).sum()
        yield f"{name}: {before} before, {after} after, of {(~is_held_out).sum()}"


def main() -> None:
    """Print the table, or the counts of a report."""
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--reports", type=positive_number, default=REPORTS)
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FOLDER",
        help="count rows that a report names",
    )
    arguments = parser.parse_args()

    check_folder("--report", arguments.report)

    lines = table(arguments.reports)
    if arguments.report is not None:
        lines = counts_of_report(arguments.report)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    run_benchmark(main)
