"""Turn hidden states into token columns, by the head in float32.

Logits over the whole vocabulary are in a reused buffer for a limited number of
positions. All columns are taken from the same numbers, so that a target never ties with
itself or beats itself by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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

# Elements of the logits buffer and of the two working buffers, on CPU and elsewhere.
# The working buffers are small on a CPU, so that a group of rows stays in the cache
# through all passes over it.
CPU_BUFFER = 2**25
CPU_GROUP = 2**18
CPU_ROWS = 1024
GPU_BUFFER = 2**28
GPU_GROUP = 2**26
GPU_ROWS = 8192

WEIGHT_ROWS_CONVERTED = 4096
"""Rows of a head's weight that are converted to float32 at a time."""

WEIGHT_ELEMENTS_KEPT = 2**25
"""Elements (128 MiB) up to which a head's weight is converted once and kept."""

MIN_BUFFER_ROWS = 8
"""Fewest rows of the logits buffer."""

ROWS_RETAKEN = 64
"""Rows that are recomputed at a time: moments in float64, nuclei by sorting."""


@dataclass(frozen=True)
class Transform:
    """The operations of a model on the logits of its linear head, in this order."""

    scale: float = 1.0
    softcap: float | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the transformed logits; the input is overwritten."""
        if self.scale != 1:
            logits.mul_(self.scale)
        if self.softcap is None:
            return logits

        logits.div_(self.softcap).tanh_()
        # In training, the gradient needs tanh's own output.
        if logits.requires_grad:
            return logits * self.softcap
        return logits.mul_(self.softcap)


class RowKernel(Protocol):
    """The functions of :mod:`spark_audit.scoring.fused`, which need Triton."""

    TRITON_PIECE: int

    def sum_rows(
        self, z: torch.Tensor, own: torch.Tensor, *, masked: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return sums ``(n, 4)``, counts ``(n, 2)`` and maxima ``(n, pieces)``."""

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

    Attributes
    ----------
    top
        Shape ``(n, min(TOP_TOKENS, width))``: the largest logits, descending.
    total, first, square
        Shape ``(n,)`` each: sums of p, p d and p d**2. Here d is a logit minus the
        largest of its row, and p is the softmax up to one factor per row.
    log_sum
        Shape ``(n,)``: log sum exp(d).
    above, equal
        Shape ``(n,)`` each: logits above the target's, and equal to it.
    """

    top: torch.Tensor
    total: torch.Tensor
    first: torch.Tensor
    square: torch.Tensor
    log_sum: torch.Tensor
    above: torch.Tensor
    equal: torch.Tensor


class TokenColumns:
    """The reduction of logits to token columns, in groups of rows.

    Parameters
    ----------
    usable
        Shape ``(V,)`` bool: vocabulary rows that are tokens. The others are left out of
        every sum, rank and maximum.
    device
        Device of the logits.
    """

    names: Mapping[str, np.dtype] = PLAIN_COLUMNS
    """Columns with their dtypes; set to ``WITH_NUCLEI`` to add nuclei."""

    def __init__(self, usable: np.ndarray, device: torch.device) -> None:
        tokens = np.flatnonzero(usable)
        self.device = device
        self.count = len(tokens)

        # Unusable rows at the end are padding and are not computed. Unusable rows
        # between tokens are computed and then masked.
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
            self.width = -(-self.vocabulary // piece) * piece
            self._group = GPU_BUFFER

        self._logits = torch.empty(0, device=device)
        self._work_buffers = torch.empty(2, 0, device=device)

    @property
    def rows(self) -> int:
        """The number of positions whose logits fit into the buffer."""
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
                # Any logit of the row will do, because only the sums are used.
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
        """Yield groups of rows that fit into the cache, finished and masked."""
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
            Shape ``(n, width)``: logits, which are overwritten.
        target
            Shape ``(n, 1)``.
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

        mean = sums.first / sums.total
        variance = sums.square / sums.total - mean.square()
        # Far from the largest logit, the difference of squares loses its digits.
        is_lost = variance < mean.square() * 0.01
        for rows in torch.split(is_lost.nonzero()[:, 0], ROWS_RETAKEN):
            # Without the kernel, `z` is already relative to the row's largest logit.
            relative_z = z[rows] if self._fused is None else z[rows] - largest[rows]
            mean[rows], variance[rows] = _moments(relative_z)

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
            self._fill_nuclei(z, sums.top, log_sum, top_logp.exp(), columns[:, 7:])

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
        """
        columns[:] = nuclei(top, log_sum)

        is_flat = top_mass < max(NUCLEUS_SHARES)  # (n,)
        for rows in torch.split(is_flat.nonzero()[:, 0], ROWS_RETAKEN):
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
        sums, counts, most = kernel.sum_rows(z, target_z[:, 0], masked=MASKED)
        _, total, first, square = sums.T
        above, equal = counts.T
        return RowSums(
            top=kernel.largest(z, most, count=TOP_TOKENS),
            total=total,
            first=first,
            square=square,
            log_sum=total.log(),
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
        above = torch.gt(z, target_z, out=work).sum(1)
        at_least = torch.ge(z, target_z, out=work).sum(1)

        # From here on, logits are relative to the row's largest, so z <= 0.
        z.sub_(top[:, :1])

        # The softmax divides by a plain float32 sum, whose error is the same in every
        # p.
        total = p.sum(1)
        torch.mul(p, z, out=work)
        first = work.sum(1)
        work.mul_(z)
        square = work.sum(1)

        # The largest logit has d = 0, so its p is 1 / sum exp(d).
        log_sum = total.log() - p.amax(1).log()
        return RowSums(
            top=top,
            total=total,
            first=first,
            square=square,
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
    """Return sizes of nuclei, and logs of their mass.

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
    relative = (largest - largest[:, :1]).double() - log_sum[:, None]
    mass = relative.exp_().cumsum(1)  # (n, k): of the likeliest 1, 2, ..., k tokens

    columns = []
    for share in NUCLEUS_SHARES:
        # The last token of the nucleus is the one with which the mass reaches the
        # share.
        last = (mass < share).sum(1).clamp_(max=mass.shape[1] - 1)  # (n,)
        log_mass = mass.gather(1, last[:, None])[:, 0].log().clamp_(max=0)
        columns += [last + 1, log_mass]
    return torch.stack(columns, 1)


def _moments(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and variance, ``(n,)`` each, of logits under their softmax.

    The sums are in float64, the variance is taken around the mean, and the results are
    in float32.
    """
    wide = z.double()  # (n, width)
    p = torch.softmax(wide, 1)
    mean = (p * wide).sum(1, keepdim=True)  # (n, 1)
    variance = (p * (wide - mean).square_()).sum(1)  # (n,)
    return mean[:, 0].float(), variance.float()


class Head:
    """A linear output head applied in float32 to hidden states of any dtype.

    Parameters
    ----------
    weight, bias
        Shapes ``(V, H)`` and ``(V,)`` or ``None``: the checkpoint's own tensors. A
        small weight is kept as a float32 copy. A large weight in half precision is
        converted in parts.
    transform
        The model's operations on the logits after the linear map.
    columns
        The reduction of logits to columns, with its buffers.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        transform: Transform,
        columns: TokenColumns,
    ) -> None:
        self._weight = weight[: columns.vocabulary]  # (vocabulary, H)
        is_small = self._weight.numel() <= WEIGHT_ELEMENTS_KEPT
        if is_small and not weight.is_cuda:
            self._weight = self._weight.float()

        self._bias = None if bias is None else bias[: columns.vocabulary].float()
        self._transform = transform
        self._columns = columns
        self._converted = torch.empty(0, device=weight.device)

    def __call__(
        self, hidden: torch.Tensor, targets: torch.Tensor, *, only_nll: bool = False
    ) -> torch.Tensor:
        """Return columns, or only NLL, of targets that follow hidden states ``(n, H)``.

        Targets and the result have the shapes of :meth:`TokenColumns.reduce`, or of
        :meth:`TokenColumns.nll`.
        """
        columns = self._columns
        to_figures = columns.nll if only_nll else columns.reduce

        # Equal chunks, because a small last one would run far below the peak.
        n_chunks = max(-(-len(hidden) // columns.rows), 1)
        hidden_chunks = hidden.tensor_split(n_chunks)
        target_chunks = targets.tensor_split(n_chunks)

        figures = []
        for hidden_chunk, target_chunk in zip(
            hidden_chunks, target_chunks, strict=True
        ):
            z = columns.buffer(len(hidden_chunk))  # (m, width)
            self._project(hidden_chunk, z[:, : columns.vocabulary])
            figures.append(to_figures(z, target_chunk, self._finish))
        return torch.cat(figures)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits ``(n, vocabulary)`` of a few rows, for the self-test."""
        z = torch.empty(len(hidden), self._columns.vocabulary, device=hidden.device)
        self._project(hidden, z)
        self._finish(z)
        return z

    def _finish(self, logits: torch.Tensor) -> None:
        """Add the bias and apply the transform in place."""
        if self._bias is not None:
            logits.add_(self._bias)
        self._transform(logits)

    def _project(self, hidden: torch.Tensor, out: torch.Tensor) -> None:
        """Write hidden states ``(n, H)`` times the weight into ``out``, ``(n, V)``."""
        weight = self._weight
        if weight.dtype == torch.float32:
            torch.mm(hidden.float(), weight.T, out=out)
            return
        if hidden.is_cuda and hidden.dtype == weight.dtype:
            # Products in half precision are exact in float32, and are summed in
            # float32.
            torch.mm(hidden, weight.T, out_dtype=torch.float32, out=out)
            return

        # Some rows of the weight at a time are converted into a reused float32 buffer.
        wide_hidden = hidden.float()  # (n, H)
        size = min(WEIGHT_ROWS_CONVERTED, len(weight)) * weight.shape[1]
        if self._converted.numel() < size:
            self._converted = torch.empty(size, device=weight.device)
        for start in range(0, len(weight), WEIGHT_ROWS_CONVERTED):
            weight_rows = weight[start : start + WEIGHT_ROWS_CONVERTED]  # (m, H)
            wide_rows = self._converted[: weight_rows.numel()].view(weight_rows.shape)
            wide_rows.copy_(weight_rows)
            stop = start + len(weight_rows)
            torch.mm(wide_hidden, wide_rows.T, out=out[:, start:stop])
