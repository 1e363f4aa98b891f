"""The tables of ``known_truth_erasure.py``, in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median
from typing import NamedTuple

from exact_limits import limits
from finished_lines import Line
from known_truth_erasure_models import SHAPES
from known_truth_erasure_truth import (
    ERASED_BY_CONSTRUCTION,
    NEVER_ERASED,
    is_betraying,
    largest_remaining,
    truth_of,
)

TITLES = {
    "retrained": "retrained without the rows",
    "ascent": "gradient ascent, 36 steps",
    "npo": "NPO",
    "rmu": "like RMU",
    "refusal": "refusal-tuned",
    "last": "ascent on the last layer",
    "noise": "noise on the weights",
    "untouched": "untouched",
}

WAYS = {
    "copies": "with copies, since the base",
    "copies, reference": "with copies, against the reference",
    "as it is": "as it is, since the base",
    "as it is, reference": "as it is, against the reference",
}
"""How each seed is audited: with relearned and rounded copies or without, and with or
without the retrained reference."""

ALARMS = ("REMEMBERED", "SUPPRESSED", "BETRAYS")
"""Verdicts that say that something stands out."""

TRUTHS = ("remembers", "brought back", "betrays", "within", "broken")
VERDICTS = ("REMEMBERED", "SUPPRESSED", "BETRAYS", "ERASED", "CANNOT TELL", "BROKEN")


class Case(NamedTuple):
    """A model after erasure, and what one way of auditing says of it."""

    line: Line
    way: str
    shape: str

    @property
    def verdict(self) -> str:
        """The verdict; ``none`` if the audit gives none."""
        verdicts = self.line["reports"][self.way]["verdicts"]
        return str(verdicts.get(self.shape, {}).get("verdict") or "none")

    @property
    def truth(self) -> str:
        """The measured truth."""
        figures = self.line["figures"]
        return truth_of(figures[self.shape], figures["before"])

    @property
    def margin(self) -> float:
        """The margin that the report printed, nats per token; 0: it has none."""
        margins = self.line["reports"][self.way]["margins"]
        return float(margins[0]["margin"]) if margins else 0.0

    @property
    def is_erased(self) -> bool:
        """Whether "erased within the margin" is true of it."""
        if self.shape in ERASED_BY_CONSTRUCTION:
            return True
        if self.shape in NEVER_ERASED or self.truth == "broken":
            return False
        figures = self.line["figures"][self.shape]
        largest = largest_remaining(figures, with_copies=self.has_copies)
        return largest <= self.margin

    @property
    def has_copies(self) -> bool:
        """Whether copies were audited, too."""
        return self.way.startswith("copies")

    @property
    def is_broken(self) -> bool:
        """Whether it is broken, by the measurement or by the audit."""
        return self.truth == "broken" or self.verdict == "BROKEN"

    @property
    def is_betraying(self) -> bool:
        """Whether it works and betrays as it is, by the measurement."""
        memory = -min(self.line["figures"]["before"]["remaining"])
        figures = self.line["figures"][self.shape]
        return not self.is_broken and is_betraying(figures, memory)

    @property
    def is_hidden(self) -> bool:
        """Whether it is brought back, works, and nothing remains as it is."""
        is_gone = min(self.line["figures"][self.shape]["remaining"]) >= 0
        return self.truth == "brought back" and not self.is_broken and is_gone


class Share(NamedTuple):
    """A share of the models that get a verdict.

    Attributes
    ----------
    name
        What is counted, and of what.
    verdicts
        The verdicts that are counted.
    condition
        Whether a model counts.
    at_most, at_least
        What must hold; None: nothing is asked.
    copies_only
        Whether there must be copies.
    """

    name: str
    verdicts: tuple[str, ...]
    condition: Callable[[Case], bool]
    at_most: float | None = None
    at_least: float | None = None
    copies_only: bool = False

    @property
    def asked(self) -> str:
        """What must hold, in words."""
        if self.at_most is not None:
            return f"at most {self.at_most:.0%}"
        return "" if self.at_least is None else f"at least {self.at_least:.0%}"

    def cell(self, cases: Sequence[Case]) -> str:
        """Return count and limit in the cases of one way; bold: it does not hold."""
        if self.copies_only and not cases[0].has_copies:
            return "-"
        counted = [case for case in cases if self.condition(case)]
        n = len(counted)
        if n == 0:
            return "none"

        count = sum(case.verdict in self.verdicts for case in counted)
        low, high = limits(count, n)
        if self.at_most is not None:
            is_held = count / n <= self.at_most
            limit = f"<= {high:.0%}"
        else:
            is_held = count / n >= (self.at_least or 0.0)
            limit = f">= {low:.0%}"
        counts = f"{count}/{n}" if is_held else f"**{count}/{n}**"
        return f"{counts}, {limit}"


SHARES = (
    Share(
        "ERASED, of what is not erased",
        ("ERASED",),
        lambda case: not case.is_erased,
        at_most=0.05,
    ),
    Share(
        "ERASED, of the retrained",
        ("ERASED",),
        lambda case: case.shape == "retrained",
        at_least=0.8,
    ),
    Share(
        "BETRAYS, of gradient ascents that are not BROKEN",
        ("BETRAYS",),
        lambda case: case.shape == "ascent" and case.verdict != "BROKEN",
        at_least=0.8,
    ),
    Share(
        "BETRAYS, of ascents on the last layer that are not BROKEN",
        ("BETRAYS",),
        lambda case: case.shape == "last" and case.verdict != "BROKEN",
        at_least=0.8,
    ),
    Share(
        "BETRAYS, of all that work and betray as they are",
        ("BETRAYS",),
        lambda case: case.is_betraying,
        at_least=0.8,
    ),
    Share(
        "BETRAYS or SUPPRESSED, of all that work and betray as they are",
        ("BETRAYS", "SUPPRESSED"),
        lambda case: case.is_betraying,
        at_least=0.8,
        copies_only=True,
    ),
    Share(
        "SUPPRESSED, of what is brought back, of which nothing remains as it is",
        ("SUPPRESSED",),
        lambda case: case.is_hidden,
        at_least=0.8,
        copies_only=True,
    ),
    Share(
        "SUPPRESSED or REMEMBERED, of all that is brought back",
        ("SUPPRESSED", "REMEMBERED"),
        lambda case: case.truth == "brought back" and not case.is_broken,
        at_least=0.8,
        copies_only=True,
    ),
    Share(
        "REMEMBERED, of what remembers",
        ("REMEMBERED",),
        lambda case: case.truth == "remembers",
        at_least=0.8,
    ),
    Share(
        "REMEMBERED, SUPPRESSED or BETRAYS, of the retrained",
        ("REMEMBERED", "SUPPRESSED", "BETRAYS"),
        lambda case: case.shape == "retrained",
        at_most=0.05,
    ),
    Share(
        "BROKEN, of what is broken by the measurement",
        ("BROKEN",),
        lambda case: case.truth == "broken",
    ),
    Share(
        "BROKEN, of what works by the measurement",
        ("BROKEN",),
        lambda case: case.truth != "broken",
    ),
)
"""What is counted. The first of ERASED, BETRAYS and SUPPRESSED were asked for."""


def cases_of(lines: Sequence[Line], way: str) -> list[Case]:
    """Return all models after erasure of one way."""
    return [Case(line, way, shape) for line in lines for shape in SHAPES]


def markdown(lines: Sequence[Line]) -> str:
    """Return the tables for readers."""
    if not lines:
        return "No seed is finished.\n"

    lines = sorted(lines, key=lambda line: int(line["seed"]))
    trees = ", ".join(sorted({f"`{line['tree']}`" for line in lines}))
    seeds = ", ".join(str(line["seed"]) for line in lines)
    seconds = {
        part: round(fmean(line["seconds"][part] for line in lines))
        for part in lines[0]["seconds"]
    }
    text = [
        f"{len(lines)} seeds ({seeds}). Tree of `spark_audit` (`git rev-parse "
        f"HEAD:spark_audit`): {trees}. Processor time of a seed: "
        f"{sum(seconds.values())} s (models {seconds['models']}, truth "
        f"{seconds['truth']}, audits {seconds['audits']}).",
        "",
        "## What must hold",
        "",
        f"| share | asked | {' | '.join(WAYS.values())} |",
        "|---" * (len(WAYS) + 2) + "|",
    ]
    for share in SHARES:
        cells = [share.cell(cases_of(lines, way)) for way in WAYS]
        text.append(f"| {share.name} | {share.asked} | {' | '.join(cells)} |")
    text += [
        "",
        "Limits are exact (Clopper and Pearson), one-sided 95%. Bold: does not hold.",
    ]

    text += ["", "## Truth and verdicts", "", *_truth_rows(lines)]
    for way, title in WAYS.items():
        text += ["", f"### Verdicts {title}", "", *_verdict_rows(lines, way)]
    text += ["", "## Cases that went wrong", "", *_wrong_rows(lines)]
    return "\n".join(text) + "\n"


def _truth_rows(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the table of the measured truth, by shape."""
    heads = ["shape", *TRUTHS, "remaining", "relearned", "4 bits", "worse than base"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for shape in ("before", *SHAPES):
        own = [line["figures"][shape] for line in lines]
        cells = [TITLES.get(shape, "(before)")]
        truths = Counter(
            truth_of(line["figures"][shape], line["figures"]["before"])
            for line in lines
        )
        cells += [str(truths[truth] or "") for truth in TRUTHS]
        for key in ("remaining", "relearned", "int4"):
            of_parts = [
                median(figures[key][part] for figures in own) for part in (0, 1)
            ]
            cells.append(" / ".join(f"{value:+.2f}" for value in of_parts))
        cells.append(f"{median(figures['worse'] for figures in own):+.2f}")
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield (
        "Truth: seeds, by measurement. Remaining differences: medians, text / "
        "identifiers, nats per token; below 0: remembered."
    )


def _verdict_rows(lines: Sequence[Line], way: str) -> Iterator[str]:
    """Yield the table of verdicts of one way, by shape."""
    yield f"| shape | {' | '.join(VERDICTS)} | none |"
    yield "|---" * (len(VERDICTS) + 2) + "|"
    for shape in SHAPES:
        verdicts = Counter(Case(line, way, shape).verdict for line in lines)
        counts = [str(verdicts[name] or "") for name in (*VERDICTS, "none")]
        yield f"| {TITLES[shape]} | {' | '.join(counts)} |"
    margins = [Case(line, way, SHAPES[0]).margin for line in lines]
    yield ""
    yield f"Margin: {min(margins):.2f} to {max(margins):.2f} nats per token."


def _wrong_rows(lines: Sequence[Line]) -> Iterator[str]:
    """Yield false "erased", retrained models without it, and missed alarms."""
    yield "| way | seed | shape | truth | verdict | remaining / relearned / 4 bits |"
    yield "|---|---|---|---|---|---|"
    for way, title in WAYS.items():
        for case in cases_of(lines, way):
            is_false = case.verdict == "ERASED" and not case.is_erased
            is_missed = case.shape == "retrained" and case.verdict != "ERASED"
            is_alarm_missed = case.is_betraying and case.verdict not in ALARMS
            if case.has_copies and case.is_hidden:
                is_alarm_missed |= case.verdict != "SUPPRESSED"
            if not (is_false or is_missed or is_alarm_missed):
                continue
            figures = case.line["figures"][case.shape]
            values = " / ".join(
                ", ".join(f"{value:+.2f}" for value in figures[key])
                for key in ("remaining", "relearned", "int4")
            )
            yield (
                f"| {title} | {case.line['seed']} | {TITLES[case.shape]} "
                f"| {case.truth} | {case.verdict} | {values} |"
            )
