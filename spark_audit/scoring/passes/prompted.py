"""The prompted pass: strings behind prompts that are not their own rows' beginnings.

As the plain pass reads them; only what is said of the string itself is kept.

One row a token of the string, as in the plain pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spark_audit.scoring.passes import plain
from spark_audit.scoring.table import LAYOUTS, Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.scoring.items import Continuation, Item


def run(
    loaded: Loaded,
    items: Sequence[Continuation],
    settings: Pass,
    *,
    batch_size: int | None,
    emit: Callable[[Continuation, dict[str, np.ndarray]], None],
    note: Callable[[str], None],
) -> None:
    """Score strings behind prompts and hand over the columns of their tokens.

    Parameters and errors are those of the plain pass.
    """
    by_key = {item.key: item for item in items}

    def behind(item: Item, columns: dict[str, np.ndarray]) -> None:
        own = by_key[item.key]
        first = len(item.ids) - 1 - len(own.scored)
        emit(own, {name: columns[name][first:] for name in LAYOUTS["prompted"]})

    plain.run(loaded, items, settings, batch_size=batch_size, emit=behind, note=note)
