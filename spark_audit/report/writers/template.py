"""Templates of pages, sheets and Markdown, and what they all read of a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spark_audit import sentences
from spark_audit.names import original_of, series_of
from spark_audit.report import states
from spark_audit.report.states import attack_table, attacks, uncovered
from spark_audit.report.tables import entries, glance, records_table
from spark_audit.results import OF_REPORT, Report, by_severity

TOLD = (
    *(states.advice, states.answer, states.checks, states.gate, states.level),
    *(states.meanings, states.outcome_name, states.reading, states.state_name),
    *(states.surety, sentences.optional, sentences.terms, original_of, uncovered),
)
"""What templates may call, by name; ``say`` and ``words`` render a sentence."""


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
    made.globals |= {one.__name__: one for one in TOLD}
    made.globals |= {"say": sentences.render, "words": _words, "shapes": states.SHAPES}
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


def _words(key: str, **facts: Any) -> str:
    return sentences.render(f"page.{key}", **facts)


def facts(report: Report) -> dict[str, Any]:
    """The report and its first screen, by the names that templates use."""
    stand = states.standings(report)
    tried = attacks(report, stand)
    # Stages stand in their series.
    whole = [one for one in report.checkpoints if series_of(one.name) == one.name]
    columns = ("name", "source", "format", "base", "dtype")
    opened = [
        {name: getattr(one, name) for name in columns}
        | {"parameters": _size(one.parameters), "SHA-256": one.weights_sha256[:16]}
        | {"notes": "; ".join(one.notes)}
        for one in whole
    ]
    return {
        "report": report,
        "findings": by_severity(report.findings),
        "of_report": OF_REPORT,
        "audited": entries(report),
        "checkpoints": whole,
        "opened": records_table(opened, title="Checkpoints", key="opened"),
        "standings": stand,
        "attacks": tried,
        "attack_table": attack_table(tried),
        "glance": glance(report),
        "language": sentences.language(),
    }
