"""Methods: one file each, a function from the stream of tasks to its phases."""

from __future__ import annotations

from collections.abc import Mapping

from spark_train.methods import (
    er,
    er_ptpc,
    ewc,
    gem,
    mtl,
    olora,
    pecl,
    sd_replay,
    seqft,
    spark,
)
from spark_train.methods.method import COMMON, Method

METHODS: Mapping[str, Method] = {
    module.METHOD.name: module.METHOD
    for module in (er, er_ptpc, ewc, gem, mtl, olora, pecl, sd_replay, seqft, spark)
}


def groups(name: str) -> tuple[str, ...]:
    """Names, or groups, of the settings that a method reads."""
    return (*COMMON, *METHODS[name].reads)
