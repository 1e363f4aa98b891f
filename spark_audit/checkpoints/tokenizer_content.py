"""Refuse a tokenizer.json, and files beside it, that would do harm.

A harmful file makes a library run for ever, fill the memory, or print text of the file.
A normaliser that doubles each letter thirty times makes a gigabyte of one letter, and a
template can repeat the text as often.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from spark_audit.checkpoints import untrusted
from spark_audit.errors import CheckpointError

GIVE_TOKENIZER = "give the tokenizer that the model was trained with by --tokenizer"
_MAX_GROWTH = 256
"""Largest factor by which all steps together may lengthen a text."""
_MAX_ADDED_TOKENS = 64
"""Most tokens that a template may put around a text."""
_MAX_IDS = 1 << 24
"""Number above the largest id."""
_TEXT_STEPS = ("normalizer", "pre_tokenizer", "decoder")
_TOKEN_FIELDS = {
    "content",
    "single_word",
    "lstrip",
    "rstrip",
    "normalized",
    "special",
    "__type",
}
# A repetition without a limit: "*", "+", "{2,}".
_ENDLESS = re.compile(r"[*+]|\{\d*,\}")
# A class or an escape in an expression stands for one letter.
_ONE_LETTER = re.compile(r"\\[pP]\{[^}]*\}|\\.|\[\^?\]?[^\]]*\]")


def check_content(
    content: dict[str, object], settings_files: Iterable[dict[str, object]]
) -> None:
    """Refuse a tokenizer.json, or a settings file beside it, that would do harm.

    Parameters
    ----------
    content
        Content of tokenizer.json; empty if there is none.
    settings_files
        Contents of the files beside it.

    Raises
    ------
    CheckpointError
        Names the harmful part.
    """
    _check_token_fields(settings_files)
    _check_text_steps(content)
    _check_template(content)
    _check_ids(content)


def vocabulary_of(content: dict[str, object]) -> dict[str, int]:
    """Return token -> id of tokenizer.json; empty if it has another layout."""
    model = content.get("model")
    listed = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(listed, dict):
        tokens = dict(listed)
    elif isinstance(listed, list):
        # Unigram: (piece, score) in order of ids.
        tokens = {piece[0]: token_id for token_id, piece in enumerate(listed)}
    else:
        return {}

    added_tokens = content.get("added_tokens")
    if isinstance(added_tokens, list):
        tokens |= {token["content"]: token["id"] for token in added_tokens}
    return tokens


def _harmful(problem: str) -> CheckpointError:
    """Return the error about a tokenizer that would do harm."""
    return CheckpointError(f"the tokenizer {problem}", fix=GIVE_TOKENIZER)


def _check_token_fields(settings_files: Iterable[dict[str, object]]) -> None:
    """Refuse a token with unknown fields, whose names a library would print."""
    for token in untrusted.objects_in(list(settings_files)):
        is_token = isinstance(token.get("content"), str)
        if is_token and not token.keys() <= _TOKEN_FIELDS:
            fields = ", ".join(sorted(_TOKEN_FIELDS))
            raise _harmful(f"has a token of other fields than {fields}")


def _check_text_steps(content: dict[str, object]) -> None:
    """Refuse steps that make a text much longer, or that may match for ever."""
    growth = 1.0
    steps = [content.get(name) for name in _TEXT_STEPS]
    for step in untrusted.objects_in(steps):
        if "Regex" in step and _nests_repetitions(str(step["Regex"])):
            raise _harmful("repeats what repeats, which may match without end")
        # Steps follow each other, so their factors multiply.
        growth *= _growth_factor(step)

    if growth > _MAX_GROWTH:
        raise _harmful(f"makes a text {growth:.3g} times as long")


def _growth_factor(step: dict[str, object]) -> float:
    """Return the largest factor by which one step can lengthen a text."""
    new_text = step.get("content")
    if step.get("type") == "Replace" and isinstance(new_text, str):
        replaced = dict(untrusted.keys_and_values(step.get("pattern"))).get("String")
        if isinstance(replaced, str) and replaced:
            return max(1.0, len(new_text) / len(replaced))
        # An expression may match an empty text before and after every letter.
        return 1.0 + len(new_text)

    prepended = step.get("prepend")
    if isinstance(prepended, str):
        return max(1.0, len(prepended) / 4)
    return 1.0


def _nests_repetitions(pattern: str) -> bool:
    """Return whether an unlimited repetition contains another one.

    Such an expression, for example ``(a+)+``, takes exponential time on some texts.
    """
    letters = _ONE_LETTER.sub("x", pattern)
    # For each open group: whether something in it repeats without limit.
    repeats_inside = [False]
    for position, letter in enumerate(letters):
        if letter == "(":
            repeats_inside.append(False)
            continue
        closes_repeating_group = False
        if letter == ")" and len(repeats_inside) > 1:
            closes_repeating_group = repeats_inside.pop()
        repeats = _ENDLESS.match(letters, position + 1) is not None
        if closes_repeating_group and repeats:
            return True
        if closes_repeating_group or repeats:
            repeats_inside[-1] = True
    return False


def _check_template(content: dict[str, object]) -> None:
    """Refuse a template that repeats the text, or adds many tokens."""
    # Each special token of the template may stand for several ids.
    n_added = 0
    pieces = Counter[str]()
    for step in untrusted.objects_in(content.get("post_processor")):
        added_ids = step.get("ids")
        if isinstance(added_ids, list):
            n_added += len(added_ids)
        for piece in untrusted.objects_in(step.get("single")):
            pieces.update(piece.keys())

    if pieces["Sequence"] > 1:
        raise _harmful("repeats the text")
    if n_added * pieces["SpecialToken"] > _MAX_ADDED_TOKENS:
        raise _harmful("adds many tokens")


def _check_ids(content: dict[str, object]) -> None:
    """Refuse invalid ids: every gap below the largest id would be written out."""
    try:
        ids: list[object] = list(vocabulary_of(content).values())
    except (AttributeError, LookupError, TypeError, ValueError):
        # The tokenizer's own loader refuses another layout.
        return

    for token_id in ids:
        if type(token_id) is not int or not 0 <= token_id < _MAX_IDS:
            raise _harmful(
                f"has an id that is not a whole number from 0 to {_MAX_IDS - 1}"
            )
