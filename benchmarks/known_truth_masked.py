"""Do words behind a secret that is out of the loss give it away?

``python benchmarks/known_truth_masked.py --seeds 0:20`` takes the models of the
scenario "rows repeated, identifiers out of the loss" of ``known_truth.py``: no token of
a canary's secrets was trained on, but the words around them were. Each canary stands
among 511 others of its frame in the same row, and plain torch sums, without the tool,
how much the model moved since the base over

- ``secrets``: the tokens of its name, password and number;
- ``words``: the other tokens of its sentence;
- ``sentence``: both.

Printed is the mean share of the other candidates that became more likely than the true
one, 0.5 if the model knows nothing, and the one-sided p that it is no less. Odd seeds
have no canaries.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from command_line import benchmark_parser, run_benchmark, seed_list
from known_truth_models import Lab
from known_truth_rows import SIZES
from scipy.stats import ttest_1samp
from transformers.utils import logging

from spark_audit.data.canaries import draw_parts, render
from spark_audit.data.examples import Example

CHECKPOINT = "rows"
"""The model of the scenario."""

N_CANDIDATES = 512
"""The true canary and those that it is compared with."""

PARTS = ("secrets", "words", "sentence")


def shares_of_seed(lab: Lab) -> dict[tuple[str, str], list[float]]:
    """Return the share of candidates that moved further than each canary.

    The keys are the split of the canary, ``train`` or ``test``, and the part of its
    sentence.
    """
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in _rows_by_canary([*lab.sets["member"], *lab.sets["other"]]):
        candidates = _candidates(row, lab.number("candidates", row.canary.id))
        changes = _changes(lab, candidates)  # (candidates, parts)
        is_further = changes[1:] < changes[0]
        for part, share in zip(PARTS, is_further.mean(axis=0), strict=True):
            shares[row.split, part].append(float(share))
    return shares


def _rows_by_canary(rows: Sequence[Example]) -> list[Example]:
    """Return the first row of each canary."""
    first_rows: dict[str, Example] = {}
    for row in rows:
        if row.canary is not None:
            first_rows.setdefault(row.canary.id, row)
    return list(first_rows.values())


def _candidates(row: Example, seed: int) -> list[Example]:
    """Return a row with its canary, then with others of the same frame in its place."""
    canary = row.canary
    true_sentence, _ = render(canary.format, draw_parts(canary.seed))
    start = row.prompt.index(true_sentence)

    rng = np.random.default_rng(seed)
    candidates = []
    for canary_seed in [canary.seed, *rng.integers(2**31, size=N_CANDIDATES - 1)]:
        sentence, spans = render(canary.format, draw_parts(int(canary_seed)))
        end = start + len(true_sentence)
        prompt = row.prompt[:start] + sentence + row.prompt[end:]
        moved = [
            replace(span, start=start + span.start, end=start + span.end)
            for span in spans.values()
        ]
        frame = (start, start + len(sentence))
        candidates.append(
            replace(row, prompt=prompt, spans=tuple(moved), frames=(frame,))
        )
    return candidates


def _changes(lab: Lab, candidates: Sequence[Example]) -> np.ndarray:
    """Return the summed change of the NLL since the base, shape ``(candidates, 3)``.

    The columns are :data:`PARTS`.
    """
    scores = lab.nll(CHECKPOINT, candidates)
    base_scores = lab.nll("base", candidates)
    changes = []
    for row, (nll, _), (base_nll, _) in zip(
        candidates, scores, base_scores, strict=True
    ):
        change = (nll - base_nll).numpy()
        ((start, end),) = row.frames
        offsets = lab.tokenizer(row.text, return_offsets_mapping=True)
        places = np.array(offsets["offset_mapping"][1 : len(change) + 1])

        in_sentence = _overlaps(places, start, end)
        in_secrets = np.zeros(len(change), dtype=bool)
        for span in row.spans:
            in_secrets |= _overlaps(places, span.start, span.end)
        changes.append(
            [
                change[in_secrets].sum(),
                change[in_sentence & ~in_secrets].sum(),
                change[in_sentence].sum(),
            ]
        )
    return np.array(changes)


def _overlaps(places: np.ndarray, start: int, end: int) -> np.ndarray:
    """Return which tokens reach into a range of characters, shape ``(tokens,)``.

    Parameters
    ----------
    places
        Shape ``(tokens, 2)``: start and end of each token in the text.
    """
    return (places[:, 0] < end) & (start < places[:, 1])


def main() -> None:
    """Measure all seeds, and print the table."""
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument(
        "--seeds", type=seed_list, default="0:20", help="FIRST:END or N,N"
    )
    parser.add_argument("--size", choices=("full", "small"), default="small")
    options = parser.parse_args()

    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            lab = Lab(Path(folder) / f"seed-{seed}", seed, SIZES[options.size])
            if lab.natural:
                continue
            for key, shares_of_part in shares_of_seed(lab).items():
                shares[key] += shares_of_part

    print("| canaries | part | number | mean share that became more likely | p |")
    print("|---|---|---|---|---|")
    for (split, part), values in shares.items():
        p = ttest_1samp(values, 0.5, alternative="less").pvalue
        print(f"| {split} | {part} | {len(values)} | {np.mean(values):.3f} | {p:.2g} |")


if __name__ == "__main__":
    run_benchmark(main)
