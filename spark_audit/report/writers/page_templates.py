"""The templates of all writers, with what they may call and what they are given."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from spark_audit import sentences
from spark_audit.names import original_of, series_of
from spark_audit.report import first_screen
from spark_audit.report.advice import advice
from spark_audit.report.attacks import attack_table
from spark_audit.report.cells import records_table
from spark_audit.report.checkpoint_states import SHAPES, badge, state_name
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.tables import entries
from spark_audit.report.tried import outcome_name
from spark_audit.results import OF_REPORT, CheckpointFacts, by_severity

FUNCTIONS_OF_TEMPLATES: tuple[Callable[..., Any], ...] = (
    badge,
    advice,
    first_screen.checks,
    first_screen.gate,
    first_screen.headline,
    first_screen.level,
    first_screen.meanings,
    first_screen.page_lead,
    first_screen.reading,
    first_screen.surety,
    first_screen.uncovered,
    first_screen.urgent_remarks,
    original_of,
    outcome_name,
    sentences.capitalised,
    sentences.optional,
    sentences.terms,
    state_name,
)
"""Functions that templates may call by their own names."""


@cache
def environment(**filters: Callable[..., Any]) -> Environment:
    """Return the templates of the package, each of which is compiled once.

    In HTML and XML all text is escaped. A name that is not given is an error.

    Parameters
    ----------
    filters
        Further filters, by the names that templates use.
    """
    templates = Environment(
        loader=PackageLoader("spark_audit.report.writers"),
        autoescape=select_autoescape(default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for function in FUNCTIONS_OF_TEMPLATES:
        templates.globals[function.__name__] = function
    templates.globals["say"] = sentences.render
    templates.globals["words"] = _page_words
    templates.globals["shapes"] = SHAPES
    templates.globals["size"] = _size
    templates.globals["ticked"] = ticked_code
    templates.filters |= filters
    return templates


def _page_words(key: str, **facts: Any) -> str:
    """Return the sentence of a key of the page."""
    return sentences.render(f"page.{key}", **facts)


def _size(n_parameters: int | None) -> str:
    """Return a number of parameters, with commas between thousands."""
    return "-" if n_parameters is None else f"{n_parameters:,}"


def ticked_code(text: str) -> Markup:
    """Return a sentence as HTML, with what stands between backticks as code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        # A backtick without its partner stays as it is.
        return Markup("{}").format(text)

    html = Markup()
    for number, piece in enumerate(pieces):
        # Every other piece stands between two backticks.
        is_code = number % 2 == 1
        html += Markup("<code>{}</code>").format(piece) if is_code else piece
    return html


def template_facts(prepared: PreparedReport) -> dict[str, Any]:
    """Return the report and its first screen, by the names that templates use."""
    report = prepared.report
    # Stages of a series stand in the line of their series.
    whole_checkpoints = [
        checkpoint
        for checkpoint in report.checkpoints
        if series_of(checkpoint.name) == checkpoint.name
    ]
    opened = records_table(
        [_opened(checkpoint) for checkpoint in whole_checkpoints],
        title="Checkpoints",
        key="opened",
    )
    return {
        "report": report,
        "findings": by_severity(report.findings),
        "of_report": OF_REPORT,
        "audited": entries(report),
        "checkpoints": whole_checkpoints,
        "opened": opened,
        "checkpoint_states": prepared.checkpoint_states,
        "attacks": prepared.attacks,
        "attack_table": attack_table(prepared.attacks),
        "key_figures": prepared.key_figures,
        "answer": prepared.answer,
    }


def _opened(checkpoint: CheckpointFacts) -> dict[str, Any]:
    """Return a checkpoint as a record of the table of those that were opened."""
    return {
        "name": checkpoint.name,
        "source": checkpoint.source,
        "format": checkpoint.format,
        "base": checkpoint.base,
        "dtype": checkpoint.dtype,
        "parameters": _size(checkpoint.parameters),
        "SHA-256": checkpoint.weights_sha256[:16],
        "notes": "; ".join(checkpoint.notes),
    }
