"""The chance that sampling reproduces a span.

After the true prefix of a span, ``p_z`` is the chance that sampling gives exactly its
tokens. ``n_p`` is the number of tries in which it comes at least once with probability
p: (n, p)-discoverable extraction, Hayes et al. (2024), "Measuring memorization through
probabilistic discoverable extraction". A text can be tokenised in several ways and
``p_z`` counts one: a lower bound of the chance of the text. The audit ``extract`` sums
:func:`top_k_logp` over a span's tokens, which gives ``log p_z``, and reports
:func:`n_p`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def top_k_logp(
    nll: ArrayLike, rank: ArrayLike, mass_logp: ArrayLike, *, k: ArrayLike
) -> np.ndarray:
    """Return the log probability of tokens under top-k sampling.

    For temperature T, pass ``nll / T``, and as ``mass_logp`` the log of the summed
    powers 1 / T of the likeliest tokens' probabilities. For top-p sampling, k is the
    size of each nucleus.

    Parameters
    ----------
    nll
        Shape ``(n,)``: nats, over the whole vocabulary.
    rank
        Shape ``(n,)``: strict-greater ranks; a token that ties with the k-th can be
        drawn.
    mass_logp
        Shape ``(n,)``: log of the probability of the k likeliest tokens together.
    k
        One for all tokens, or shape ``(n,)``.

    Returns
    -------
    Shape ``(n,)``, nats; ``-inf`` where the rank is above k.

    Examples
    --------
    A token with a probability of 0.2, where the two likeliest have 0.8 together:

    >>> logp = top_k_logp([-np.log(0.2)], [2], [np.log(0.8)], k=2)
    >>> round(float(np.exp(logp[0])), 6)
    0.25
    """
    logp = -np.asarray(nll, dtype=np.float64)  # (n,), nats
    if np.isnan(logp).any():
        raise ValueError("an NLL is NaN")

    # Rounding of float32 columns must not make a probability larger than 1.
    logp_among_k = np.minimum(logp - np.asarray(mass_logp, dtype=np.float64), 0.0)

    can_be_drawn = np.asarray(rank) <= k
    return np.asarray(np.where(can_be_drawn, logp_among_k, -np.inf))


def n_p(logp: ArrayLike, *, p: float = 0.5) -> np.ndarray:
    """Return the fewest tries in which a span comes at least once with probability p.

    The number is ``ceil(ln(1-p) / ln(1-p_z))``, at least 1, computed from ``log p_z``
    to avoid underflow. It is finite down to ``log p_z`` of -700, and infinite if the
    span cannot be drawn.

    Parameters
    ----------
    logp
        ``log p_z``, nats, of any shape.
    p
        The probability, above 0 and below 1.

    Examples
    --------
    A span that comes in 1 of 100 tries, and one that cannot come:

    >>> n_p([np.log(0.01), -np.inf]).tolist()
    [69.0, inf]
    """
    if not 0 < p < 1:
        raise ValueError("p must lie in (0, 1)")

    values = np.asarray(logp, dtype=np.float64)
    if np.isnan(values).any() or np.any(values > 0):
        raise ValueError("a log probability is NaN or above 0")

    with np.errstate(divide="ignore", over="ignore"):
        tries = np.log1p(-p) / np.log1p(-np.exp(values))
    return np.asarray(np.maximum(np.ceil(tries), 1.0))
