"""Compute epsilon of DP-SGD by Renyi accounting, and the least noise for an epsilon."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from spark_audit.errors import InputError

if TYPE_CHECKING:
    from opacus.accountants import RDPAccountant

MAX_NOISE_MULTIPLIER = 1e4
"""Largest noise multiplier in the accounting; any larger one counts as this one."""

LARGE_ORDERS = (80, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Renyi orders beyond Opacus's own, whose largest, 63, cannot show a small epsilon."""

Stretch: TypeAlias = tuple[int, Mapping[str, float]]
"""Steps of one phase, and the sampling rate of each task's rows in them."""


def epsilon(
    stretches: Sequence[Stretch], task: str, *, noise_multiplier: float, delta: float
) -> float:
    """Return epsilon for an example of ``task``; infinite without noise.

    The result is never below 0, where the accountant ends up if ``delta`` alone
    suffices.

    Parameters
    ----------
    noise_multiplier
        Standard deviation of the noise on the sum of gradients, relative to their
        largest norm.
    """
    # An example that no step can draw is revealed by none.
    drawn_in = [(rates[task], steps) for steps, rates in stretches if rates.get(task)]
    if not drawn_in:
        return 0.0
    if noise_multiplier <= 0:
        return math.inf

    accountant = new_accountant()
    # The square of a larger number overflows.
    sigma = min(noise_multiplier, MAX_NOISE_MULTIPLIER)
    accountant.history = [(sigma, rate, steps) for rate, steps in drawn_in]

    with warnings.catch_warnings():
        # Opacus warns if its orders end too early: then epsilon is larger than
        # necessary.
        warnings.simplefilter("ignore")
        try:
            orders = [*accountant.DEFAULT_ALPHAS, *LARGE_ORDERS]
            value = float(accountant.get_epsilon(delta=delta, alphas=orders))
        except (ArithmeticError, ValueError):
            # With hardly any noise, the accountant overflows.
            return math.inf
    return max(value, 0.0) if math.isfinite(value) else math.inf


def noise_for(stretches: Sequence[Stretch], *, target: float, delta: float) -> float:
    """Return the least noise multiplier, to 0.1%, that keeps every task's epsilon.

    Raises
    ------
    InputError
        If no noise up to :data:`MAX_NOISE_MULTIPLIER` is enough.
    """
    tasks = set[str]()
    for _, rates in stretches:
        tasks.update(rates)

    def is_enough(sigma: float) -> bool:
        """Return whether this noise keeps the epsilon of every task."""
        return all(
            epsilon(stretches, task, noise_multiplier=sigma, delta=delta) <= target
            for task in tasks
        )

    # Double until it is enough, and then bisect: `low` is never enough.
    low = 0.0
    high = 1.0
    while not is_enough(high):
        low = high
        high *= 2
        if high > MAX_NOISE_MULTIPLIER:
            raise InputError(
                f"no noise gives an epsilon of {target:g} at delta {delta:g}",
                where="dp.target_epsilon",
                fix="give a larger one",
            )
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return high


def new_accountant() -> RDPAccountant:
    """Return a new accountant of Opacus."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus.accountants import RDPAccountant
    except ImportError as error:
        raise InputError(
            "opacus is not installed",
            where="--dp dpsgd",
            fix="where spark-audit lies: pip install '.[dp]'",
        ) from error
    return RDPAccountant()
