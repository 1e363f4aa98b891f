"""Privacy options of a run: one file each, around whatever method is trained."""

from __future__ import annotations

from collections.abc import Mapping

from spark_train.methods.method import Option
from spark_train.privacy import dpsgd, frozen_noise

PRIVACY: Mapping[str, Option] = {
    "dpsgd": Option(dpsgd.dpsgd, reads=("dp",)),
    "fn": Option(frozen_noise.fn, reads=("fn",)),
}
"""By the values of ``--dp``."""


def groups(name: str) -> tuple[str, ...]:
    """Groups of the settings that an option reads; ``none`` reads nothing."""
    return PRIVACY[name].reads if name in PRIVACY else ()
