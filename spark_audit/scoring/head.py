"""Hidden states to token columns: the head in float32, over the whole vocabulary.

Logits live in one reused buffer of a bounded number of positions; everything that is
kept of them is taken from the very same numbers, so that a target never ties with
itself and never beats itself by a rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import torch

from spark_audit.scoring.table import PLAIN_COLUMNS

MASKED = -1e30
"""Logit of a vocabulary row that is no token: its probability is exactly 0, and unlike
minus infinity it stays finite in products with 0."""

TOP_TOKENS = 40
"""The truncation of top-k sampling that ``top40_logp`` is about."""

NUCLEUS_SHARES = (0.9, 0.95)
"""Those of top-p sampling that ``top_p90`` and ``top_p95`` are about."""

# Elements of the logits buffer and of the two working buffers, on CPU and elsewhere.
# The working buffers are small on CPU so that a group of rows stays in the cache
# through all passes over it.
CPU_BUFFER, CPU_GROUP, CPU_ROWS = 2**25, 2**18, 1024
GPU_BUFFER, GPU_GROUP, GPU_ROWS = 2**28, 2**26, 8192

ROWS_RETAKEN = 64
"""Rows of which something is taken again at a time: moments in float64, nuclei."""


@dataclass(frozen=True)
class Transform:
    """What a model does to the logits behind its linear head, in this order."""

    scale: float = 1.0
    softcap: float | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits; those that are given are overwritten."""
        if self.scale != 1:
            logits.mul_(self.scale)
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_()
            # What tanh gave is what its gradient is made of.
            training = logits.requires_grad
            logits = logits * self.softcap if training else logits.mul_(self.softcap)
        return logits


@cache
def fused_on(device: torch.device) -> ModuleType | None:
    """The kernel that reads a row once, where there are a GPU and Triton that runs."""
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    try:
        fused = import_module("spark_audit.scoring.fused")
        row = torch.zeros(1, fused.PIECE, device=device)
        fused.reduce(row, row[:, 0], masked=MASKED)
    except Exception:  # it needs a C compiler, and does not know every GPU
        return None
    return fused


class TokenColumns:
    """Token columns from logits, group by group of rows.

    Parameters
    ----------
    usable
        Shape ``(V,)`` bool: vocabulary rows that are tokens; the others are left out
        of every sum, rank and maximum.
    device
        Where the logits are.
    """

    names: Mapping[str, np.dtype] = PLAIN_COLUMNS
    """What is found, with its dtypes; to be set to ``WITH_NUCLEI`` for these, too."""

    def __init__(self, usable: np.ndarray, device: torch.device) -> None:
        alive = np.flatnonzero(usable)
        self.device = device
        self.count = len(alive)
        # Unusable rows at the end are padding and are not even computed.
        self.vocabulary = int(alive[-1]) + 1 if len(alive) else 0
        holes = np.flatnonzero(~usable[: self.vocabulary])
        self._holes = torch.from_numpy(holes).to(device) if len(holes) else None
        self.width = self.vocabulary
        on_cpu = device.type == "cpu"
        self._group = CPU_GROUP if on_cpu else GPU_GROUP
        self._fused = fused_on(device)
        if self._fused is not None:  # reads a row once: nothing is kept between groups
            piece = self._fused.PIECE
            self.width = -(-self.vocabulary // piece) * piece
            self._group = GPU_BUFFER
        self._budget = CPU_BUFFER if on_cpu else GPU_BUFFER
        self._most = CPU_ROWS if on_cpu else GPU_ROWS
        self._logits = torch.empty(0, device=device)
        self._both = torch.empty(2, 0, device=device)

    @property
    def rows(self) -> int:
        """Positions whose logits fit into the buffer."""
        return min(max(self._budget // self.width, 8), self._most)

    def shrink(self) -> bool:
        """Halve the buffers; ``False`` when they are as small as they may get."""
        if self.rows <= 8:
            return False
        self._most = self.rows // 2
        self._logits = torch.empty(0, device=self.device)
        return True

    def buffer(self, rows: int) -> torch.Tensor:
        """A view ``(rows, width)`` of the reused logits buffer; to be filled."""
        if self._logits.numel() < rows * self.width:
            self._logits = torch.empty(0, device=self.device)  # freed before the next
            self._logits = torch.empty(rows * self.width, device=self.device)
        return self._logits[: rows * self.width].view(rows, self.width)

    def reduce(
        self,
        logits: torch.Tensor,
        targets: torch.Tensor,
        finish: Callable[[torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """Return the columns of rows of logits; the logits are overwritten.

        Parameters
        ----------
        logits
            Shape ``(n, width)``, float32; columns from ``vocabulary`` on are ignored.
        targets
            Shape ``(n,)``, int64.
        finish
            What is still to be done in place to the first ``vocabulary`` columns.

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
        """Return the NLL alone, of any number of targets a row.

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
            if self._fused is not None:
                target_z = z.gather(1, targets[rows])  # (m, k)
                sums, _, _ = self._fused.reduce(z, target_z[:, 0], masked=MASKED)
                log_total = sums[:, :1] + sums[:, 1:2].log()  # (m, 1)
                torch.sub(log_total, target_z, out=nll[rows])
                continue
            # One call that stays in the cache: maximum, sum and difference.
            logp = torch.log_softmax(z, 1, out=self._work(len(z))[0])
            torch.neg(logp.gather(1, targets[rows]), out=nll[rows])
        return nll

    def _groups(
        self, logits: torch.Tensor, finish: Callable[[torch.Tensor], None] | None
    ) -> Iterator[slice]:
        """Yield groups of rows that stay in the cache, finished and masked."""
        step = max(self._group // self.width, 1)
        for start in range(0, len(logits), step):
            rows = slice(start, start + step)
            z = logits[rows]
            if finish is not None:
                finish(z[:, : self.vocabulary])
            z[:, self.vocabulary :] = MASKED
            if self._holes is not None:
                z.index_fill_(1, self._holes, MASKED)
            yield rows

    def _work(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two working buffers ``(rows, width)``, which are reused."""
        size = rows * self.width
        if self._both.shape[1] < size:
            self._both = torch.empty(2, size, device=self.device)
        p, w = self._both[:, :size].view(2, rows, self.width)
        return p, w

    def _reduce_group(
        self, z: torch.Tensor, target: torch.Tensor, columns: torch.Tensor
    ) -> None:
        """Fill the columns of a group of rows.

        Parameters
        ----------
        z
            Shape ``(n, width)``: logits; they are overwritten.
        target
            Shape ``(n, 1)``.
        columns
            Shape ``(n, len(names))``: to be filled.
        """
        target_z = z.gather(1, target)  # (n, 1)
        if self._fused is None:
            top, moments, log_sum, (above, equal) = self._seen(z, target_z)
        else:
            sums, counts, most = self._fused.reduce(z, target_z[:, 0], masked=MASKED)
            top = self._fused.largest(z, most, count=TOP_TOKENS)
            moments = sums[:, 1:].T
            log_sum = sums[:, 1].log()
            above, equal = counts.T
        largest = top[:, :1]  # (n, 1)

        # Of logits relative to the row's largest: sums of p, p z and p z z, (n,) each.
        total, first, square = moments
        mean = first / total
        variance = square / total - mean.square()
        # Far from the largest logit the difference of squares loses its digits.
        is_lost = variance < mean.square() * 0.01
        for rows in torch.split(is_lost.nonzero()[:, 0], ROWS_RETAKEN):
            relative_z = z[rows] if self._fused is None else z[rows] - largest[rows]
            mean[rows], variance[rows] = _moments(relative_z)

        relative = (target_z - largest)[:, 0]  # (n,), 0 for the first guess
        second = top[:, 1] if top.shape[1] > 1 else top[:, 0]
        margin = torch.where(relative == 0, largest[:, 0] - second, relative)
        columns[:, 0] = log_sum - relative  # nll
        columns[:, 1] = above + 1  # rank_lo
        columns[:, 2] = equal - 1  # ties
        columns[:, 3] = mean - log_sum  # mean_logp
        columns[:, 4] = variance.clamp_(min=0).sqrt_()  # sd_logp
        columns[:, 5] = margin  # top1_margin
        top_logp = (top - largest).logsumexp(1).sub_(log_sum)  # (n,)
        if self.count > TOP_TOKENS:
            columns[:, 6] = top_logp.clamp(max=0)  # top40_logp
        else:
            # log p of everything, but a row of NaN stays one.
            columns[:, 6] = log_sum * 0
        if len(self.names) > len(PLAIN_COLUMNS):
            self._fill_nuclei(z, top, log_sum, top_logp.exp(), columns[:, 7:])

    def _fill_nuclei(
        self,
        z: torch.Tensor,
        top: torch.Tensor,
        log_sum: torch.Tensor,
        top_mass: torch.Tensor,
        columns: torch.Tensor,
    ) -> None:
        """Fill the columns of nuclei, ``(n, 2 * len(NUCLEUS_SHARES))``.

        For most rows the largest logits are enough; the others are sorted.
        """
        columns[:] = nuclei(top, log_sum)
        is_flat = top_mass < max(NUCLEUS_SHARES)
        for rows in torch.split(is_flat.nonzero()[:, 0], ROWS_RETAKEN):
            if z.is_cuda:
                falling = z[rows].sort(1, descending=True)[0]
            else:
                # Torch sorts places along, which takes ten times as long.
                rising = np.sort(z[rows].numpy(), 1)
                falling = torch.from_numpy(rising[:, ::-1].copy())
            columns[rows] = nuclei(falling, log_sum[rows]).float()

    def _seen(
        self, z: torch.Tensor, target_z: torch.Tensor
    ) -> tuple[
        torch.Tensor,
        tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        torch.Tensor,
        tuple[torch.Tensor, torch.Tensor],
    ]:
        """Reduce a group by torch; its logits are relative to the largest afterwards.

        Returns
        -------
        tuple
            The largest logits, largest first; sums of p, p z and p z z, up to one
            factor; log sum exp z; counts of logits above the target's and equal.
        """
        p, w = self._work(len(z))
        # First what reads the row in order: it comes from memory here, and from the
        # cache in everything below.
        torch.softmax(z, 1, out=p)
        top = _largest(z)
        # Counts below 2**24 are exact in float32, which is faster to sum than bool.
        above = torch.gt(z, target_z, out=w).sum(1)
        at_least = torch.ge(z, target_z, out=w).sum(1)
        # From here on logits relative to the row's largest: z <= 0.
        z.sub_(top[:, :1])
        # The softmax divides by a plain float32 sum; its error is in every p alike.
        total = p.sum(1)
        torch.mul(p, z, out=w)
        first = w.sum(1)
        return (
            top,
            (total, first, w.mul_(z).sum(1)),
            total.log() - p.amax(1).log(),
            (above, at_least - above),
        )


def _largest(z: torch.Tensor) -> torch.Tensor:
    """Return the ``TOP_TOKENS`` largest of each row, largest first.

    Shape ``(n, min(TOP_TOKENS, width))``.
    """
    if z.device.type != "cpu" or z.shape[1] <= TOP_TOKENS:
        return z.topk(min(TOP_TOKENS, z.shape[1]), 1)[0]
    # Faster than topk, which takes places along.
    rising = np.sort(np.partition(z.numpy(), -TOP_TOKENS, 1)[:, -TOP_TOKENS:], 1)
    return torch.from_numpy(rising[:, ::-1].copy())


def nuclei(largest: torch.Tensor, log_sum: torch.Tensor) -> torch.Tensor:
    """Return sizes of nuclei and logs of their mass.

    A nucleus is the fewest of the likeliest tokens that have a mass of p together: what
    transformers' ``TopPLogitsWarper`` keeps.

    Parameters
    ----------
    largest
        Shape ``(n, k)``: logits, largest first, up to a mass of p at least.
    log_sum
        Shape ``(n,)``: log sum exp of all logits relative to the largest.

    Returns
    -------
    torch.Tensor
        Shape ``(n, 2 * len(NUCLEUS_SHARES))``, float64: size and log of the mass of
        each.
    """
    relative = (largest - largest[:, :1]).double() - log_sum[:, None]
    mass = relative.exp_().cumsum(1)
    columns = []
    for p in NUCLEUS_SHARES:
        last = (mass < p).sum(1).clamp_(max=mass.shape[1] - 1)
        columns += [last + 1, mass.gather(1, last[:, None])[:, 0].log().clamp_(max=0)]
    return torch.stack(columns, 1)


def _moments(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and centred variance of logits under their softmax, in float64."""
    wide = z.double()
    p = torch.softmax(wide, 1)
    mean = (p * wide).sum(1, keepdim=True)
    variance = (p * (wide - mean).square_()).sum(1)
    return mean[:, 0].float(), variance.float()


class Head:
    """A linear output head applied in float32 to hidden states of any dtype.

    Parameters
    ----------
    weight, bias
        Shapes ``(V, H)`` and ``(V,)`` or ``None``: the checkpoint's own tensors. A
        float32 copy is kept of a small weight only; a large one of half precision is
        converted some rows at a time.
    transform
        What the model does to the logits behind the linear map.
    columns
        The sink, with its buffers.
    """

    # Vocabulary rows that are converted at a time where the weight is not float32, and
    # elements (128 MiB) up to which it is converted once for all.
    ROWS = 4096
    COPIED = 2**25

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        transform: Transform,
        columns: TokenColumns,
    ) -> None:
        self._weight = weight[: columns.vocabulary]
        if not weight.is_cuda and self._weight.numel() <= self.COPIED:
            self._weight = self._weight.float()
        self._bias = None if bias is None else bias[: columns.vocabulary].float()
        self._transform = transform
        self._columns = columns
        self._converted = torch.empty(0, device=weight.device)

    def __call__(
        self, hidden: torch.Tensor, targets: torch.Tensor, *, only_nll: bool = False
    ) -> torch.Tensor:
        """Return columns, or NLL alone, of targets after hidden states ``(n, H)``.

        Targets and the result have the shapes of :meth:`TokenColumns.reduce`, or of
        :meth:`TokenColumns.nll`.
        """
        columns = self._columns
        reduce = columns.nll if only_nll else columns.reduce
        # Equal chunks: a small last one would run at a fraction of the peak.
        n_chunks = max(-(-len(hidden) // columns.rows), 1)
        hidden_chunks = hidden.tensor_split(n_chunks)
        target_chunks = targets.tensor_split(n_chunks)
        figures = []
        for hidden_chunk, target_chunk in zip(
            hidden_chunks, target_chunks, strict=True
        ):
            z = columns.buffer(len(hidden_chunk))  # (m, width)
            self._project(hidden_chunk, z[:, : columns.vocabulary])
            figures.append(reduce(z, target_chunk, self._finish))
        return torch.cat(figures)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits ``(n, vocabulary)`` of a few rows, for the self-test."""
        z = torch.empty(len(hidden), self._columns.vocabulary, device=hidden.device)
        self._project(hidden, z)
        self._finish(z)
        return z

    def _finish(self, logits: torch.Tensor) -> None:
        if self._bias is not None:
            logits.add_(self._bias)
        self._transform(logits)

    def _project(self, hidden: torch.Tensor, out: torch.Tensor) -> None:
        """Write hidden states ``(n, H)`` times the weight into ``out``, ``(n, V)``."""
        weight = self._weight
        if weight.dtype == torch.float32:
            torch.mm(hidden.float(), weight.T, out=out)
        elif hidden.is_cuda and hidden.dtype == weight.dtype:
            # Products of half precision are exact in float32 and summed there.
            torch.mm(hidden, weight.T, out_dtype=torch.float32, out=out)
        else:
            wide = hidden.float()
            size = min(self.ROWS, len(weight)) * weight.shape[1]
            if self._converted.numel() < size:
                self._converted = torch.empty(size, device=weight.device)
            for start in range(0, len(weight), self.ROWS):
                weight_rows = weight[start : start + self.ROWS]
                converted = self._converted[: weight_rows.numel()]
                converted = converted.view(weight_rows.shape)
                converted.copy_(weight_rows)
                stop = start + len(weight_rows)
                torch.mm(wide, converted.T, out=out[:, start:stop])
