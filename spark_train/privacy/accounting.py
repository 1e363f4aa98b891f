"""Epsilon of a run: Opacus's accountant over the steps that an example can be in.

An example of a task is sampled at one rate while its own task is learned, and at
another in each later task that replays it. Each step is a Poisson-subsampled Gaussian
mechanism; the accountant composes them (Renyi differential privacy: Mironov 2017;
Mironov, Talwar & Zhang 2019), for one train row more or less.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, TypeAlias

from spark_audit.errors import InputError

LARGEST = 1e4
"""The largest noise multiplier that is looked at; more noise is taken for as much."""
LARGE_ORDERS = (80, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Renyi orders beyond Opacus's own, whose largest, 63, shows no small epsilon."""


Stretch: TypeAlias = tuple[int, Mapping[str, float]]
"""Steps of one phase, and the rate at which each task's rows are drawn in them."""


def epsilon(
    stretches: Sequence[Stretch], task: str, *, noise_multiplier: float, delta: float
) -> float:
    """Epsilon for an example of ``task`` over all steps; infinite without noise.

    Never below 0, where the accountant goes when ``delta`` alone would do.

    Parameters
    ----------
    noise_multiplier
        Standard deviation of the noise on the sum of gradients over their largest norm.
    """
    seen = [(rates[task], steps) for steps, rates in stretches if rates.get(task)]
    if not seen:
        return 0.0
    if noise_multiplier <= 0:
        return math.inf
    accountant = _accountant()
    sigma = min(noise_multiplier, LARGEST)  # the square of a larger one overflows
    accountant.history = [(sigma, rate, steps) for rate, steps in seen]
    with warnings.catch_warnings():
        # Of orders that end too early: epsilon is then larger than need be.
        warnings.simplefilter("ignore")
        try:
            orders = [*accountant.DEFAULT_ALPHAS, *LARGE_ORDERS]
            value = float(accountant.get_epsilon(delta=delta, alphas=orders))
        except (ArithmeticError, ValueError):  # hardly any noise
            return math.inf
    return max(value, 0.0) if math.isfinite(value) else math.inf


def noise_for(
    stretches: Sequence[Stretch],
    *,
    target: float,
    delta: float,
    tolerance: float = 1e-3,
) -> float:
    """The least noise multiplier, to within a share, that keeps every task's epsilon.

    Raises
    ------
    InputError
        If no noise up to :data:`LARGEST` does.
    """
    tasks = {task for _, rates in stretches for task in rates}

    def kept(sigma: float) -> bool:
        return all(
            epsilon(stretches, task, noise_multiplier=sigma, delta=delta) <= target
            for task in tasks
        )

    low, high = 0.0, 1.0
    while not kept(high):
        low, high = high, 2 * high
        if high > LARGEST:
            raise InputError(
                f"the accountant shows no epsilon of {target:g} at delta {delta:g}, "
                "whatever the noise",
                where="dp.target_epsilon",
                fix="give a larger one",
            )
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (low, middle) if kept(middle) else (middle, high)
    return high


def accountant_name() -> str:
    """Which accountant, of which version: ``rdp, opacus 1.6.0``."""
    return f"{_accountant().mechanism()}, opacus {version('opacus')}"


def _accountant() -> Any:
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
