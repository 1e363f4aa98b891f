"""Measure the probability of tokens that were added to a base's vocabulary.

Figures use only the tokens that a checkpoint shares with its base. With the added
tokens, each NLL would be higher by -log(1 - mass), and a rank by at most their number.
The mass is their probability together, at one position.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from spark_audit.scoring.items import Item
from spark_audit.scoring.table import Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint
    from spark_audit.scoring.store import PassItems

ADDED_MASS_TEXTS = 64
"""Texts on which the mass is measured."""


def added_mass(loaded: Checkpoint, items: list[Item]) -> np.ndarray:
    """Return the added tokens' probability at each position of texts.

    Shape ``(tokens,)``, float64. It is computed from two NLLs, over the shared tokens
    and over all tokens: the second is higher by -log(1 - mass).
    """
    from spark_audit.scoring.passes.plain import Scorer

    assert loaded.added is not None
    with_added = replace(loaded, usable=loaded.usable | loaded.added)

    differences = []
    with loaded.active() as model:
        over_shared = Scorer(loaded, model, items[0], lambda _: None)
        over_all = Scorer(with_added, model, items[0], lambda _: None)
        # One text at a time: both NLLs then come from the same batch.
        for item in items:
            nll_over_all = over_all.nll([item])[0].astype(np.float64)  # (n - 1,)
            nll_over_shared = over_shared.nll([item])[0]  # (n - 1,)
            differences.append(nll_over_all - nll_over_shared)

    # A difference below 0 is a rounding error.
    difference: np.ndarray = np.concatenate(differences).clip(min=0)  # (tokens,)
    return np.asarray(-np.expm1(-difference))


def added_remarks(loaded: Checkpoint, pass_items: PassItems, seed: int) -> list[str]:
    """Return a remark on how much added tokens could change figures.

    It is measured on some texts of the plain pass. It is empty for other passes,
    because a report needs it once, and for a checkpoint without added tokens.
    """
    items = pass_items.items
    is_plain = pass_items.scoring_pass == Pass()
    if loaded.added is None or not is_plain or loaded.served is not None:
        return []
    if not len(items):
        return []

    drawn = np.random.default_rng(seed).permutation(len(items))[:ADDED_MASS_TEXTS]
    # In the plain pass all items are texts, but a type checker cannot know this.
    texts = [item for i in drawn if isinstance(item := items[i], Item)]
    mass = added_mass(loaded, texts)  # (positions,)
    if not len(mass):
        return []

    count = int(loaded.added.sum())
    tokens = "token holds" if count == 1 else "tokens hold"
    return [
        f"the {count} added {tokens} {mass.mean():.1e} of the probability in the mean "
        f"and {mass.max():.1e} at most ({len(mass)} positions of {len(texts)} texts): "
        f"with them the NLL would be {-np.log1p(-mass).mean():.1e} nats per token "
        f"higher in the mean, and a rank by at most {count}"
    ]
