"""A vocabulary that has grown since the base: which tokens and rows both have.

One token more (padding, the marks of a chat) is the commonest step of all fine-tuning.
Texts that hold none of the added tokens are read alike by both tokenizers, and what is
said of them can be compared over the tokens that both have.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np


def added_ids(tokenizer: Any, base_tokenizer: Any) -> frozenset[int] | None:
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


def _rules(tokenizer: Any) -> dict[str, Any]:
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
