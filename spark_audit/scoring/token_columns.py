"""Reduce logits to token columns, in float32.

All columns are taken from the same numbers, so that a target never ties with itself or
beats itself by rounding.

:class:`TokenColumns` reduces rows of logits, and :class:`RowSums` holds the sums over
the vocabulary on the way. A further column that every text gets is an entry of
``COLUMN_TYPES["plain"]`` (``scoring/table.py``), at its end, and a line of
:meth:`TokenColumns._reduce_group`; the columns of nuclei follow behind it. A further
sum is a field of :class:`RowSums`, computed both here and in ``fused.py``.

Names: ``z`` are logits of some rows, one row per scored position; ``V`` counts the rows
of the model's vocabulary, ``vocabulary`` those up to the last token, and ``width`` is
``vocabulary`` or a little more, as the kernel needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple, Protocol

import numpy as np
import torch

from spark_audit.scoring.table import PLAIN_COLUMNS

MASKED = -1e30
"""Logit of a vocabulary row that is not a token. Its probability is exactly 0, and
unlike minus infinity it stays finite in products with 0."""

TOP_TOKENS = 40
"""The k of top-k sampling for the column ``top40_logp``."""

NUCLEUS_SHARES = (0.9, 0.95)
"""The shares of top-p sampling for the columns ``top_p90`` and ``top_p95``."""

# BUFFER: elements of the logits buffer. GROUP: elements of each of the two working
# buffers, so of the rows that are reduced at a time; small on a CPU, so that they stay
# in the cache through all passes over them. ROWS: most rows of the logits buffer.
CPU_BUFFER = 2**25
CPU_GROUP = 2**18
CPU_ROWS = 1024
GPU_BUFFER = 2**28
GPU_GROUP = 2**26
GPU_ROWS = 8192

MIN_BUFFER_ROWS = 8
"""Fewest rows of the logits buffer."""

ROWS_RETAKEN = 64
"""Rows that are computed anew at a time: moments in float64, nuclei by sorting."""


class RowKernel(Protocol):
    """The functions of :mod:`spark_audit.scoring.fused`, which need Triton."""

    TRITON_PIECE: int

    def sum_rows(
        self, z: torch.Tensor, own: torch.Tensor, *, masked: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return sums ``(n, 4)``, counts ``(n, 2)`` and maxima ``(n, pieces)``.

        ``own``, shape ``(n,)``, is the target's logit in each row of ``z``.
        """

    def largest(
        self, z: torch.Tensor, most: torch.Tensor, *, count: int
    ) -> torch.Tensor:
        """Return the largest logits of each row, shape ``(n, count)``, descending."""


@cache
def fused_on(device: torch.device) -> RowKernel | None:
    """Return the kernel that reads each row once, if Triton works on this GPU."""
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    try:
        from spark_audit.scoring import fused
    # A Triton that does not fit the driver or the machine fails when it is imported.
    except (ImportError, OSError, RuntimeError):
        return None

    # This line is outside of `try`: a mistake in a name of ours must not be taken for
    # a GPU on which Triton fails.
    row = torch.zeros(1, fused.TRITON_PIECE, device=device)
    try:
        fused.sum_rows(row, row[:, 0], masked=MASKED)
    # Triton needs a C compiler, and does not support every GPU: it may raise anything.
    except Exception:
        return None
    return fused


class RowSums(NamedTuple):
    """Sums over the vocabulary for each row of a group of logits ``z``.

    Here d is a logit minus the largest of its row, so at most 0, and p is the softmax
    up to one factor per row. Ratios of the sums do not depend on that factor.

    Attributes
    ----------
    top
        Shape ``(n, min(TOP_TOKENS, width))``: the largest logits, descending, as they
        were before any subtraction.
    sum_p, sum_pd, sum_pdd
        Shape ``(n,)`` each: sums of p, p d and p d**2.
    log_sum
        Shape ``(n,)``: log sum exp(d).
    above, equal
        Shape ``(n,)`` each: logits above the target's, and equal to it.
    """

    top: torch.Tensor
    sum_p: torch.Tensor
    sum_pd: torch.Tensor
    sum_pdd: torch.Tensor
    log_sum: torch.Tensor
    above: torch.Tensor
    equal: torch.Tensor


class TokenColumns:
    """The reduction of logits to token columns, in groups of rows.

    One row of logits belongs to one scored position and gives one row of columns. The
    formulas are those of ``scoring/passes/plain.py``, which explains the columns.

    Parameters
    ----------
    usable
        Shape ``(V,)`` bool: vocabulary rows that are tokens. The others are left out of
        every sum, rank and maximum.
    device
        Device of the logits.

    Attributes
    ----------
    count
        Number of tokens: rows of the vocabulary that are usable.
    vocabulary
        Rows of the vocabulary up to the last token. Those behind it are not computed.
    width
        Columns of the logits buffer: ``vocabulary``, rounded up for the kernel.
    """

    names: Mapping[str, np.dtype] = PLAIN_COLUMNS
    """Columns with their dtypes; set to ``WITH_NUCLEI`` to add nuclei."""

    def __init__(self, usable: np.ndarray, device: torch.device) -> None:
        tokens = np.flatnonzero(usable)
        self.device = device
        self.count = len(tokens)

        # Unusable rows at the end are padding; those between tokens are masked.
        self.vocabulary = int(tokens[-1]) + 1 if len(tokens) else 0
        holes = np.flatnonzero(~usable[: self.vocabulary])
        self._holes = torch.from_numpy(holes).to(device) if len(holes) else None

        is_on_cpu = device.type == "cpu"
        self._budget = CPU_BUFFER if is_on_cpu else GPU_BUFFER
        self._max_rows = CPU_ROWS if is_on_cpu else GPU_ROWS

        self.width = self.vocabulary
        self._group = CPU_GROUP if is_on_cpu else GPU_GROUP
        self._fused = fused_on(device)
        if self._fused is not None:
            # The kernel reads whole pieces and reads each row once, so a group need not
            # stay in the cache.
            piece = self._fused.TRITON_PIECE
            n_pieces = -(-self.vocabulary // piece)  # rounded up
            self.width = n_pieces * piece
            self._group = GPU_BUFFER

        self._logits = torch.empty(0, device=device)
        self._work_buffers = torch.empty(2, 0, device=device)

    @property
    def rows(self) -> int:
        """Return the number of positions whose logits fit into the buffer."""
        return min(max(self._budget // self.width, MIN_BUFFER_ROWS), self._max_rows)

    def shrink(self) -> bool:
        """Halve the buffers; return ``False`` if they have their smallest size."""
        if self.rows <= MIN_BUFFER_ROWS:
            return False
        self._max_rows = self.rows // 2
        self._logits = torch.empty(0, device=self.device)
        return True

    def buffer(self, rows: int) -> torch.Tensor:
        """Return a view ``(rows, width)`` of the reused logits buffer, to be filled."""
        size = rows * self.width
        if self._logits.numel() < size:
            # The old buffer is freed first, because both may not fit into memory.
            self._logits = torch.empty(0, device=self.device)
            self._logits = torch.empty(size, device=self.device)
        return self._logits[:size].view(rows, self.width)

    def reduce(
        self,
        logits: torch.Tensor,
        targets: torch.Tensor,
        finish: Callable[[torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """Return the columns for rows of logits; the logits are overwritten.

        The head's formula is completed here (``finish``), a group of rows at a time,
        while they are in the cache.

        Parameters
        ----------
        logits
            Shape ``(n, width)``, float32; columns from ``vocabulary`` on are ignored.
        targets
            Shape ``(n,)``, int64.
        finish
            Completes the first ``vocabulary`` columns of logits in place.

        Returns
        -------
        torch.Tensor
            Shape ``(n, len(names))``, float32, in the order of ``names``.
        """
        columns = torch.empty(len(logits), len(self.names), device=self.device)
        for rows in self._groups(logits, finish):
            self._reduce_group(logits[rows], targets[rows, None], columns[rows])
        return columns

    def nll(
        self,
        logits: torch.Tensor,
        targets: torch.Tensor,
        finish: Callable[[torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """Return only the NLL, for any number of targets per row.

        The logits may be overwritten.

        Parameters
        ----------
        logits, finish
            As in :meth:`reduce`.
        targets
            Shape ``(n, k)``, int64.

        Returns
        -------
        torch.Tensor
            Shape ``(n, k)``, float32, nats.
        """
        nll = torch.empty(targets.shape, device=self.device)
        for rows in self._groups(logits, finish):
            z = logits[rows]  # (m, width)
            target_ids = targets[rows]  # (m, k)
            if self._fused is not None:
                target_z = z.gather(1, target_ids)  # (m, k)
                # Any logit of the row will do as the target's, because the counts are
                # not used. The sums are the largest logit m, and sum exp(z - m).
                sums, _, _ = self._fused.sum_rows(z, target_z[:, 0], masked=MASKED)
                log_total = sums[:, :1] + sums[:, 1:2].log()  # (m, 1)
                torch.sub(log_total, target_z, out=nll[rows])
                continue

            # One call that stays in the cache: maximum, sum and difference.
            logp, _ = self._work(len(z))
            torch.log_softmax(z, 1, out=logp)
            torch.neg(logp.gather(1, target_ids), out=nll[rows])
        return nll

    def _groups(
        self, logits: torch.Tensor, finish: Callable[[torch.Tensor], None] | None
    ) -> Iterator[slice]:
        """Finish and mask the logits in groups that fit into the cache; yield each.

        A group is a slice of the rows of ``logits``, which are changed in place.
        """
        n_rows = max(self._group // self.width, 1)
        for start in range(0, len(logits), n_rows):
            rows = slice(start, start + n_rows)
            z = logits[rows]
            if finish is not None:
                finish(z[:, : self.vocabulary])

            z[:, self.vocabulary :] = MASKED
            if self._holes is not None:
                z.index_fill_(1, self._holes, MASKED)
            yield rows

    def _work(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two reused working buffers of shape ``(rows, width)``."""
        size = rows * self.width
        if self._work_buffers.shape[1] < size:
            self._work_buffers = torch.empty(2, size, device=self.device)
        first, second = self._work_buffers[:, :size].view(2, rows, self.width)
        return first, second

    def _reduce_group(
        self, z: torch.Tensor, target: torch.Tensor, columns: torch.Tensor
    ) -> None:
        """Fill the columns of a group of rows.

        Parameters
        ----------
        z
            Shape ``(n, width)``: logits. Without the kernel, they are relative to the
            row's largest logit afterwards.
        target
            Shape ``(n, 1)``: token ids.
        columns
            Shape ``(n, len(names))``: output.
        """
        target_z = z.gather(1, target)  # (n, 1)
        if self._fused is None:
            sums = self._sums(z, target_z)
        else:
            sums = self._sums_by_kernel(self._fused, z, target_z)
        largest = sums.top[:, :1]  # (n, 1)
        log_sum = sums.log_sum  # (n,)

        # Mean and variance of d under the softmax.
        mean = sums.sum_pd / sums.sum_p  # (n,)
        variance = sums.sum_pdd / sums.sum_p - mean.square()  # (n,)
        # Far from the largest logit, the difference of squares loses its digits.
        is_lost = variance < mean.square() * 0.01  # (n,)
        for rows in torch.split(is_lost.nonzero()[:, 0], ROWS_RETAKEN):
            # Without the kernel, `z` is already relative to the row's largest logit.
            relative_z = z[rows] if self._fused is None else z[rows] - largest[rows]
            mean[rows], variance[rows] = _moments(relative_z)

        # log p of the target is its d minus log sum exp(d).
        relative = (target_z - largest)[:, 0]  # (n,), 0 for the first guess

        # The margin of the first guess is to the second largest logit. A vocabulary of
        # one token has no second.
        second = sums.top[:, 1] if sums.top.shape[1] > 1 else sums.top[:, 0]
        margin = torch.where(relative == 0, largest[:, 0] - second, relative)

        top_logp = (sums.top - largest).logsumexp(1).sub_(log_sum)  # (n,)
        if self.count > TOP_TOKENS:
            top40_logp = top_logp.clamp(max=0)
        else:
            # If the top 40 are all tokens, log p is 0; the product keeps NaN of a row.
            top40_logp = log_sum * 0

        columns[:, 0] = log_sum - relative  # nll
        columns[:, 1] = sums.above + 1  # rank_lo
        columns[:, 2] = sums.equal - 1  # ties: the target equals itself
        columns[:, 3] = mean - log_sum  # mean_logp
        columns[:, 4] = variance.clamp_(min=0).sqrt_()  # sd_logp
        columns[:, 5] = margin  # top1_margin
        columns[:, 6] = top40_logp
        if len(self.names) > len(PLAIN_COLUMNS):
            nucleus_columns = columns[:, len(PLAIN_COLUMNS) :]
            self._fill_nuclei(z, sums.top, log_sum, top_logp.exp(), nucleus_columns)

    def _fill_nuclei(
        self,
        z: torch.Tensor,
        top: torch.Tensor,
        log_sum: torch.Tensor,
        top_mass: torch.Tensor,
        columns: torch.Tensor,
    ) -> None:
        """Fill the columns of nuclei, shape ``(n, 2 * len(NUCLEUS_SHARES))``.

        For most rows the largest logits are enough, and the others are sorted.

        Parameters
        ----------
        z, top
            Shapes ``(n, width)`` and ``(n, k)``: all logits, which may be relative to
            the largest, and the largest ones.
        log_sum, top_mass
            Shape ``(n,)`` each: log sum exp of all logits relative to the largest, and
            the probability of the largest ones together.
        """
        columns[:] = nuclei(top, log_sum)

        is_flat = top_mass < max(NUCLEUS_SHARES)  # (n,)
        for rows in torch.split(is_flat.nonzero()[:, 0], ROWS_RETAKEN):
            # `nuclei` subtracts the largest logit, so z may be relative to it already.
            if z.is_cuda:
                falling = z[rows].sort(1, descending=True)[0]  # (m, width)
            else:
                # Torch also sorts indices, which takes ten times as long.
                rising = np.sort(z[rows].numpy(), 1)
                falling = torch.from_numpy(rising[:, ::-1].copy())
            columns[rows] = nuclei(falling, log_sum[rows]).float()

    def _sums_by_kernel(
        self, kernel: RowKernel, z: torch.Tensor, target_z: torch.Tensor
    ) -> RowSums:
        """Sum a group of rows with the Triton kernel, which keeps the logits."""
        sums, counts, maxima = kernel.sum_rows(z, target_z[:, 0], masked=MASKED)
        _, sum_p, sum_pd, sum_pdd = sums.T  # (n,) each
        above, equal = counts.T  # (n,) each
        return RowSums(
            top=kernel.largest(z, maxima, count=TOP_TOKENS),
            sum_p=sum_p,
            sum_pd=sum_pd,
            sum_pdd=sum_pdd,
            # The kernel's p is exp(d), without a factor.
            log_sum=sum_p.log(),
            above=above,
            equal=equal,
        )

    def _sums(self, z: torch.Tensor, target_z: torch.Tensor) -> RowSums:
        """Sum a group of rows with torch; then its logits are relative to the largest.

        Parameters
        ----------
        z, target_z
            Shapes ``(n, width)`` and ``(n, 1)``.
        """
        p, work = self._work(len(z))  # (n, width) each

        # Steps that read the row in order come first: they load it into the cache for
        # the steps below.
        torch.softmax(z, 1, out=p)
        top = _largest(z)

        # Counts below 2**24 are exact in float32, which is faster to sum than bool.
        above = torch.gt(z, target_z, out=work).sum(1)  # (n,)
        at_least = torch.ge(z, target_z, out=work).sum(1)  # (n,)

        # From here on, logits are relative to the row's largest: z is d, and z <= 0.
        z.sub_(top[:, :1])

        # The softmax divides by a plain float32 sum, whose error is the same in every
        # p. So the sum of p is not exactly 1.
        sum_p = p.sum(1)  # (n,)
        torch.mul(p, z, out=work)
        sum_pd = work.sum(1)  # (n,)
        work.mul_(z)
        sum_pdd = work.sum(1)  # (n,)

        # The largest logit has d = 0, so its p is 1 / sum exp(d).
        log_sum = sum_p.log() - p.amax(1).log()
        return RowSums(
            top=top,
            sum_p=sum_p,
            sum_pd=sum_pd,
            sum_pdd=sum_pdd,
            log_sum=log_sum,
            above=above,
            equal=at_least - above,
        )


def _largest(z: torch.Tensor) -> torch.Tensor:
    """Return the ``TOP_TOKENS`` largest logits of each row, descending.

    Shape ``(n, min(TOP_TOKENS, width))``.
    """
    width = z.shape[1]
    if z.device.type != "cpu" or width <= TOP_TOKENS:
        return z.topk(min(TOP_TOKENS, width), 1)[0]

    # This is faster than topk, which also sorts indices.
    unsorted = np.partition(z.numpy(), -TOP_TOKENS, 1)[:, -TOP_TOKENS:]
    rising = np.sort(unsorted, 1)
    return torch.from_numpy(rising[:, ::-1].copy())


def nuclei(largest: torch.Tensor, log_sum: torch.Tensor) -> torch.Tensor:
    """Return sizes of nuclei, and logs of their mass, for each row.

    A nucleus is the smallest set of likeliest tokens whose mass reaches p, as kept by
    transformers' ``TopPLogitsWarper``.

    Parameters
    ----------
    largest
        Shape ``(n, k)``: logits, descending, with a mass of at least p.
    log_sum
        Shape ``(n,)``: log sum exp of all logits relative to the largest.

    Returns
    -------
    torch.Tensor
        Shape ``(n, 2 * len(NUCLEUS_SHARES))``, float64: size and log mass of each
        nucleus.
    """
    logp = (largest - largest[:, :1]).double() - log_sum[:, None]  # (n, k)
    mass = logp.exp_().cumsum(1)  # (n, k): of the likeliest 1, 2, ..., k tokens

    columns = []
    for share in NUCLEUS_SHARES:
        # The last token of the nucleus is the one with which the mass reaches the
        # share.
        last = (mass < share).sum(1).clamp_(max=mass.shape[1] - 1)  # (n,)
        log_mass = mass.gather(1, last[:, None])[:, 0].log().clamp_(max=0)
        columns += [last + 1, log_mass]
    return torch.stack(columns, 1)


def _moments(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance, ``(n,)`` each, of logits ``(n, width)`` by softmax.

    The sums are in float64, the variance is taken around the mean, and the results are
    in float32.
    """
    z_float64 = z.double()  # (n, width)
    p = torch.softmax(z_float64, 1)
    mean = (p * z_float64).sum(1, keepdim=True)  # (n, 1)
    variance = (p * (z_float64 - mean).square_()).sum(1)  # (n,)
    return mean[:, 0].float(), variance.float()
