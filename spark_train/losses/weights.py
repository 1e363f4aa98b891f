"""Penalties on weights: pure functions of them, one number, in no unit.

The caller weighs them. What stands in a penalty beside the weights has no gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Quadratic:
    """A sum of quadratics ``sum_k sum_j F_kj (theta_j - theta_kj)^2``, kept as one.

    EWC (Kirkpatrick et al. 2017) adds up one penalty a task. A sum of quadratics is a
    quadratic: per weight ``S (theta - c)^2`` with ``S = sum_k F_k`` and ``c`` the mean
    of the ``theta_k`` weighted with ``F_k``, plus a constant. So memory does not grow
    with the tasks, and nothing cancels as it would in
    ``S theta^2 - 2 M theta + const``.

    Attributes
    ----------
    curvature, centre
        ``S`` and ``c``, a tensor a weight.
    constant
        What of the sum no weight can change, a tensor a weight.
    """

    curvature: Weights
    centre: Weights
    constant: Weights

    @classmethod
    def of(cls, curvature: Weights, at: Weights) -> Quadratic:
        """``sum_j F_j (theta_j - at_j)^2``."""
        constant = {name: torch.zeros_like(value) for name, value in curvature.items()}
        return cls(curvature, at, constant)

    def plus(self, curvature: Weights, at: Weights) -> Quadratic:
        """The sum with one quadratic more."""
        names = list(curvature)
        old, centre = self.curvature, self.centre
        total = {n: old[n] + curvature[n] for n in names}
        gap = {n: at[n] - centre[n] for n in names}
        # Where both are 0, so that no task asks for anything, any centre will do.
        share = {
            n: torch.where(total[n] > 0, curvature[n] / total[n], 1.0) for n in names
        }
        return Quadratic(
            total,
            {n: centre[n] + share[n] * gap[n] for n in names},
            {n: self.constant[n] + old[n] * share[n] * gap[n].square() for n in names},
        )

    def value(self, weights: Weights) -> Tensor:
        """The sum at some weights: scalar; at least 0."""
        parts = [
            (curvature * (weights[name] - self.centre[name]).square()).sum()
            + self.constant[name].sum()
            for name, curvature in self.curvature.items()
        ]
        return torch.stack(parts).sum()


def overlap(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """O-LoRA's orthogonality loss: the sum of ``|A_old A_new^T|``, entry by entry.

    Parameters
    ----------
    pairs
        Per layer ``A_old`` of shape ``(R, n)``, all earlier tasks' rows, and ``A_new``
        of shape ``(r, n)``.

    Returns
    -------
    Tensor
        Scalar; 0 where every new row stands at right angles on every old one.

    Notes
    -----
    Wang et al. 2023, Eq. 7, and ``orthogonal_loss`` in their code: a sum over layers
    and entries, not a mean.
    """
    return torch.stack([(old @ new.T).abs().sum() for old, new in pairs]).sum()
