"""Losses: pure functions of logits, one value a position, in nats.

Every function takes logits ``(n, V)`` of ``n`` chosen positions, each row
already the prediction *of* its token (no shift inside), and gives ``(n,)``; ``n`` may
be 0. The caller selects positions, takes means and weighs them, so that a large batch
can come in chunks.

The inside is float32 (float64 stays float64): bfloat16 has no value between 0.996 and
1, where log(1 - P) lives. Nothing here detaches a teacher; the caller does.

Equation names are those of the SPARK paper.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def token_nll(logits: Tensor, ids: Tensor) -> Tensor:
    """Negative log-likelihood of the observed tokens (SPARK, Eq. replay_ce).

    Parameters
    ----------
    logits
        Shape ``(n, V)``.
    ids
        Shape ``(n,)``, int64: the observed token of each position.

    Returns
    -------
    Tensor
        ``-log P(t)``, shape ``(n,)``, nats.
    """
    return -_at(_log_softmax(logits), ids)


def unlikelihood(logits: Tensor, ids: Tensor) -> Tensor:
    """Unlikelihood of the observed tokens (SPARK, Eq. unlikelihood).

    Parameters
    ----------
    logits
        Shape ``(n, V)``, V at least 2.
    ids
        Shape ``(n,)``, int64: the observed token of each position.

    Returns
    -------
    Tensor
        ``-log(1 - P(t))``, shape ``(n,)``, nats.

    Notes
    -----
    [ours] Computed as ``softplus(z_t - logsumexp(z without t))``, the same number
    without 1 - P in it: exact where P rounds to 1 and where it is tiny, never below 0,
    and no logit's gradient is ever larger than 1.
    """
    others = wide(_without(logits, ids)).logsumexp(dim=-1)
    # Past the threshold softplus(x) is x; torch's own, 20, shows in float64.
    return F.softplus(wide(_at(logits, ids)) - others, threshold=40.0)


def kl(teacher_logits: Tensor, logits: Tensor) -> Tensor:
    """KL(teacher || student) over the full vocabulary (SPARK, Eq. anchor, old_anchor).

    Parameters
    ----------
    teacher_logits, logits
        Shape ``(n, V)`` each. A teacher's logit may be ``-inf``.

    Returns
    -------
    Tensor
        Shape ``(n,)``, nats; a token of teacher probability 0 adds 0.
    """
    return _divergence(_log_softmax(teacher_logits), _log_softmax(logits))


def demoted_kl(teacher_logits: Tensor, logits: Tensor, ids: Tensor) -> Tensor:
    """KL(demoted teacher || student), full vocabulary (SPARK, Eq. demoted_kl).

    The demoted teacher is the teacher without the observed token, renormalised; the
    student keeps its whole distribution, so its mass on the observed token costs.

    Parameters
    ----------
    teacher_logits, logits
        Shape ``(n, V)`` each, V at least 2.
    ids
        Shape ``(n,)``, int64: the observed token of each position.

    Returns
    -------
    Tensor
        Shape ``(n,)``, nats.

    Notes
    -----
    [ours] Removed as a logit of ``-inf``, not as ``P / (1 - P(t))``, which is 0/0 where
    the teacher's P(t) rounds to 1.
    """
    return kl(_without(teacher_logits, ids), logits)


def top_k(logits: Tensor, *, k: int, temperature: float) -> tuple[Tensor, Tensor]:
    """The teacher's K likeliest tokens, renormalised (SPARK, Eq. replay_kl).

    Parameters
    ----------
    logits
        The teacher's, shape ``(n, V)``.
    k
        Tokens kept, at least 1; clipped to V.
    temperature
        Above 0; divides the logits [ours].

    Returns
    -------
    support : Tensor
        Shape ``(n, K)``, int64, likeliest first.
    logp : Tensor
        Shape ``(n, K)``, float32: log-probabilities over the support, nats.
    """
    values, support = logits.topk(min(k, logits.shape[-1]), dim=-1)
    return support, _log_softmax(values, temperature)


def support_kl(
    teacher_logp: Tensor, student_logits_at_support: Tensor, *, temperature: float
) -> Tensor:
    """KL(teacher || student) on the teacher's top-K support (SPARK, Eq. replay_kl).

    Parameters
    ----------
    teacher_logp
        Shape ``(n, K)``: from `top_k` at the same temperature.
    student_logits_at_support
        Shape ``(n, K)``: the student's logits of the same tokens; renormalised here.
    temperature
        Above 0; divides the student's logits [ours].

    Returns
    -------
    Tensor
        Shape ``(n,)``, nats.

    Notes
    -----
    [ours] No factor T^2: gradients shrink by about T^2 as the temperature grows.
    Renormalising hides the mass outside the support: see `outside_mass`.
    """
    student = _log_softmax(student_logits_at_support, temperature)
    return _divergence(wide(teacher_logp), student)


def outside_mass(logits: Tensor, support: Tensor) -> Tensor:
    """Probability outside the teacher's support, at temperature 1 [ours].

    Parameters
    ----------
    logits
        The student's, shape ``(n, V)``.
    support
        Shape ``(n, K)``, int64: different tokens in each row.

    Returns
    -------
    Tensor
        Shape ``(n,)``, in [0, 1]; exactly 0 if the support is the vocabulary.

    Notes
    -----
    Not computed as 1 minus the mass inside, which loses a small mass to rounding.
    """
    logits = wide(logits)
    inside = logits.gather(-1, support).logsumexp(dim=-1)  # (n,)
    outside = logits.scatter(-1, support, -math.inf).logsumexp(dim=-1)  # (n,)
    return torch.sigmoid(outside - inside)


def wide(values: Tensor) -> Tensor:
    """Return values of any shape in float32, or unchanged if they are float64."""
    return values if values.dtype == torch.float64 else values.float()


def _log_softmax(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probabilities over the last axis, in float32 or wider."""
    logits = wide(logits)
    if temperature != 1.0:  # dividing by 1 would copy (n, V) for nothing
        logits = logits / temperature
    return torch.log_softmax(logits, dim=-1)


def _at(values: Tensor, ids: Tensor) -> Tensor:
    """Each row's value at its token: ``(n, V)``, ``(n,)`` to ``(n,)``."""
    return values.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def _without(logits: Tensor, ids: Tensor) -> Tensor:
    """A copy of the logits, in their own dtype, with each row's token removed."""
    return logits.scatter(-1, ids.unsqueeze(-1), -math.inf)


def _divergence(teacher_logp: Tensor, logp: Tensor) -> Tensor:
    """Sum of p (log p - log q) over the last axis, with 0 log 0 = 0."""
    p = teacher_logp.exp()
    # In place: a second (n, V) copy is worth saving, and no gradient needs the old one.
    gap = (teacher_logp - logp).masked_fill_(p == 0, 0.0)
    return (p * gap).sum(dim=-1)
