"""Processes of one machine that share a call: how many there are."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import InputError
from spark_audit.pipeline.engines import local
from spark_audit.pipeline.request import Request
from spark_audit.scoring.table import Pass

GB = 10**9


@pytest.mark.parametrize(
    ("fields", "about", "count"),
    [
        ({}, {}, 4),
        ({}, {"tokens": 10**5}, 1),
        ({}, {"free": None, "weights": 25 * GB}, 4),
        ({}, {"weights": GB // 2}, 2),
        ({}, {"weights": 2 * GB}, 1),
        ({"loading": Loading(quantize=("int8",))}, {"weights": GB // 4}, 2),
        ({"jobs": 1}, {}, 1),
        ({"jobs": 7}, {"tokens": 1, "weights": 2 * GB}, 7),
        ({"jobs": 7}, {"tokens": 0}, 1),
        ({"shard": (0, 2)}, {}, 1),
        ({"engine": "ray"}, {}, 1),
        ({"loading": Loading(device_map="auto")}, {}, 1),
    ],
)
def test_as_many_as_cores_and_memory_allow(fields, about, count, monkeypatch):
    monkeypatch.setattr(local, "cores", lambda: 4)
    resources = {"tokens": 10**7, "weights": 10**6, "free": 8 * GB, **about}
    monkeypatch.setattr(local, "free_bytes", lambda: resources["free"])
    opened = SimpleNamespace(served=None, parameters=resources["weights"])
    job: Any = SimpleNamespace(
        request=Request(audits=("nll",), checkpoints=("x",), **fields),
        opening=SimpleNamespace(described=[opened]),
    )
    lacking: Any = {("x", Pass()): [SimpleNamespace(n_tokens=resources["tokens"])]}
    assert local.processes(job, lacking) == count


@pytest.mark.parametrize(
    "other",
    [{"shard": (0, 2)}, {"engine": "ray"}, {"loading": Loading(device_map="auto")}],
)
def test_what_shares_the_work_otherwise_is_refused(other):
    with pytest.raises(InputError, match="^--jobs: "):
        Request(audits=("nll",), checkpoints=("x",), jobs=2, **other)


def test_checkpoints_by_name_are_those_that_are_typed():
    seeds = Request(audits="nll", checkpoints={"a": "x", "b": ["y", Path("z")]})
    assert seeds.checkpoints == ("a=x", "b=y", "b=z")
    assert Request(audits="nll", checkpoints="x").checkpoints == ("x",)
