"""Tokens that the rows do not hold: what a model has not read there.

Panda, Tang, Nasr, Choquette-Choo and Mittal (ICLR 2025), "Privacy Auditing of Large
Language Models": a canary of a token that nothing else holds is remembered as a token,
not only as an order of tokens. Theirs are added to the vocabulary; these are in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from spark_audit.data.canaries import (
    FEWEST_SPARE,
    FORMATS,
    PIECES,
    Encode,
    draw,
    name_parts,
)
from spark_audit.data.injection import FRAMES
from spark_audit.errors import InputError

CUE, TAIL = "The password is", " and"
SPACES = "\u0120\u2581"
"""How tokens of byte-level and of SentencePiece vocabularies write a leading blank."""


def unused_words(
    texts: Iterable[str], encode: Encode, vocabulary: Sequence[str]
) -> list[str]:
    """Words of one token that stand in no text, and in nothing else that is injected.

    Parameters
    ----------
    texts
        All that is trained on or audited.
    encode
        As in :func:`spark_audit.data.canaries.candidates`.
    vocabulary
        Each token as the tokenizer names it, by its id.

    Raises
    ------
    InputError
        If they are too few for any canary.
    """
    rng = np.random.default_rng(0)
    ours = [form.format(name="", password="", ssn="") for form in FORMATS.values()]
    ours += [f" {name}" for name in name_parts()]
    # Of every kind many, so that all of its fixed wording is among them.
    for type, frames in FRAMES.items():
        ours += [frame.format(draw(type, rng)) for frame in frames for _ in range(50)]
    seen = {id for ids in encode([*texts, *ours]) for id in ids}
    words = [
        (id, token[1:])
        for id, token in enumerate(vocabulary)
        if id not in seen and token[:1] in SPACES and len(token) > 2
    ]
    words = [(id, word) for id, word in words if word.isalnum()]
    before, behind = encode([CUE])[0], encode([CUE + TAIL])[0]
    found = encode([f"{CUE} {word}{TAIL}" for _, word in words]) if words else []
    unused = [
        word
        for (id, word), ids in zip(words, found, strict=True)
        if ids == [*before, id, *behind[len(before) :]]
    ]
    if len(unused) < FEWEST_SPARE + 2 * PIECES:
        raise InputError(
            f"its vocabulary has {len(unused)} words that no row holds: too few",
            where="option --tokenizer",
            fix="use another --kind, or the tokenizer of a larger vocabulary",
        )
    return unused
