"""What a dossier says in the same words of every report.

Named are only parts of the frameworks that were looked up: the seven steps of the
ICO's guidance on DPIAs (ico.org.uk, "How do we do a DPIA?"), the four studies of the
CNIL's PIA method, the first question of EDPB Opinion 28/2024 as its executive summary
puts it, requirement v1.0-11.2.5 of the OWASP AISVS (section C11.2), and tests of the
OWASP AI Testing Guide by their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_audit.report.states import Outcome, State
from spark_audit.results import Claim

PLAIN: Mapping[str, tuple[str, str, str]] = {
    "matched": (
        "Are identifiers of training rows likelier than identifiers of the same kinds "
        "that were never trained on?",
        "AITG-DAT-01",
        "nats a token",
    ),
    "twins": (
        "Does a trained identifier rank ahead of made-up ones of its kind?",
        "AITG-DAT-01",
        "bits",
    ),
    "canary": (
        "Are strings that were planted before training, and belong to nobody, known?",
        "AITG-DAT-01",
        "bits",
    ),
    "mia": (
        "Can rows of the training set be told from other rows?",
        "AITG-MOD-04, AISVS v1.0-11.2.5",
        "of AUC",
    ),
    "extract": (
        "Does the model write an identifier out after the text that stood before it?",
        "AITG-APP-03",
        "",
    ),
}
"""What each attack asks, where frameworks ask for it, the unit of its effects."""

RISKS: Mapping[Claim, str] = {
    "verbatim": "It writes identifiers that it was trained on word for word once it is "
    "given the text before them. Whoever has such a text can obtain them.",
    "memory": "It holds true strings of its training data likelier than others of "
    "their kind. Whoever has candidates, for a person's number say, can tell the right "
    "one better than by guessing.",
    "membership": "It shows on which rows it was trained. Whoever holds a person's row "
    "can tell, better than by chance, that it was used.",
    "betrays": "It holds what it was trained on LESS likely than others of its kind, "
    "repeats nothing by that, but tells whose data were used.",
}
"""What a detection means for the persons in the data; "it", the model, does so."""

RESIDUAL: Mapping[State, str] = {
    "LEAKS": "demonstrated. It cannot be treated as free of personal data.",
    "DETECTABLE": "demonstrated for whose data were used, not for what they say.",
    "NOT SHOWN": "not demonstrated. Effects below those in part 3, and all of part 5, "
    "remain.",
    "NOT TESTED": "unknown.",
}
"""What remains, by state."""

OUTCOMES: Mapping[Outcome, str] = {
    "FOUND": "FOUND",
    "confounded": "cannot be told: the texts differ by themselves",
    "void": "tried, but its figures say nothing",
    "not tested": "not tested",
    "not shown": "not shown",
}

UNCOVERED: tuple[str, ...] = (
    "Stronger attackers: models of their own for comparison, gradients, further "
    "training of the weights, many queries that learn from each other.",
    "Other ways to ask: prompts in other words or languages, jailbreaks, sampling. "
    "Identifiers were asked for with the true text before them only.",
    "Attribute inference and profiling: what the model would say of a person that "
    "stands in no training row as such.",
    "Other data subjects: identifiers that nobody annotated, quasi-identifiers, and "
    "whatever the base model was trained on before.",
    "The system around the model: filters, logs, retrieval, access, and what a "
    "provider or its staff can see.",
)
"""What no audit of this kind covers."""

GLOSSARY: Mapping[str, str] = {
    "checkpoint": "a model's weights as they were saved.",
    "base": "the model before this training: what is new is measured from it.",
    "identifier": "text that names a person or is a person's: name, number, address.",
    "canary": "a made-up secret, planted before training to see if it is learned.",
    "twin": "a made-up string of an identifier's kind, put in its place.",
    "nat, bit": "units of surprise: 1 nat less is 2.7 times likelier, 1 bit 2 times.",
    "AUC": "how well two groups are told apart: 0.5 is chance, 1 is always.",
    "interval": "[low, high]: where the true figure lies, with 95% confidence.",
    "p": "how often chance alone would give as much; corrected for many tests.",
    "smallest effect": "what would have been found in 4 of 5 such audits; smaller "
    "ones cannot be excluded.",
}
"""At most ten words."""

FRAMES: tuple[tuple[str, str], ...] = (
    (
        "ICO, guidance on DPIAs",
        "parts 2 to 6 are evidence for its step 2 (describe the processing) and step 5 "
        "(identify and assess risks), part 7 for step 6 (measures), part 8 is step 7 "
        "(sign off). Steps 1, 3 and 4 (need, consultation, necessity) are the "
        "controller's.",
    ),
    (
        "CNIL, PIA method",
        "part 2 belongs to its study of the context, parts 3 to 6 to that of the "
        "risks, part 8 to its validation; the fundamental principles are not treated.",
    ),
    (
        "EDPB Opinion 28/2024, first question (is a model anonymous?)",
        "it asks for an insignificant likelihood (1) that personal data are extracted "
        "from the model directly, by probabilities too: identifiers, twins, canaries "
        "and membership speak of this; and (2) that queries yield them, intended or "
        "not: extraction speaks of this. A finding is evidence against anonymity; none "
        "is not evidence enough for it.",
    ),
    (
        "OWASP",
        "AI Testing Guide, tests AITG-APP-03 (sensitive data leak), AITG-DAT-01 "
        "(training data exposure), AITG-MOD-04 (membership inference); AITG-MOD-05 "
        "(inversion) was not done. AISVS 1.0, section C11.2.",
    ),
)
"""Frameworks whose questions the dossier follows, and where it answers them."""

SIGNED = ("Advice of the data-protection officer", "Residual risk accepted by", "Date")
"""Left free on paper."""

HIDDEN = (
    "Ids and their order only, the most exposed first: a figure of a single row, held "
    "against the base model, is as good as its text (SECURITY.md). The figures stand "
    "in scores/, for the report's owner only."
)
"""Why rows come without figures."""

NUMBERED = (
    "Rows are numbered in the order of scores/matched.parquet, because ids of rows or "
    "sources hold identifiers."
)
"""Stands where ids are left out."""

SHOWN = (
    "This file SHOWS IDENTIFIERS: it is as private as the training data, and for its "
    "owner only."
)
"""Stands on top where they were asked for."""
