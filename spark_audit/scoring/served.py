"""Take scores from a server, after a check against the checkpoint.

A server that drops an adapter, or gives no scores of a prompt, would suggest privacy
that does not exist. So some texts are also scored here, or are in a table, and a server
that disagrees on any of them is refused. A server gives log-probabilities only.

``scoring/score.py`` calls :func:`run` in place of a pass. ``checkpoints/server.py``
sends the requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING

import numpy as np

from spark_audit.errors import CheckpointError, InputError
from spark_audit.scoring.items import AnyItem, Candidates, Item
from spark_audit.scoring.table import COLUMN_TYPES, PassSettings

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint
    from spark_audit.checkpoints.server import Server

TEXTS_OF_TRIAL = 64
"""Texts that are scored in both ways."""

MAX_LOGPROB_DIFFERENCE = 0.02
"""Largest mean difference of a text's scores, nats per token."""

REQUESTS_AT_ONCE = 8
"""Threads that wait for the server's answers."""

SERVED_PASSES = ("plain", "candidates")
"""Passes that need only log-probabilities."""


def run(
    loaded: Checkpoint, items: Sequence[AnyItem], settings: PassSettings
) -> Iterator[tuple[AnyItem, dict[str, np.ndarray]]]:
    """Yield each item with its columns, from a server that agrees with the checkpoint.

    Columns of the plain pass that a server cannot know are NaN, or 0 for ranks.

    Raises
    ------
    CheckpointError
        If the server disagrees, or does not answer as it must.
    """
    settings.note(agreement(loaded, items))
    server = loaded.served
    assert server is not None

    # An interrupt must not wait for pending answers. These threads end with the
    # process, while those of concurrent.futures would keep it alive.
    with ThreadPool(REQUESTS_AT_ONCE) as pool:
        for item in items:
            if isinstance(item, Candidates):
                yield item, _candidate_columns(item, pool, server)

        texts = [item for item in items if isinstance(item, Item)]
        column_types = COLUMN_TYPES[settings.scoring_pass.kind]
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
    """Return the sum and the mean of each candidate's NLL, float32."""
    texts = [np.append(item.prefix, row) for row in item.continuations]

    sums = []
    for row, nll in zip(item.continuations, pool.imap(server.nll, texts), strict=True):
        # The server scores prefix and candidate together; the candidate is at the end.
        sums.append(nll[-len(row) :].sum())

    nll_sums = np.array(sums)  # (candidates,), nats
    n_tokens = np.array([len(row) for row in item.continuations])  # (candidates,)
    return {
        "nll_sum": nll_sums.astype(np.float32),
        "nll_mean": (nll_sums / n_tokens).astype(np.float32),
    }


def agreement(loaded: Checkpoint, items: Sequence[AnyItem]) -> str:
    """Compare a server with the checkpoint here; return a note for readers.

    Raises
    ------
    CheckpointError
        If a text's scores differ by more than :data:`MAX_LOGPROB_DIFFERENCE` nats per
        token on average, or if all scores are one number, which means that there are
        none.
    """
    from spark_audit.scoring.passes.plain import Scorer

    server = loaded.served
    assert server is not None

    # Score the same texts there and here: (n - 1,) nats each.
    texts = _trial_texts(items)
    with ThreadPool(REQUESTS_AT_ONCE) as pool:
        served = list(pool.imap(server.nll, [text.ids for text in texts]))
    with loaded.active() as model:
        scorer = Scorer(loaded, model, texts[0], lambda _: None)
        scored_here = [scorer.nll([text])[0] for text in texts]

    # The server's scores are float64, and so are the differences.
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
        Shape ``(tokens,)``: scores of all tokens by the server.
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
    """Draw some items as texts, from those with a token to score.

    Every call draws the same items, so that a resumed run compares the same texts.
    """
    texts: list[Item] = []
    for i in np.random.default_rng(0).permutation(len(items)):
        text = _text(items[i])
        if len(text.ids) > 1:
            texts.append(text)
    return texts[:TEXTS_OF_TRIAL]


def _text(item: AnyItem) -> Item:
    """Return an item as a text; for candidates, the prefix and the first of them.

    Raises
    ------
    InputError
        If it is neither: a prompt has to be continued, not scored.
    """
    if isinstance(item, Item):
        return item
    if not isinstance(item, Candidates):
        raise InputError("a server scores texts and candidates only", where="--ckpt")
    return item.example
