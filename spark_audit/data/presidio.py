"""Find identifiers with Presidio's recognisers and a spaCy model (optional)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from spark_audit.data.examples import Span
from spark_audit.errors import InputError

Find = Callable[[str], Iterable[Span]]
"""A detector: it returns the identifiers of a text, in no order."""

_MIN_PRESIDIO_SCORE = 0.4
"""Least score of a match: below it, Presidio finds bare digits without a cue."""

# Presidio's classes of recognisers, and the type that their matches get.
_RECOGNISERS = (
    ("EmailRecognizer", "EMAIL"),
    ("CreditCardRecognizer", "CREDIT_CARD"),
    ("UsSsnRecognizer", "SSN"),
    ("UsItinRecognizer", "SSN"),
    ("IbanRecognizer", "ID"),
    ("IpRecognizer", "ID"),
    ("PhoneRecognizer", "PHONE"),
)

_SPACY_MODELS = (
    "en_core_web_trf",
    "en_core_web_lg",
    "en_core_web_md",
    "en_core_web_sm",
)
"""English models of spaCy, from best to worst."""


@lru_cache(maxsize=1)
def by_presidio() -> Find:
    """Return Presidio's detector: recognisers of patterns, and names by spaCy.

    Raises
    ------
    InputError
        If Presidio or a spaCy model is not installed.
    """
    try:
        import spacy
        from presidio_analyzer import predefined_recognizers

        # The best installed model is used; StopIteration means that none is installed.
        installed = (name for name in _SPACY_MODELS if spacy.util.is_package(name))
        model = spacy.load(next(installed))
    except (ImportError, StopIteration) as error:
        raise InputError(
            "Presidio, or a model of spaCy that finds names, is not installed",
            where="option --detector",
            fix="use `--detector rules`, or where spark-audit lies: "
            "pip install '.[presidio]'; python -m spacy download en_core_web_lg",
        ) from error
    recognisers = [
        (getattr(predefined_recognizers, name)(), type) for name, type in _RECOGNISERS
    ]

    def find(text: str) -> Iterator[Span]:
        for recogniser, type in recognisers:
            results = recogniser.analyze(text, recogniser.supported_entities, None)
            likely = [
                result
                for result in results or ()
                if result.score >= _MIN_PRESIDIO_SCORE
            ]
            # `resolved` keeps the first of overlapping results: the likeliest, then the
            # longest.
            likely.sort(key=lambda result: (-result.score, result.start, -result.end))
            for result in likely:
                yield Span(result.start, result.end, type)

        for entity in model(text).ents:
            if entity.label_ == "PERSON":
                yield Span(entity.start_char, entity.end_char, "NAME")

    return find
