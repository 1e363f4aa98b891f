"""Privacy options of a run, which apply to any method.

They are implemented in ``dpsgd.py`` and ``frozen_noise.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_train.dpsgd import dpsgd
from spark_train.frozen_noise import fn
from spark_train.method import Option

PRIVACY: Mapping[str, Option] = {"dpsgd": dpsgd, "fn": fn}
"""Privacy options by the values of ``--dp``."""


def groups(name: str) -> tuple[str, ...]:
    """Return the groups of settings that an option reads; ``none`` reads nothing."""
    groups_by_option = {"dpsgd": ("dp",), "fn": ("fn",)}
    return groups_by_option.get(name, ())
