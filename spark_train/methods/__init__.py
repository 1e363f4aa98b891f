"""Methods: one file each, a function from the stream of tasks to its phases."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from spark_train import request
from spark_train.methods.method import COMMON, Method

METHODS: Mapping[str, Method] = {
    name: import_module(f"spark_train.methods.{name.replace('-', '_')}").METHOD
    for name in request.METHODS
}


def groups(name: str) -> tuple[str, ...]:
    """Names, or groups, of the settings that a method reads."""
    return (*COMMON, *METHODS[name].reads)
