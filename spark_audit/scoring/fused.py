"""Reduce each row of logits to sums, counts and maxima in one pass, with Triton.

Torch reads or writes the logits some fourteen times for the same figures. On a GPU,
this takes most of the time for a small model with a large vocabulary. The sums are
those of an online softmax (Milakov and Gimelshein, arXiv 1805.02867), extended by first
and second moments.

``scoring/token_columns.py`` calls :func:`sum_rows` and :func:`largest` where Triton
works, and else computes the same figures with torch. A row is the logits of one scored
position, and *own* is the logit of the token that stands there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TRITON_BLOCK = 2048
"""Logits that a program reads at a time."""

TRITON_PIECE = 32
"""Neighbouring logits of which only the largest is kept for the search of maxima."""


@triton.jit
def _reduce(
    z_at,  # (n, width), float32
    own_at,  # (n,): the targets' logits
    sums_at,  # (n, 4), output
    counts_at,  # (n, 2), output
    most_at,  # (n, pieces), output
    width,
    pieces,
    masked: tl.constexpr,
    block: tl.constexpr,
    piece: tl.constexpr,
):
    """Reduce one row of logits, block by block; each program has one row."""
    # Names that end in `_at` are addresses of arrays, whose shapes stand above. The
    # distance of a logit from the largest one so far is called `away`, and its exp `e`.
    row = tl.program_id(0).to(tl.int64)
    own = tl.load(own_at + row)
    lane = tl.arange(0, block)
    group = tl.arange(0, block // piece)

    # The first shift is the target's logit, which is finite; later it is the largest so
    # far.
    shift = own

    # Sums run by lane and are added at the end. This is as exact as a pairwise sum, and
    # each block needs one reduction, for the largest logit, instead of six.
    total = tl.zeros((block,), tl.float32)  # exp(z - shift)
    first = tl.zeros((block,), tl.float32)  # exp(z - shift) (z - shift)
    second = tl.zeros((block,), tl.float32)  # exp(z - shift) (z - shift)**2
    above = tl.zeros((block,), tl.int32)
    equal = tl.zeros((block,), tl.int32)

    for start in range(0, width, block):
        at = start + lane
        z = tl.load(z_at + row * width + at, mask=at < width, other=masked)

        # The largest logit of each piece, among which the top 40 are found.
        most = tl.max(tl.reshape(z, (block // piece, piece)), axis=1)
        place = start // piece + group
        tl.store(most_at + row * pieces + place, most, mask=place < pieces)

        above += (z > own).to(tl.int32)
        equal += (z == own).to(tl.int32)

        # If a larger logit appears, the sums so far are rescaled to it.
        larger = tl.maximum(shift, tl.max(most))
        step = shift - larger
        shift = larger
        if step != 0:
            scale = tl.exp(step)
            second = scale * (second + 2 * step * first + step * step * total)
            first = scale * (first + step * total)
            total = scale * total

        # Masked logits get a finite distance, so that 0 times its square stays 0. NaN
        # stays.
        away = tl.where(z == masked, -1e4, z - shift)
        e = tl.exp(away)
        total += e
        first += e * away
        second += e * away * away

    tl.store(sums_at + row * 4, shift)
    tl.store(sums_at + row * 4 + 1, tl.sum(total))
    tl.store(sums_at + row * 4 + 2, tl.sum(first))
    tl.store(sums_at + row * 4 + 3, tl.sum(second))
    tl.store(counts_at + row * 2, tl.sum(above))
    tl.store(counts_at + row * 2 + 1, tl.sum(equal))


def sum_rows(
    z: torch.Tensor, own: torch.Tensor, *, masked: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return sums, counts and the largest logit of each piece, for every row.

    Parameters
    ----------
    z
        Shape ``(n, width)``, float32, contiguous, on the GPU; ``width`` is a multiple
        of :data:`TRITON_PIECE`.
    own
        Shape ``(n,)``: the targets' logits.
    masked
        The logit of rows of the vocabulary that are not tokens.

    Returns
    -------
    sums
        Shape ``(n, 4)``, float32: the largest logit m, sum exp(z - m), sum exp(z - m)
        (z - m), and sum exp(z - m) (z - m)**2.
    counts
        Shape ``(n, 2)``, int32: logits above the target's, and equal to it.
    most
        Shape ``(n, width / TRITON_PIECE)``, float32: the largest logit of each piece.
    """
    n, width = z.shape
    n_pieces = width // TRITON_PIECE
    sums = torch.empty(n, 4, device=z.device)
    counts = torch.empty(n, 2, dtype=torch.int32, device=z.device)
    most = torch.empty(n, n_pieces, device=z.device)
    if not n:
        return sums, counts, most

    # Triton uses the current device, which may differ from that of the logits.
    with torch.cuda.device(z.device):
        _reduce[(n,)](
            z,
            own.contiguous(),
            sums,
            counts,
            most,
            width,
            n_pieces,
            masked=masked,
            block=TRITON_BLOCK,
            piece=TRITON_PIECE,
            num_warps=8,
        )
    return sums, counts, most


def largest(z: torch.Tensor, most: torch.Tensor, *, count: int) -> torch.Tensor:
    """Return the ``count`` largest logits of each row, ``(n, count)``, descending.

    They all stand in the ``count`` pieces of largest maximum: the maxima of these
    pieces are ``count`` logits, at least as large as any logit of another piece.

    Parameters
    ----------
    z, most
        Shapes ``(n, width)`` and ``(n, pieces)``, as in :func:`sum_rows`.
    """
    pieces = z.view(len(z), -1, TRITON_PIECE)  # (n, pieces, piece)
    n_chosen = min(count, most.shape[1])
    chosen = most.topk(n_chosen, 1, sorted=False)[1]  # (n, chosen)

    index = chosen[:, :, None].expand(-1, -1, TRITON_PIECE)  # (n, chosen, piece)
    candidates = pieces.gather(1, index).flatten(1)  # (n, chosen * piece)
    return candidates.topk(min(count, candidates.shape[1]), 1)[0]
