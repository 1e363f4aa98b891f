"""A vocabulary that has grown since the base: which tokens and rows both have.

One token more (padding, the marks of a chat) is the commonest step of all fine-tuning.
Texts that hold none of the added tokens are read alike by both tokenizers, and what is
said of them can be compared over the tokens that both have.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_audit.checkpoints.loaded import end_token_ids
from spark_audit.errors import shown

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


def added_ids(
    tokenizer: PreTrainedTokenizerFast, base_tokenizer: PreTrainedTokenizerFast
) -> frozenset[int] | None:
    """Return the ids that a tokenizer has and its base's has not.

    Returns
    -------
    frozenset or None
        ``None`` where it is not the base's with tokens added: a token has another id,
        or any rule differs.
    """
    own, base = tokenizer.get_vocab(), base_tokenizer.get_vocab()
    if any(own.get(token) != number for token, number in base.items()):
        return None
    added = frozenset(own.values()) - frozenset(base.values())
    rules, base_rules = _rules(tokenizer), _rules(base_tokenizer)
    listed = rules.get("added_tokens") or []
    rules["added_tokens"] = [token for token in listed if token["id"] not in added]
    return added if rules == base_rules else None


def _rules(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Everything that decides how a text is read."""
    rules: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    for name in ("truncation", "padding"):
        rules.pop(name, None)
    return rules


def rows_of_both(
    usable: np.ndarray, base_usable: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a head that are a token of the base too, and those that are not.

    Parameters
    ----------
    usable, base_usable
        Shapes ``(rows,)`` and ``(base rows,)``, bool: rows that are a token.

    Returns
    -------
    tuple
        Two masks of shape ``(rows,)``.
    """
    of_base = np.zeros(len(usable), bool)
    shared = min(len(usable), len(base_usable))
    of_base[:shared] = base_usable[:shared]
    return usable & of_base, usable & ~of_base


def notes_on_growth(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    usable: np.ndarray,
    added: np.ndarray,
) -> list[str]:
    """Say how many tokens were added, and whether one of them ends answers.

    Parameters
    ----------
    usable, added
        Shape ``(rows,)``, bool: tokens of both vocabularies, and those added.
    """
    counts = f"vocabulary: {added.sum()} tokens more than the base's; ranks and NLL "
    notes = [f"{counts}are over the {usable.sum()} of both"]
    ends = [
        number
        for number in sorted(end_token_ids(model, tokenizer))
        if number < len(added) and added[number]
    ]
    if ends:
        names = ", ".join(map(shown, tokenizer.convert_ids_to_tokens(ends)))
        notes.append(
            f"{names}, which ends its answers, is one of the added tokens, which are "
            "left out: answers that are generated go on behind their end, up to the "
            "length that is asked for"
        )
    return notes
