"""Templates of pages, sheets and Markdown, and what they all read of a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spark_audit import sentences
from spark_audit.names import series_of
from spark_audit.report.attacks import attack_table, attacks, uncovered
from spark_audit.report.states import (
    SHAPES,
    advice,
    answer,
    doubts,
    gate,
    level,
    meanings,
    outcome_name,
    reading,
    standings,
    state_name,
    surety,
)
from spark_audit.report.summary_tables import entries, glance
from spark_audit.results import Report, by_severity


def environment(**filters: Callable[..., Any]) -> Environment:
    """In HTML and XML all text is escaped; a name that is not given is an error."""
    made = Environment(
        loader=PackageLoader("spark_audit.report.writers"),
        autoescape=lambda name: name is None or name.endswith(("html", "xml")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"capitalised": sentences.capitalised, "size": _size}
    made.filters |= {"ticked": _ticked, **filters}
    return made


def _ticked(text: str) -> Markup:
    """A sentence with what stands between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return Markup("{}").format(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if k % 2 else part
        for k, part in enumerate(parts)
    )


def _size(parameters: int | None) -> str:
    return "-" if parameters is None else f"{parameters:,}"


def facts(report: Report) -> dict[str, Any]:
    """The report and its first screen, by the names that templates use."""
    stand = standings(report)
    tried = attacks(report, stand)
    return {
        "report": report,
        "found": by_severity(report.findings),
        "audited": entries(report),
        "checkpoints": [c for c in report.checkpoints if series_of(c.name) == c.name],
        "standings": stand,
        "answer": answer(stand),
        "states": meanings(),
        "shapes": SHAPES,
        "state_name": state_name,
        "outcome_name": outcome_name,
        "next": advice(stand),
        "level": level(report),
        "reading": reading(report, stand),
        "doubts": doubts(report, stand),
        "gate": gate(stand),
        "surety": surety(stand),
        "attacks": tried,
        "attack_table": attack_table(tried),
        "uncovered": uncovered(tried, stand),
        "glance": glance(report),
        "limits": report.scope,
        "private": sentences.render("table.private"),
        "words": _words,
        "glossary": sentences.terms("glossary"),
        "language": sentences.language(),
    }


def _words(key: str, **facts: Any) -> str:
    return sentences.render(f"page.{key}", **facts)
