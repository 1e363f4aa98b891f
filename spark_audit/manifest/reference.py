"""What the reference model says of every token: in a file without a name, by row.

Rows are scored longest first, and read in their own order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_audit.manifest.packed import Scratch
from spark_audit.scoring.table import COLUMNS, TokenTable

NAMES = ("nll", "mean_logp", "rank_lo")
"""What matching and its balance ask for; a token that was not scored has no NLL."""
ROW = np.dtype([(name, COLUMNS[name]) for name in NAMES])


class Reference:
    """Scores of the tokens of some rows.

    Parameters
    ----------
    ids
        The rows' ids, rising.
    lengths
        Tokens of each row, shape ``(n,)``.
    """

    def __init__(self, ids: Sequence[str], lengths: np.ndarray) -> None:
        self._ids = ids
        self._first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._file = Scratch()

    def put(self, row: int, table: TokenTable, key: str) -> None:
        """Take the scores of a row, which a table has under a key."""
        found = np.zeros(int(self._first[row + 1] - self._first[row]), ROW)
        found["nll"] = np.nan
        own = table.rows(key)
        for name in NAMES:
            found[name][table.position[own]] = table.columns[name][own]
        self._file.write(int(self._first[row]) * ROW.itemsize, found.tobytes())

    def table(self, low: int, high: int) -> TokenTable:
        """The scores of the rows ``low:high``."""
        start, end = self._first[[low, high]].tolist()
        size = ROW.itemsize
        raw = self._file.read(start * size, (end - start) * size)
        rows = np.frombuffer(raw, ROW)
        scored = ~np.isnan(rows["nll"])
        edges = self._first[low : high + 1] - start
        offsets = np.concatenate([[0], np.cumsum(scored)])[edges]
        position = np.arange(end - start) - np.repeat(edges[:-1], np.diff(edges))
        return TokenTable(
            tuple(self._ids[low:high]),
            offsets,
            position[scored].astype(np.int32),
            {name: rows[name][scored] for name in NAMES},
        )
