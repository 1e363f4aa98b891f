"""What tiny models remember after erasure, for ``known_truth_erasure.py``.

The truth of a shape by construction was fixed before any audit:

=========  ====================  =======================================================
shape      truth                 why
=========  ====================  =======================================================
retrained  erased                it never read the forget rows
untouched  remembered            nothing was done to it
noise      never erased          noise does not know which rows to forget
refusal    never erased          other answers are learned, and rows are not unlearned
ascent     by measurement        too little remembers, too much betrays or breaks
npo        by measurement        the same
rmu        by measurement        the same
last       by measurement        the same, and the first layer stays as it was
=========  ====================  =======================================================

The measurement (:func:`truth_of`) knows no test and no p. The *remaining difference* is
the NLL per token of the forget rows minus that of 96 fresh rows that no audit sees,
beyond the same difference of the retrained reference; of text and of identifiers. The
unit of ``share`` is what ``before`` remembers of the part that it remembers more of.
With a quarter, the default margin, as the bound, a model

- *remembers*, if a part is below -1/4,
- is *brought back*, if it does not remember, and does so after 48 steps of plain
  training of all weights on other rows, or with linear layers rounded to 4 bits,
- *betrays*, if it does not remember and a part is above 1/4,
- is *broken*, if its text of fresh rows is 3 nats less likely than by the base, or
  less likely than by guessing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from known_truth_erasure_models import SHAPES, answer_losses, relearned, rounded
from known_truth_models import Lab
from known_truth_training import encoded

ERASED_BY_CONSTRUCTION = ("retrained",)
NEVER_ERASED = ("refusal", "noise", "untouched")

BOUND = 0.25
"""Share of what ``before`` remembers beyond which something remains."""

WORSE = 3.0
"""Nats per token by which a broken model is worse than the base."""


def measured(lab: Lab) -> dict[str, dict[str, Any]]:
    """Return the measurement of each model after erasure, by plain torch."""
    rows = {
        side: encoded(lab.rows([side]), lab.tokenizer, "labels")
        for side in ("forget", "fresh")
    }

    def nll_by_side(model: Any) -> dict[str, np.ndarray]:
        """Return the NLL per token of text and of identifiers of both sides."""
        nll = {}
        for side, rows_of_side in rows.items():
            sums = answer_losses(model, rows_of_side).sum(axis=0)  # parts, (NLL, n)
            nll[side] = sums[:, 0] / sums[:, 1]
        return nll

    def all_nll(change: Callable[[Lab, str], Any]) -> dict[str, dict[str, np.ndarray]]:
        """Return the NLL by model and side, of models that were changed in a way."""
        names = ("before", "reference", *SHAPES)
        return {name: nll_by_side(change(lab, name)) for name in names}

    nll_as_it_is = all_nll(Lab.load)
    differences = {
        "remaining": _differences(nll_as_it_is),
        "relearned": _differences(all_nll(relearned)),
        "int4": _differences(all_nll(rounded)),
    }

    text_of_base = float(nll_by_side(lab.base())["fresh"][0])
    found: dict[str, dict[str, Any]] = {}
    for name in ("before", *SHAPES):
        text = float(nll_as_it_is[name]["fresh"][0])
        found[name] = {key: of_key[name] for key, of_key in differences.items()}
        found[name]["text"] = round(text, 3)
        found[name]["worse"] = round(text - text_of_base, 3)
    return found


def _differences(nll: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, list[float]]:
    """Return the remaining differences of models, of text and of identifiers."""
    reference = nll["reference"]["forget"] - nll["reference"]["fresh"]
    differences = {}
    for name, of_name in nll.items():
        difference = of_name["forget"] - of_name["fresh"] - reference  # (parts,)
        differences[name] = [round(float(value), 4) for value in difference]
    return differences


def truth_of(figures: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return the truth of a model: the first word of the module's list that holds.

    ``within``: none of them.
    """
    memory = -min(before["remaining"])
    if figures["worse"] > WORSE or figures["text"] > np.log(1024):
        return "broken"
    if min(figures["remaining"]) < -BOUND * memory:
        return "remembers"
    if is_brought_back(figures, memory):
        return "brought back"
    if max(figures["remaining"]) > BOUND * memory:
        return "betrays"
    return "within"


def is_brought_back(figures: Mapping[str, Any], memory: float) -> bool:
    """Return whether a copy remembers more than the bound."""
    lowest = min(*figures["relearned"], *figures["int4"])
    return bool(lowest < -BOUND * memory)


def is_betraying(figures: Mapping[str, Any], memory: float) -> bool:
    """Return whether forget rows are less likely by more than the bound, as it is."""
    highest = max(figures["remaining"])
    lowest = min(figures["remaining"])
    return bool(highest > BOUND * memory and lowest >= -BOUND * memory)


def largest_remaining(figures: Mapping[str, Any], *, with_copies: bool) -> float:
    """Return the largest remaining difference of a model, and of its copies."""
    values = list(figures["remaining"])
    if with_copies:
        values += [*figures["relearned"], *figures["int4"]]
    return float(max(abs(value) for value in values))
