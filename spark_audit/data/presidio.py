"""Presidio's detectors of identifiers, called without its engine.

No model but spaCy's for names, and no network: Presidio's ``AnalyzerEngine`` would
download a language model when there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from spark_audit.errors import InputError

_SCORE = 0.4
"""Below it Presidio's patterns are bare digit runs that need a cue to mean anything."""
_RECOGNISERS = (
    ("EmailRecognizer", "EMAIL"),
    ("CreditCardRecognizer", "CREDIT_CARD"),
    ("UsSsnRecognizer", "SSN"),
    ("UsItinRecognizer", "SSN"),
    ("IbanRecognizer", "ID"),
    ("IpRecognizer", "ID"),
    ("PhoneRecognizer", "PHONE"),
)
_MODELS = ("en_core_web_trf", "en_core_web_lg", "en_core_web_md", "en_core_web_sm")


@lru_cache(maxsize=2)
def by_presidio(*, names: bool) -> Callable[[str], list[tuple[int, int, str]]]:
    """Its recognisers of patterns, and people's names from a spaCy model if asked for.

    Raises
    ------
    InputError
        If Presidio, or a model of spaCy, is not installed.
    """
    try:
        from presidio_analyzer import predefined_recognizers
    except ImportError as error:
        raise InputError(
            "Presidio is not installed",
            where="option --detector",
            fix="use `--detector rules`, or where spark-audit lies: "
            "pip install '.[presidio]'",
        ) from error
    recognisers = [
        (getattr(predefined_recognizers, name)(), type) for name, type in _RECOGNISERS
    ]
    model = None
    if names:
        import spacy

        installed = [name for name in _MODELS if spacy.util.is_package(name)]
        if not installed:
            raise InputError(
                "Presidio finds names by a spaCy model, and none is installed",
                where="option --detector",
                fix="python -m spacy download en_core_web_lg, or use presidio-patterns",
            )
        model = spacy.load(installed[0])

    def find(text: str) -> list[tuple[int, int, str]]:
        hits = []
        for recogniser, type in recognisers:
            results = recogniser.analyze(text, recogniser.supported_entities, None)
            results = [r for r in results or () if r.score >= _SCORE]
            results.sort(key=lambda r: (-r.score, r.start, -r.end))
            hits += [(r.start, r.end, type) for r in results]
        if model is not None:
            people = (e for e in model(text).ents if e.label_ == "PERSON")
            hits += [(e.start_char, e.end_char, "NAME") for e in people]
        return hits

    return find
