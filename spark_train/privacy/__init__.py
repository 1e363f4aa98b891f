"""Privacy options of a run: one file each, around whatever method is trained."""

from __future__ import annotations

from collections.abc import Mapping

from spark_train.methods.method import Option
from spark_train.privacy import dpsgd, frozen_noise

PRIVACY: Mapping[str, Option] = {"dpsgd": dpsgd.dpsgd, "fn": frozen_noise.fn}
"""By the values of ``--dp``."""


def groups(name: str) -> tuple[str, ...]:
    """Groups of the settings that an option reads; ``none`` reads nothing."""
    return {"dpsgd": ("dp",), "fn": ("fn",)}.get(name, ())
