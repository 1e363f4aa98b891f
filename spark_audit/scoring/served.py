"""Scores that a server gives: behind a gate, and of log-probabilities alone.

An engine that drops an adapter, or gives no scores of a prompt, certifies privacy that
is not there. So texts are scored here too, or stand in a table, and nothing is taken
from a server that says otherwise of one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING

import numpy as np

from spark_audit.errors import CheckpointError, InputError
from spark_audit.scoring.items import AnyItem, Candidates, Item
from spark_audit.scoring.table import COLUMN_TYPES, Task

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded

TEXTS_OF_TRIAL = 64
"""Texts that are scored both ways."""
MAX_LOGPROB_DIFFERENCE = 0.02
"""Nats a token by which a text's scores may differ in the mean of its tokens."""
AT_ONCE = 8
"""Requests under way."""
SERVED_PASSES = ("plain", "candidates")
"""Passes that need no more than log-probabilities."""


def run(
    loaded: Loaded, items: Sequence[AnyItem], task: Task
) -> Iterator[tuple[AnyItem, dict[str, np.ndarray]]]:
    """Each item with its columns, by a server that agrees with the checkpoint here.

    Columns of the plain pass that a server cannot tell are NaN, ranks 0.

    Raises
    ------
    CheckpointError
        If it does not agree, or does not answer as it must.
    """
    task.note(agreement(loaded, items))
    server = loaded.served
    assert server is not None
    # An interrupt waits for no answer that is on its way: these threads end with the
    # process, which those of concurrent.futures would keep from ending.
    with ThreadPool(AT_ONCE) as pool:
        for item in items:
            if isinstance(item, Candidates):
                fed = [np.append(item.prefix, row) for row in item.rows]
                pairs = zip(item.rows, pool.imap(server.nll, fed), strict=True)
                total = np.array([nll[-len(row) :].sum() for row, nll in pairs])
                count = np.array([len(row) for row in item.rows])
                columns = {"nll_sum": total, "nll_mean": total / count}
                yield item, {k: v.astype(np.float32) for k, v in columns.items()}
        plain = [item for item in items if isinstance(item, Item)]
        layout = COLUMN_TYPES[task.scoring_pass.kind]
        found = pool.imap(server.nll, [one.ids for one in plain])
        for one, nll in zip(plain, found, strict=True):
            columns = {
                name: np.full(len(nll), np.nan if dtype.kind == "f" else 0, dtype)
                for name, dtype in layout.items()
            }
            yield one, columns | {"nll": nll.astype(layout["nll"])}


def agreement(loaded: Loaded, items: Sequence[AnyItem]) -> str:
    """What a reader must know of a server that agrees.

    Raises
    ------
    CheckpointError
        If a text's scores differ by more than :data:`MAX_LOGPROB_DIFFERENCE` nats per
        token in the mean, or all scores are one number, as of a server that has none.
    """
    from spark_audit.scoring.passes.plain import Scorer

    server = loaded.served
    assert server is not None
    drawn = np.random.default_rng(0).permutation(len(items))
    texts = [one for i in drawn if len((one := _text(items[i])).ids) > 1][
        :TEXTS_OF_TRIAL
    ]
    with ThreadPool(AT_ONCE) as pool:
        theirs = list(pool.imap(server.nll, [one.ids for one in texts]))
    with loaded.active() as model:
        scorer = Scorer(loaded, model, texts[0], lambda _: None)
        ours = [scorer.nll([one])[0] for one in texts]
    # The server's are float64, and so are the differences.
    apart = np.array([np.abs(a - b).mean() for a, b in zip(ours, theirs, strict=True)])
    every, what = np.concatenate(theirs), ""
    if len(every) > 1 and np.ptp(every) == 0:
        what = f"its scores of all {len(every)} tokens are one and the same number"
    elif apart.max() > MAX_LOGPROB_DIFFERENCE:
        what = (
            f"its scores are not this checkpoint's: of {len(texts)} texts one is "
            f"{apart.max():.2g} nats per token away, all are {apart.mean():.2g} in the "
            f"mean (at most {MAX_LOGPROB_DIFFERENCE}); does it leave out the adapter?"
        )
    if what:
        fix = "check which model, adapter and dtype it serves, or audit the checkpoint "
        raise CheckpointError(what, where=server.url, fix=f"{fix}here")
    return (
        "scored by a server, which agrees with the same checkpoint scored here on "
        f"{len(texts)} texts: at most {apart.max():.1e} nats per token difference"
    )


def _text(item: AnyItem) -> Item:
    if isinstance(item, Item):
        return item
    if not isinstance(item, Candidates):
        raise InputError("a server does not score such items", where="--ckpt")
    return item.example
