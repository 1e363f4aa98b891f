"""How often ``passages`` claims recitation that training did not cause, and finds it.

``OMP_NUM_THREADS=1 nice python benchmarks/passages.py`` draws 200 audits for each of
eight scenes without a leak, and 50 for each of six with one. Tokens of rows are first
guesses of the base and of a checkpoint or are not. Longest runs, rates, tests and
claims are those of the command. The figures are in ``passages.md``.

Each row has tokens that are guessed one by one, in stretches as long as those of real
models. A row may hold boilerplate, 55 tokens or more of a text that many rows share.
Whoever knows the boilerplate guesses all of it; whoever recites a row guesses all of
that. So a scene says which rows hold boilerplate, whether base and checkpoint know it,
and which trained rows the checkpoint recites.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from command_line import benchmark_parser, positive_number, run_benchmark, whole_number
from exact_limits import limits

from spark_audit.audits.base import Context
from spark_audit.audits.passages.audit import Passages
from spark_audit.results import Finding
from spark_audit.results.evidence import Evidence
from spark_audit.stats.runs import longest_run

PASSAGE = 50
"""Tokens of a passage: the default of ``--passages``."""
BOILERPLATE = (55, 80)
"""Fewest and most tokens of the boilerplate that a row may hold."""
ROW_LENGTHS = (90, 180)
"""Fewest and most tokens of a row."""
GUESSED = 0.45
"""Share of other tokens that are the first guess."""
STAYS = 0.6
"""How likely a token is guessed because the one before it was, or not because not."""
TEXT_P = 0.5
"""p of the classifier of texts alone, which is no subject of these scenes."""
TESTS_OF_REPORTS = (1, 38)
"""Tests of a report: p of a claim must be below 0.05 divided by them."""
ALPHA = 0.05
NULL_AUDITS_PER_LEAK = 4
"""Audits of a scene without a leak for each one of a scene with one."""


@dataclass(frozen=True)
class Side:
    """The trained or the held-out rows of a task.

    Attributes
    ----------
    rows
        How many there are.
    with_boilerplate
        Share of them that hold boilerplate.
    """

    rows: int
    with_boilerplate: float = 0.0


@dataclass(frozen=True)
class Scene:
    """What is true of the rows, of the base and of the checkpoint.

    Attributes
    ----------
    tasks
        Trained and held-out rows of each task.
    base_knows, ours_knows
        Share of rows with boilerplate that the base guesses right, and the checkpoint.
    recited
        Share of trained rows that the checkpoint recites, since it was trained on them.
    rows_per_source
        Rows of a source: all or none of them hold boilerplate, or are recited.
    """

    tasks: tuple[tuple[Side, Side], ...] = ((Side(100), Side(80)),)
    base_knows: float = 0.0
    ours_knows: float = 0.0
    recited: float = 0.0
    rows_per_source: int = 1


def _alike(share: float) -> tuple[tuple[Side, Side], ...]:
    """Return one task with the same share of boilerplate on both sides."""
    return ((Side(100, share), Side(80, share)),)


LICENCES = Scene(tasks=_alike(0.1), base_knows=0.9, ours_knows=0.9)
"""One row in ten has a licence, which both models know."""

NULL_SCENES = {
    "nothing is recited": Scene(),
    "the base recites as much": Scene(_alike(0.2), base_knows=0.9, ours_knows=0.9),
    "the base recites more trained rows": Scene(
        ((Side(100, 0.4), Side(80, 0.1)),), base_knows=0.9, ours_knows=0.9
    ),
    "boilerplate learned elsewhere": Scene(_alike(0.2), ours_knows=0.9),
    "the same, five rows per source": Scene(
        _alike(0.2), ours_knows=0.9, rows_per_source=5
    ),
    "the same, 120 trained and 25 held-out rows": Scene(
        ((Side(120, 0.2), Side(25, 0.2)),), ours_knows=0.9
    ),
    "the same, most trained rows in the task with most of it": Scene(
        ((Side(90, 0.5), Side(30, 0.5)), (Side(30, 0.05), Side(60, 0.05))),
        ours_knows=0.9,
    ),
    "half of the boilerplate forgotten": Scene(
        _alike(0.3), base_knows=0.9, ours_knows=0.45
    ),
}
"""Nothing of these was learned from the trained rows."""

LEAKS = {
    "2% of trained rows": replace(LICENCES, recited=0.02),
    "5% of trained rows": replace(LICENCES, recited=0.05),
    "10% of trained rows": replace(LICENCES, recited=0.1),
    "20% of trained rows": replace(LICENCES, recited=0.2),
    "20% of trained rows, five rows per source": replace(
        LICENCES, recited=0.2, rows_per_source=5
    ),
    "40% of trained rows": replace(LICENCES, recited=0.4),
}
"""The checkpoint recites so many, beside the licences that both models know."""


def first_guesses(rng: np.random.Generator, n_tokens: int) -> np.ndarray:
    """Return which tokens of a row are first guesses, shape ``(n_tokens,)``, bool."""
    is_fresh = rng.random(n_tokens) >= STAYS
    is_fresh[0] = True
    drawn = rng.random(n_tokens) < GUESSED  # (n_tokens,), bool

    # A token that is not drawn afresh is as the last one that was.
    last_fresh = np.maximum.accumulate(np.where(is_fresh, np.arange(n_tokens), 0))
    return np.asarray(drawn[last_fresh])


def _chosen(rng: np.random.Generator, share: float, sources: np.ndarray) -> np.ndarray:
    """Return which rows belong to a share of the sources, shape ``(rows,)``, bool."""
    is_chosen = rng.random(int(sources.max()) + 1) < share  # (sources,)
    return np.asarray(is_chosen[sources])


def evidence_of(scene: Scene, rng: np.random.Generator) -> Evidence:
    """Return what the audit concludes from: the longest run of each row, by model."""
    records = []
    runs: dict[str, list[int]] = {"base": [], "ours": []}
    for task, sides in enumerate(scene.tasks):
        for split, side in zip(("train", "test"), sides, strict=True):
            sources = np.arange(side.rows) // scene.rows_per_source  # (rows,)
            has_boilerplate = _chosen(rng, side.with_boilerplate, sources)
            is_recited = _chosen(rng, scene.recited, sources) & (split == "train")

            for row in range(side.rows):
                n_tokens = int(rng.integers(*ROW_LENGTHS))
                of_row = first_guesses(rng, n_tokens)

                # Fine-tuning changes some guesses, and leaves most of them.
                is_kept = rng.random(n_tokens) < 0.8
                of_ours = np.where(is_kept, of_row, first_guesses(rng, n_tokens))
                if has_boilerplate[row]:
                    length = int(rng.integers(*BOILERPLATE))
                    start = int(rng.integers(0, n_tokens - length))
                    # Both models know a text by the same draw.
                    familiarity = rng.random()
                    if familiarity < scene.base_knows:
                        of_row[start : start + length] = True
                    if familiarity < scene.ours_knows:
                        of_ours[start : start + length] = True
                if is_recited[row]:
                    of_ours[:] = True

                runs["base"].append(longest_run(of_row).length)
                runs["ours"].append(longest_run(of_ours).length)
                records.append(
                    {
                        "example": f"{task}-{split}-{row}",
                        "split": split,
                        "task": f"task-{task}",
                        "type": "",
                        "cluster": f"{task}-{split}-{sources[row]}",
                        "n_tokens": n_tokens,
                        "n_words": n_tokens * 3 // 4,
                    }
                )

    longest = np.array([runs["base"], runs["ours"]], float)  # (checkpoints, rows)
    return Evidence(
        pd.DataFrame.from_records(records),
        ("base", "ours"),
        {"run": longest, "run_won": longest},
        {"least_tokens": PASSAGE, "text_p": TEXT_P},
    )


def finding_of(scene: Scene, rng: np.random.Generator) -> Finding:
    """Return what one audit finds of the checkpoint."""
    evidence = evidence_of(scene, rng)
    result = Passages(passages=PASSAGE).conclude(evidence, Context(replicates=20))
    (finding,) = (one for one in result.findings if one.checkpoint == "ours")
    return finding


@dataclass(frozen=True)
class Outcome:
    """How many audits of a scene claimed recitation, by the tests of their report."""

    audits: int
    claimed: tuple[int, ...]


def outcome(scene: Scene, *, audits: int, seed: int) -> Outcome:
    """Return the outcome of a scene."""
    claimed = dict.fromkeys(TESTS_OF_REPORTS, 0)
    for audit in range(audits):
        finding = finding_of(scene, np.random.default_rng([seed, audit]))
        for tests in TESTS_OF_REPORTS:
            is_significant = finding.p is not None and finding.p < ALPHA / tests
            claimed[tests] += finding.claim == "verbatim" and is_significant
    return Outcome(audits, tuple(claimed.values()))


def lines(*, audits: int, seed: int) -> Iterator[str]:
    """Yield the table, in Markdown."""
    yield "| scene | claimed, one test | 95% limits | claimed, 38 tests | 95% limits |"
    yield "|---|---|---|---|---|"
    for name, scene in NULL_SCENES.items():
        yield _line(f"no leak: {name}", outcome(scene, audits=audits, seed=seed))
    for name, scene in LEAKS.items():
        n_audits = max(audits // NULL_AUDITS_PER_LEAK, 1)
        yield _line(f"recited: {name}", outcome(scene, audits=n_audits, seed=seed))


def _line(title: str, found: Outcome) -> str:
    """Return the line of a scene, in Markdown."""
    cells = [title]
    for count in found.claimed:
        low, high = limits(count, found.audits)
        cells += [f"{count} of {found.audits}", f"{low:.1%} to {high:.1%}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--audits", type=positive_number, default=200)
    parser.add_argument("--seed", type=whole_number, default=0)
    options = parser.parse_args()
    for line in lines(audits=options.audits, seed=options.seed):
        print(line, flush=True)


if __name__ == "__main__":
    run_benchmark(main)
