"""Methods: functions from the stream of tasks to its phases."""

from __future__ import annotations

from collections.abc import Mapping

from spark_train.method import COMMON, Method
from spark_train.training_methods import ewc, gem, mtl, olora, pecl, spark

_KNOWN_METHODS = (
    spark.ER,
    spark.ER_PTPC,
    ewc.EWC,
    gem.GEM,
    mtl.MTL,
    olora.OLORA,
    pecl.PECL,
    spark.SD_REPLAY,
    spark.SEQFT,
    spark.SPARK,
)

METHODS: Mapping[str, Method] = {method.name: method for method in _KNOWN_METHODS}
"""Methods by the values of ``--method``."""


def groups(name: str) -> tuple[str, ...]:
    """Return the names, or groups, of the settings that a method reads.

    Settings without a group are read by every method, and are not named here.
    """
    return (*COMMON, *METHODS[name].reads)
