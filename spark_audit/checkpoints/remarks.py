"""Notes on an open checkpoint: its tokenizer, its vocabulary, its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spark_audit.checkpoints.architecture import parts_beside_text
from spark_audit.errors import shown

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast


def remarks(
    config: PreTrainedConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    usable: np.ndarray,
) -> list[str]:
    """Return notes on an open checkpoint, for readers of a report.

    Parameters
    ----------
    config
        The configuration in its folder; that of a loaded model may have changed.
    usable
        Shape ``(rows,)``, bool: rows of the head that are tokens.
    """
    return [
        _note_on_special_tokens(config.get_text_config(), tokenizer),
        *_notes_on_padding(usable),
        *_notes_on_class(config, model),
        *_notes_on_weights(config, model),
    ]


def _note_on_special_tokens(
    text_config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast
) -> str:
    """Return a note on the tokens that a tokenizer adds to a text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids = encoded["input_ids"]
    is_special = encoded["special_tokens_mask"]

    # A tokenizer may give no token at all for the text.
    text_positions = [i for i, special in enumerate(is_special) if not special]
    if not text_positions:
        text_positions = [len(ids)]

    ids_before = ids[: text_positions[0]]
    ids_after = ids[text_positions[-1] + 1 :]
    before = " ".join(tokenizer.convert_ids_to_tokens(ids_before)) or "nothing"
    after = " ".join(tokenizer.convert_ids_to_tokens(ids_after)) or "nothing"
    note = f"special tokens: {before} before a text, {after} after it"

    bos = getattr(text_config, "bos_token_id", None)
    if bos is not None and bos not in ids_before:
        note += f" (the configuration names id {bos} as BOS; the tokenizer adds none)"
    return note


def _notes_on_padding(usable: np.ndarray) -> list[str]:
    """Return a note on rows of the head that are not tokens.

    Parameters
    ----------
    usable
        Shape ``(rows,)``, bool.
    """
    n_padded = int((~usable).sum())
    if not n_padded:
        return []

    return [
        f"{n_padded} of {len(usable)} rows of the head are no token: "
        "left out of softmax and ranks"
    ]


def _notes_on_class(config: PreTrainedConfig, model: PreTrainedModel) -> list[str]:
    """Return notes on its class, and on the parts that text does not pass through."""
    notes: list[str] = []
    listed = [str(name) for name in getattr(config, "architectures", None) or ()]
    class_name = type(model).__name__
    if listed and class_name not in listed:
        named_class = shown(listed[0])
        notes.append(
            f"config.json names the class {named_class}, opened as {class_name}"
        )

    beside_text = parts_beside_text(model)
    if beside_text:
        note = (
            "text alone is scored, by the model's own forward: nothing passes "
            f"through its encoders of other media ({', '.join(beside_text)})"
        )
        notes.append(note)
    return notes


def _notes_on_weights(config: PreTrainedConfig, model: PreTrainedModel) -> list[str]:
    """Return notes on untied or quantised weights."""
    notes: list[str] = []
    text_config = model.config.get_text_config()
    is_said_tied = getattr(text_config, "tie_word_embeddings", False)
    head_weight = getattr(model.get_output_embeddings(), "weight", None)
    # Transformers ties tensors that are equal.
    embeddings_weight = model.get_input_embeddings().weight
    is_tied = head_weight is None or head_weight is embeddings_weight
    if is_said_tied and not is_tied:
        notes.append(
            "the configuration ties head and embeddings, the file holds two "
            "different ones: used as they are"
        )

    quantisation = getattr(config, "quantization_config", None)
    if quantisation:
        method = None
        if isinstance(quantisation, dict):
            method = quantisation.get("quant_method")
        notes.append(f"quantised weights ({shown(method or 'unnamed method')})")
    return notes
