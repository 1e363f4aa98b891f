"""Every sentence of a report, by its key: templates as data, and what renders them."""

from spark_audit.sentences.renderer import (
    DECIMALS,
    LANGUAGES,
    capitalised,
    figure,
    knows,
    language,
    limits,
    number,
    optional,
    p_value,
    percent,
    render,
    spoken,
    terms,
    translated,
    under,
)

__all__ = [
    "DECIMALS",
    "LANGUAGES",
    "capitalised",
    "figure",
    "knows",
    "language",
    "limits",
    "number",
    "optional",
    "p_value",
    "percent",
    "render",
    "spoken",
    "terms",
    "translated",
    "under",
]
