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
    """Notes: what ``tokenizer(text)`` adds to a text, on vocabulary and weights."""
    text_config = config.get_text_config()
    out = tokenizer("a", return_special_tokens_mask=True)
    fed, special = out["input_ids"], out["special_tokens_mask"]
    text_at = [i for i, added in enumerate(special) if not added] or [len(fed)]
    before, after = fed[: text_at[0]], fed[text_at[-1] + 1 :]
    front, behind = map(tokenizer.convert_ids_to_tokens, (before, after))
    note = f"special tokens: {' '.join(front) or 'nothing'} before a text, "
    note += f"{' '.join(behind) or 'nothing'} after it"
    bos = getattr(text_config, "bos_token_id", None)
    if bos is not None and bos not in before:
        note += f" (the configuration names id {bos} as BOS; the tokenizer adds none)"
    notes = [note]
    if padded := int((~usable).sum()):
        rows = f"{padded} of {len(usable)} rows of the head"
        notes.append(f"{rows} are no token: left out of softmax and ranks")
    listed = [str(name) for name in getattr(config, "architectures", None) or ()]
    class_name = type(model).__name__
    if listed and class_name not in listed:
        note = f"config.json names the class {shown(listed[0])}"
        notes.append(f"{note}, opened as {class_name}")
    if beside := parts_beside_text(model):
        note = "text alone is scored, by the model's own forward: nothing passes "
        notes.append(f"{note}through its encoders of other media ({', '.join(beside)})")
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    one, other = getattr(head, "weight", None), embeddings.weight
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    # What is equal, transformers has tied.
    if tied and one is not None and one is not other:
        note = "the configuration ties head and embeddings, the file holds two "
        notes.append(f"{note}different ones: used as they are")
    if stored := getattr(config, "quantization_config", None):
        kind = stored.get("quant_method") if isinstance(stored, dict) else None
        notes.append(f"quantised weights ({shown(kind or 'unnamed method')})")
    return notes
