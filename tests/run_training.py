"""Runs and relearning as tests ask for them: on the CPU, by the requests' fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_train.request import Opening, RelearnRequest, TrainRequest

OPENING = ("dtype", "tokenizer", "revision", "trust_remote_code", "lora_alpha")


def asked(kind: Callable[..., Any], fields: dict[str, Any]) -> tuple[Any, Any]:
    """The request of some fields, and what else was given."""
    fields = {"device": "cpu", **fields}
    fields |= fields.pop("loading", {})
    beside = {name: fields.pop(name) for name in ("progress", "note") if name in fields}
    opening = {n: fields.pop(n) for n in ("device", *OPENING) if n in fields}
    return kind(loading=Opening(**opening), **fields), beside


def train(**fields: Any) -> Any:
    from spark_train.run import train

    request, beside = asked(TrainRequest, fields)
    return train(request, **beside)


def relearn(**fields: Any) -> Any:
    from spark_train.relearn import relearn

    request, beside = asked(RelearnRequest, fields)
    return relearn(request, **beside)
