"""GEM's projection: the gradient nearest to the step's that hurts no earlier task.

Lopez-Paz & Ranzato 2017: of ``g`` and one gradient ``g_k`` an earlier task,

``minimise |x - g|^2 / 2   so that   <x, g_k> >= 0 for all k``.

Its dual has one unknown a constraint: ``minimise v'GG'v / 2 + (Gg)'v`` over ``v >= 0``,
and ``x = g + G'v``.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls


def dual(products: np.ndarray, *, margin: float = 0.0) -> np.ndarray:
    """The dual solution, from the inner products alone.

    Parameters
    ----------
    products
        Shape ``(t + 1, t + 1)``, float64: inner products of the ``t`` gradients of
        earlier tasks and, last, the step's own.
    margin
        Least value of each ``v``. In the paper a constant is added to ``v``; the
        authors' code and mammoth's, which this follows, bound ``v`` from below by it
        instead, so that ``v = margin`` where the paper's would be smaller.

    Returns
    -------
    np.ndarray
        ``v``, shape ``(t,)``. Where gradients depend on each other ``v`` is one of
        several solutions; ``g + G'v`` is the same for all. A gradient of 0 has
        ``margin``, which changes nothing.

    Notes
    -----
    With ``u = v - margin`` it is a least-squares problem over ``u >= 0``, which SciPy's
    active-set solver ends exactly, for any number of constraints. No ridge is added
    (the authors add 1e-3 to the diagonal for their solver's sake, which would decide
    the outcome where gradients are small).
    """
    size = len(products) - 1
    norms = np.sqrt(np.diag(products).clip(min=0.0))
    found = np.full(size, float(margin))
    used = np.flatnonzero(norms[:-1] > 0)
    if not len(used):
        return found
    # Unit vectors with the same angles: gradients' sizes differ by orders.
    own = norms[-1] if norms[-1] > 0 else 1.0
    kept = [*used, size]
    scale = np.append(norms[used], own)
    table = products[np.ix_(kept, kept)] / np.outer(scale, scale)
    values, vectors = np.linalg.eigh((table + table.T) / 2)
    roots = np.sqrt(values.clip(min=0.0))[:, None] * vectors.T
    columns, target = roots[:, :-1], roots[:, -1]
    least = margin * scale[:-1] / own
    solved, _ = nnls(columns, -(target + columns @ least), maxiter=100 * len(kept))
    found[used] = (solved + least) * own / scale[:-1]
    return found
