"""A vocabulary that has grown since the base: which tokens and rows both have.

One token more (padding, the marks of a chat) is the commonest step of all fine-tuning.
Texts that hold none of the added tokens are read alike by both tokenizers, and what is
said of them can be compared over the tokens that both have.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_audit.checkpoints.loaded import Loaded, end_token_ids
from spark_audit.errors import shown

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True)
class Growth:
    """A vocabulary beside that of its base, from which it has grown.

    Attributes
    ----------
    base_tokenizer_sha256
        Hash of the base's tokenizer.
    usable
        Shape ``(rows,)``, bool: rows of the head that are a token of the base, too.
    added
        Shape ``(rows,)``, bool: rows that are a token here and none of the base's.
    """

    base_tokenizer_sha256: str
    usable: np.ndarray
    added: np.ndarray


def growth_since(
    base: Loaded,
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
        Shape ``(rows,)``, bool: rows of the checkpoint's head that are a token.

    Returns
    -------
    Growth or None
        ``None`` where no token was added, or where the tokenizers differ in more.
    """
    if sha256 == base.tokenizer_sha256:
        return None
    # Nothing was added, or the tokenizers differ in more than that.
    if not added_ids(tokenizer, base.tokenizer):
        return None

    is_of_base = np.zeros(len(usable), bool)  # (rows,)
    n_shared = min(len(usable), len(base.usable))
    is_of_base[:n_shared] = base.usable[:n_shared]
    return Growth(
        base_tokenizer_sha256=base.tokenizer_sha256,
        usable=usable & is_of_base,
        added=usable & ~is_of_base,
    )


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
    vocabulary = tokenizer.get_vocab()
    base_vocabulary = base_tokenizer.get_vocab()
    for token, token_id in base_vocabulary.items():
        if vocabulary.get(token) != token_id:
            return None

    added = frozenset(vocabulary.values()) - frozenset(base_vocabulary.values())
    # Added tokens are listed among the rules: without them, rules must be equal.
    rules = _rules(tokenizer)
    listed = rules.get("added_tokens") or []
    rules["added_tokens"] = [token for token in listed if token["id"] not in added]
    return added if rules == _rules(base_tokenizer) else None


def _rules(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return everything that decides how a text is read."""
    rules: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    # Texts are neither cut nor padded here, whatever the file says.
    for name in ("truncation", "padding"):
        rules.pop(name, None)
    return rules


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
    notes = [
        f"vocabulary: {added.sum()} tokens more than the base's; ranks and NLL "
        f"are over the {usable.sum()} of both"
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
