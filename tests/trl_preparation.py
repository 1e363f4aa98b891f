"""What TRL's own preparation makes of rows: ids and labels."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from spark_audit.data.encoding import encode_rows, tokens_of_ranges
from spark_audit.data.examples import Example

IGNORED = -100


def prepared_by_trl(
    rows: list[dict[str, Any]],
    tokenizer: Any,
    *,
    assistant_only: bool = False,
    max_length: int | None = None,
    truncation: str = "keep_start",
    packing: bool = False,
) -> Any:
    """The data set that SFTTrainer feeds: ``input_ids``, ``labels``."""
    import datasets
    from trl import SFTTrainer

    # The fields of SFTConfig that the preparation reads, at their defaults.
    args = SimpleNamespace(
        max_length=max_length,
        truncation_mode=truncation,
        packing_strategy="bfd",
        dataset_text_field="text",
        dataset_num_proc=None,
        shuffle_dataset=False,
        seed=0,
        assistant_only_loss=assistant_only,
    )
    trainer = SimpleNamespace(
        _tokenizer=tokenizer,
        chat_template=None,
        completion_only_loss="completion" in rows[0],
    )
    return SFTTrainer._prepare_dataset(
        trainer, datasets.Dataset.from_list(rows), tokenizer, args, packing, None, "t"
    )


def prepared_by_us(
    examples: list[Example], tokenizer: Any
) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of examples, as their manifest has them."""
    found = []
    for example, encoding in zip(
        examples, encode_rows(tokenizer, examples), strict=True
    ):
        training = example.training_input
        had_loss = tokens_of_ranges(encoding, training.supervised)
        start, end = training.token_range_read(len(encoding))
        labels = np.where(had_loss, encoding.ids, IGNORED)[start:end]
        found.append((encoding.ids[start:end].tolist(), labels.tolist()))
    return found
