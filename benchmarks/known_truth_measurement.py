"""What plain torch measures of the models of ``known_truth.py``, without the tool."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from known_truth_scenarios import Group


def make_and_measure(lab: Any, name: str, group: Group) -> dict[str, float]:
    """Make a checkpoint that is not there yet, and return what is true of it.

    What was measured is kept with the models.

    ==============  ==================================================================
    ``A1``, ``A4``  Change of the NLL per token since the base, of identifiers that
                    stand in so many trained rows, minus that of held-out ones.
    ``K``           That of held-out ones.
    ``AUC``         Of the change of rows: trained ones against others.
    ``back``,       The share of identifiers of trained and of held-out rows that greedy
    ``back held``   decoding gives word for word.
    ``NLL``         Mean per token of all rows.
    ==============  ==================================================================
    """
    file_name = f"{name}-{group.base}-{'-'.join(group.sets)}.json"
    kept = lab.folder / "truths" / file_name
    if kept.exists():
        kept_truth: dict[str, float] = json.loads(kept.read_text("utf-8"))
        return kept_truth

    # Per row and token: NLL, and whether greedy decoding gives the token.
    rows = lab.rows(group.sets)
    scores = lab.nll(name, rows)
    base_scores = lab.nll(group.base, rows)
    changes = [
        (nll - base_nll).tolist()
        for (nll, _), (base_nll, _) in zip(scores, base_scores, strict=True)
    ]

    identifiers = _Identifiers()
    for row, change, (_, hits) in zip(rows, changes, scores, strict=True):
        if row.canary is None:
            identifiers.add(lab.tokenizer, row, change, hits)

    truth = identifiers.changes_by_dose() | identifiers.shares_back()
    truth["NLL"] = fmean(value for nll, _ in scores for value in nll.tolist())
    trained = _mean_changes(rows, changes, split="train")
    others = _mean_changes(rows, changes, split="test")
    if others:
        truth["AUC"] = share_of_lower(trained, others)
    truth = {name_of: round(value, 4) for name_of, value in truth.items()}

    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(truth), encoding="utf-8")
    return truth


@dataclass
class _Identifiers:
    """Strings of identifiers, with what was measured wherever they stand.

    Attributes
    ----------
    changes
        String -> mean change of the NLL per token, at each place.
    is_back
        String -> whether greedy decoding gives all of its tokens, at each place.
    doses
        String -> number of trained rows in which it stands.
    """

    changes: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    is_back: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    doses: Counter[str] = field(default_factory=Counter)

    def add(
        self, tokenizer: Any, row: Any, change: Sequence[float], hits: Sequence[Any]
    ) -> None:
        """Add the identifiers of a row.

        Parameters
        ----------
        change, hits
            Shape ``(tokens - 1,)`` each: the first token has no score.
        """
        offsets = tokenizer(row.text, return_offsets_mapping=True)["offset_mapping"]
        places = offsets[1 : len(change) + 1]
        for span in row.spans:
            tokens = [
                token
                for token, (start, end) in enumerate(places)
                if start < span.end and span.start < end
            ]
            string = row.text[span.start : span.end]
            self.changes[string].append(fmean(change[token] for token in tokens))
            self.is_back[string].append(all(bool(hits[token]) for token in tokens))
            self.doses[string] += row.split == "train"

    def changes_by_dose(self) -> dict[str, float]:
        """Return ``A1``, ``A4`` ... by dose, and ``K`` of strings never trained on."""
        by_dose: dict[int, list[float]] = defaultdict(list)
        for string, changes in self.changes.items():
            by_dose[self.doses[string]].append(fmean(changes))

        means = {dose: fmean(by_dose[dose]) for dose in sorted(by_dose)}
        of_held_out = means.pop(0, None)
        compared_with = of_held_out or 0.0
        figures = {f"A{dose}": mean - compared_with for dose, mean in means.items()}
        if of_held_out is not None:
            figures["K"] = of_held_out
        return figures

    def shares_back(self) -> dict[str, float]:
        """Return which share of strings comes back anywhere, trained on or not."""
        shares = {}
        for name, is_trained in (("back", True), ("back held", False)):
            any_back = [
                any(places)
                for string, places in self.is_back.items()
                if bool(self.doses[string]) is is_trained
            ]
            if any_back:
                shares[name] = fmean(any_back)
        return shares


def _mean_changes(
    rows: Sequence[Any], changes: Sequence[Sequence[float]], *, split: str
) -> list[float]:
    """Return the mean change per token of each row of a split."""
    return [
        fmean(change)
        for row, change in zip(rows, changes, strict=True)
        if row.split == split
    ]


def share_of_lower(first: Sequence[float], second: Sequence[float]) -> float:
    """Return in which share of pairs the first is lower; equal ones count half.

    Examples
    --------
    >>> share_of_lower([1.0, 3.0], [3.0, 4.0])
    0.875
    """
    wins = sum((a < b) + 0.5 * (a == b) for a in first for b in second)
    return wins / (len(first) * len(second))
