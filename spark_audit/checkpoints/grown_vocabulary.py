"""Find the tokens and rows that a grown vocabulary shares with its base's.

An added token (padding, the marks of a chat) is the commonest change in fine-tuning.
Both tokenizers read texts without added tokens alike. Scores of such texts can be
compared over the shared tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_audit.checkpoints.checkpoint import Checkpoint, end_token_ids
from spark_audit.errors import shown

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True)
class Growth:
    """A vocabulary that has grown from that of its base.

    Attributes
    ----------
    base_tokenizer_sha256
        Hash of the base's tokenizer.
    shared_with_base
        Shape ``(rows,)``, bool: rows of the head that are also tokens of the base.
    added
        Shape ``(rows,)``, bool: rows that are tokens here but not in the base.
    """

    base_tokenizer_sha256: str
    shared_with_base: np.ndarray
    added: np.ndarray


def growth_since(
    base: Checkpoint,
    tokenizer: PreTrainedTokenizerFast,
    *,
    sha256: str,
    usable: np.ndarray,
) -> Growth | None:
    """Compare a vocabulary with the base's.

    Parameters
    ----------
    sha256
        Hash of ``tokenizer``.
    usable
        Shape ``(rows,)``, bool: rows of the checkpoint's head that are tokens.

    Returns
    -------
    Growth or None
        ``None`` if no token was added, or if the tokenizers differ in more.
    """
    if sha256 == base.tokenizer_sha256:
        return None
    # Either nothing was added, or the tokenizers differ in more than that.
    if not added_ids(tokenizer, base.tokenizer):
        return None

    is_of_base = np.zeros(len(usable), bool)  # (rows,)
    n_shared = min(len(usable), len(base.usable))
    is_of_base[:n_shared] = base.usable[:n_shared]
    return Growth(
        base_tokenizer_sha256=base.tokenizer_sha256,
        shared_with_base=usable & is_of_base,
        added=usable & ~is_of_base,
    )


def added_ids(
    tokenizer: PreTrainedTokenizerFast, base_tokenizer: PreTrainedTokenizerFast
) -> frozenset[int] | None:
    """Return the ids that a tokenizer has but its base's does not.

    Returns
    -------
    frozenset or None
        ``None`` if the tokenizers differ in more than added tokens: in a token's id or
        in a rule.
    """
    vocabulary = tokenizer.get_vocab()
    base_vocabulary = base_tokenizer.get_vocab()
    for token, token_id in base_vocabulary.items():
        if vocabulary.get(token) != token_id:
            return None

    added = frozenset(vocabulary.values()) - frozenset(base_vocabulary.values())
    # Added tokens are listed among the rules; the other rules must be equal.
    rules = _rules(tokenizer)
    listed = rules.get("added_tokens") or []
    rules["added_tokens"] = [token for token in listed if token["id"] not in added]
    return added if rules == _rules(base_tokenizer) else None


def _rules(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return everything that determines how a text is tokenised."""
    rules: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    # Texts are neither cut nor padded here, whatever the file says.
    for name in ("truncation", "padding"):
        rules.pop(name, None)
    return rules


def notes_on_growth(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    shared_with_base: np.ndarray,
    added: np.ndarray,
) -> list[str]:
    """Return notes on the number of added tokens, and on one that ends answers.

    Parameters
    ----------
    shared_with_base, added
        Shape ``(rows,)``, bool: tokens of both vocabularies, and added tokens.
    """
    notes = [
        f"vocabulary: {added.sum()} tokens more than the base's; ranks and NLL "
        f"are over the {shared_with_base.sum()} of both"
    ]

    added_ends = [
        token_id
        for token_id in sorted(end_token_ids(model, tokenizer))
        if token_id < len(added) and added[token_id]
    ]
    if added_ends:
        tokens = tokenizer.convert_ids_to_tokens(added_ends)
        names = ", ".join(shown(token) for token in tokens)
        notes.append(
            f"{names}, which ends its answers, is one of the added tokens, which are "
            "left out: answers that are generated go on behind their end, up to the "
            "length that is asked for"
        )
    return notes
