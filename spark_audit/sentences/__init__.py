"""Every sentence of a report, by its key: templates as data, and what renders them."""

from spark_audit.sentences.renderer import (
    DECIMALS,
    LANGUAGES,
    capitalised,
    figure,
    knows,
    language,
    number,
    optional,
    p_value,
    probability,
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
    "number",
    "optional",
    "p_value",
    "probability",
    "render",
    "spoken",
    "terms",
    "translated",
    "under",
]
