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

RELATIVE_PRECISION = 1e-3
"""Precision of the least noise multiplier, relative to it."""

Stretch: TypeAlias = tuple[int, Mapping[str, float]]
"""Number of steps of one phase, and task -> the probability of each of its rows to be
in the batch of a step. A task that is missing is never drawn."""


def epsilon(
    stretches: Sequence[Stretch], task: str, *, noise_multiplier: float, delta: float
) -> float:
    """Return epsilon for an example of ``task``; infinite without noise.

    The accountant's epsilon is below 0 if ``delta`` alone suffices; then the result is
    0.

    Parameters
    ----------
    stretches
        All phases of the run that draw by Poisson sampling.
    noise_multiplier
        Standard deviation of the noise on the sum of gradients, relative to their
        largest norm.
    """
    # An example that no step can draw is revealed by none.
    rates_and_steps = [
        (rates[task], steps) for steps, rates in stretches if rates.get(task)
    ]
    if not rates_and_steps:
        return 0.0
    if noise_multiplier <= 0:
        return math.inf

    accountant = new_accountant()
    # The square of a larger number overflows. With less noise, epsilon is larger.
    sigma = min(noise_multiplier, MAX_NOISE_MULTIPLIER)
    accountant.history = [(sigma, rate, steps) for rate, steps in rates_and_steps]

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
    if not math.isfinite(value):
        return math.inf
    return max(value, 0.0)


def noise_for(stretches: Sequence[Stretch], *, target: float, delta: float) -> float:
    """Return the least noise multiplier, to 0.1%, that keeps every task's epsilon.

    Parameters
    ----------
    target
        Largest epsilon of a task.

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
    while high - low > RELATIVE_PRECISION * high:
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
