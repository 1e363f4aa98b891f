"""Every sentence of a report: rendered from typed facts by the templates of a language.

The files of ``en/`` hold the templates (Jinja). A key such as ``matched.memory`` is a
table: ``text``, ``withdrawn`` (once the correction over the report took the claim away)
and ``subject`` (the checkpoint, where there is none). Templates include one another by
their keys, ``{% include "matched.compared" %}``. Line breaks are spaces.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol

from spark_audit.results.estimate import number

if TYPE_CHECKING:
    from jinja2 import Environment

    from spark_audit.results.findings import Finding, Hits
    from spark_audit.results.rows import Row

DECIMALS = {"bits": 2, "points": 1, "ranks": 1, "clusters": 1}
"""Decimals of a unit, where they are not three."""


class Interval(Protocol):
    """What has a value with limits: a row, a contrast, an estimate."""

    @property
    def value(self) -> float | None: ...  # noqa: D102

    @property
    def low(self) -> float | None: ...  # noqa: D102

    @property
    def high(self) -> float | None: ...  # noqa: D102


def limits(
    low: float | None, high: float | None, *, digits: int = 3, scale: float = 1
) -> str:
    """``" [low, high]"``; empty without an interval."""
    if low is None or high is None:
        return ""
    return f" [{number(scale * low, digits)}, {number(scale * high, digits)}]"


def figure(
    row: Interval, digits: int = 3, *, sign: int = 1, scale: float = 1, unit: str = ""
) -> str:
    """``value [low, high]``; the unit stands behind the value.

    Parameters
    ----------
    sign
        -1 turns the figure round: the value and both limits.
    """
    if row.value is None:
        return "withheld" if getattr(row, "withheld", False) else "-"
    low, high = (row.low, row.high) if sign > 0 else (row.high, row.low)
    value = number(sign * scale * row.value, digits)
    return f"{value}{unit}{limits(low, high, digits=digits, scale=sign * scale)}"


def points(row: Interval) -> str:
    """A difference of shares: ``value [low, high]`` in percentage points."""
    return figure(row, DECIMALS["points"], scale=100)


def percent(row: Interval) -> str:
    """A share: ``value% [low, high]``."""
    return figure(row, DECIMALS["points"], scale=100, unit="%")


def value(row: Row, digits: int = 3, *, scale: float = 1) -> str:
    """The value without its interval."""
    if row.value is None:
        return "withheld" if row.withheld else "-"
    return number(scale * row.value, digits)


def drifted(row: Row | None) -> str:
    """A drift; nothing has drifted on the reference itself."""
    return number(0.0) if row is None or row.value is None else value(row)


def share(part: float | None) -> str:
    """A share in per cent, without its sign."""
    return number(None if part is None else 100 * part, DECIMALS["points"])


def p_value(p: float, *, places: int | None = None, least: float = 0.0) -> str:
    """``p 0.012``: two significant digits, or so many decimals.

    What is below ``least`` is only said to be so.
    """
    if p < least:
        return f"p < {least:g}"
    return f"p {p:.2g}" if places is None else f"p {p:.{places}f}"


def adjusted_p(p: float, tests: int) -> str:
    """A p value that was adjusted over several tests."""
    return f"{p_value(p)} adjusted over {tests} {'test' if tests == 1 else 'tests'}"


def listed(names: Sequence[str], word: str = "and") -> str:
    """``a, b and c``."""
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def of_rows(dose: str) -> str:
    """How many rows a group of doses is of: ``dose:16+`` is "16 or more"."""
    return dose.removeprefix("dose:").replace("+", " or more").replace("-", " to ")


def effect(mde: float, unit: str) -> str:
    """A smallest effect with its unit."""
    return f"{number(mde, DECIMALS.get(unit, 3))} {unit}".strip()


def hits(counted: Hits) -> str:
    """How many, and how many if ties are won; of shared files about how many."""
    sure = f"{'about ' * counted.rounded}{counted.count}"
    if not counted.tied:
        return sure
    return f"{sure} ({counted.count + counted.tied} if ties are won)"


def capitalised(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


FILTERS = {
    one.__name__: one
    for one in (
        *(figure, points, percent, value, drifted, share, number, p_value, of_rows),
        *(effect, hits, capitalised, adjusted_p, listed),
    )
}


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, part in table.items():
        if isinstance(part, str):
            yield f"{prefix}{key}".removesuffix(".text"), part
        else:
            yield from _flat(part, f"{prefix}{key}.")


@lru_cache
def templates(language: str = "en") -> Environment:
    """The templates of a language, by their keys."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    folder = files("spark_audit.sentences").joinpath(language)
    known = {
        key: template
        for file in folder.iterdir()
        for key, template in _flat(tomllib.loads(file.read_text(encoding="utf-8")))
    }
    made = Environment(loader=DictLoader(known), undefined=StrictUndefined)
    made.filters.update(FILTERS)
    return made


def render(key: str, facts: Mapping[str, Any], *, language: str = "en") -> str:
    """The sentence of a key.

    Raises
    ------
    jinja2.TemplateError
        If there is no such sentence, or it lacks a fact.
    """
    text = templates(language).get_template(key).render(facts)
    return " ".join(text.split())


def optional(key: str, *, language: str = "en") -> str:
    """The sentence of a key without facts; empty where there is none."""
    known = key in templates(language).list_templates()
    return render(key, {}, language=language) if known else ""


def text(finding: Finding, *, language: str = "en") -> str:
    """A finding without its subject: what it says, and how sure that is."""
    key = f"{finding.says}.withdrawn" if finding.withdrawn else finding.says
    facts = {**finding.facts, "finding": finding}
    parts = [render(key, facts, language=language)]
    if finding.voided_by:
        parts.insert(0, render("void", facts, language=language))
    else:
        parts.append(render("ending", facts, language=language))
    return " ".join(filter(None, parts))


def subject(finding: Finding, *, language: str = "en") -> str:
    """What a finding is about; empty: the report as a whole."""
    if not _has_subject(finding, language):
        return finding.checkpoint
    facts = {**finding.facts, "finding": finding}
    return render(f"{finding.says}.subject", facts, language=language)


def _has_subject(finding: Finding, language: str) -> bool:
    return f"{finding.says}.subject" in templates(language).list_templates()


def sentence(finding: Finding, *, language: str = "en") -> str:
    """A finding with its subject: it stands by itself."""
    about = subject(finding, language=language)
    shown = text(finding, language=language)
    return f"{about}: {shown}" if about else capitalised(shown)


def lead(finding: Finding, *, language: str = "en") -> str:
    """A finding where its checkpoint stands in front already."""
    if _has_subject(finding, language):
        return sentence(finding, language=language)
    return capitalised(text(finding, language=language))
