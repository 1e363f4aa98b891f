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
    from spark_audit.checkpoints.server import Server

TEXTS_OF_TRIAL = 64
"""Texts that are scored both ways."""

MAX_LOGPROB_DIFFERENCE = 0.02
"""Nats a token by which a text's scores may differ in the mean of its tokens."""

REQUESTS_AT_ONCE = 8

SERVED_PASSES = ("plain", "candidates")
"""Passes that need no more than log-probabilities."""


def run(
    loaded: Loaded, items: Sequence[AnyItem], task: Task
) -> Iterator[tuple[AnyItem, dict[str, np.ndarray]]]:
    """Yield each item with its columns, from a server that agrees with the checkpoint.

    Columns of the plain pass that a server cannot tell are NaN, ranks 0.

    Raises
    ------
    CheckpointError
        If it does not agree, or does not answer as it must.
    """
    task.note(agreement(loaded, items))
    server = loaded.served
    assert server is not None

    # An interrupt does not wait for answers on their way: these threads end with the
    # process, which those of concurrent.futures would keep from ending.
    with ThreadPool(REQUESTS_AT_ONCE) as pool:
        for item in items:
            if isinstance(item, Candidates):
                yield item, _candidate_columns(item, pool, server)

        texts = [item for item in items if isinstance(item, Item)]
        column_types = COLUMN_TYPES[task.scoring_pass.kind]
        nll_of_texts = pool.imap(server.nll, [text.ids for text in texts])
        for text, nll in zip(texts, nll_of_texts, strict=True):
            columns = {}
            for name, dtype in column_types.items():
                unknown = np.nan if dtype.kind == "f" else 0
                columns[name] = np.full(len(nll), unknown, dtype)
            columns["nll"] = nll.astype(column_types["nll"])  # (n - 1,), nats
            yield text, columns


def _candidate_columns(
    item: Candidates, pool: ThreadPool, server: Server
) -> dict[str, np.ndarray]:
    """Return sum and mean of the NLL of each candidate, float32."""
    texts = [np.append(item.prefix, row) for row in item.rows]

    totals = []
    for row, nll in zip(item.rows, pool.imap(server.nll, texts), strict=True):
        # The server scores prefix and candidate; the candidate stands at the end.
        totals.append(nll[-len(row) :].sum())

    total = np.array(totals)  # (candidates,)
    n_tokens = np.array([len(row) for row in item.rows])  # (candidates,)
    return {
        "nll_sum": total.astype(np.float32),
        "nll_mean": (total / n_tokens).astype(np.float32),
    }


def agreement(loaded: Loaded, items: Sequence[AnyItem]) -> str:
    """Compare a server with the checkpoint here; return what a reader must know.

    Raises
    ------
    CheckpointError
        If a text's scores differ by more than :data:`MAX_LOGPROB_DIFFERENCE` nats per
        token in the mean, or all scores are one number, as of a server that has none.
    """
    from spark_audit.scoring.passes.plain import Scorer

    server = loaded.served
    assert server is not None

    # Score the same texts there and here.
    texts = _trial_texts(items)
    with ThreadPool(REQUESTS_AT_ONCE) as pool:
        served = list(pool.imap(server.nll, [text.ids for text in texts]))
    with loaded.active() as model:
        scorer = Scorer(loaded, model, texts[0], lambda _: None)
        scored_here = [scorer.nll([text])[0] for text in texts]

    # The server's are float64, and so are the differences.
    mean_differences = []
    for here, there in zip(scored_here, served, strict=True):
        mean_differences.append(np.abs(here - there).mean())
    differences = np.array(mean_differences)  # (texts,), nats per token

    if problem := _disagreement(np.concatenate(served), differences):
        raise CheckpointError(
            problem,
            where=server.url,
            fix="check which model, adapter and dtype it serves, or audit the "
            "checkpoint here",
        )
    return (
        "scored by a server, which agrees with the same checkpoint scored here on "
        f"{len(texts)} texts: at most {differences.max():.1e} nats per token difference"
    )


def _disagreement(served: np.ndarray, differences: np.ndarray) -> str:
    """Return why a server's scores cannot be used; empty if they agree.

    Parameters
    ----------
    served
        Shape ``(tokens,)``: the server's scores of all tokens.
    differences
        Shape ``(texts,)``: mean absolute difference of each text, nats per token.
    """
    if len(served) > 1 and np.ptp(served) == 0:
        return f"its scores of all {len(served)} tokens are one and the same number"
    if differences.max() > MAX_LOGPROB_DIFFERENCE:
        return (
            f"its scores are not this checkpoint's: of {len(differences)} texts one is "
            f"{differences.max():.2g} nats per token away, all are "
            f"{differences.mean():.2g} in the mean (at most "
            f"{MAX_LOGPROB_DIFFERENCE}); does it leave out the adapter?"
        )
    return ""


def _trial_texts(items: Sequence[AnyItem]) -> list[Item]:
    """Draw some items as texts, of those that have a token to be scored.

    The draw is the same in every call, so that a resumed run compares the same texts.
    """
    texts: list[Item] = []
    for i in np.random.default_rng(0).permutation(len(items)):
        text = _text(items[i])
        if len(text.ids) > 1:
            texts.append(text)
    return texts[:TEXTS_OF_TRIAL]


def _text(item: AnyItem) -> Item:
    """Return an item as a text; candidates as the prefix with the first of them."""
    if isinstance(item, Item):
        return item
    if not isinstance(item, Candidates):
        raise InputError("a server scores texts and candidates only", where="--ckpt")
    return item.example
