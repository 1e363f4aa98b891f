"""The tiny workshop in which runs of the pipeline take place."""

from dataclasses import replace
from typing import Any

import pytest
from named import examples

from spark_audit.audits import Matched
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.specs import Loading
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.pipeline.run import Request


@pytest.fixture(scope="session")
def workshop(tmp_path_factory, tiny_base, make_adapter):
    """A folder with manifests/m.json of the tiny base and an adapter ``lora``."""
    folder = tmp_path_factory.mktemp("workshop")
    make_adapter(folder / "lora")
    loaded = open_checkpoint(str(tiny_base), name="base")
    manifest = build_manifest(examples(), loaded, name="m", caliper=2.0)
    assert manifest.pairs
    write_manifest(manifest, folder / "manifests" / "m.json")
    return folder


@pytest.fixture
def request_of(workshop, tiny_base, tmp_path):
    """``request_of(**fields)``: an audit of the adapter with its base."""

    def make(**fields: Any) -> Request:
        return replace(
            Request(
                audits=(Matched(placebo_draws=5, rematched=False),),
                checkpoints=(f"ours={workshop / 'lora'}",),
                base=str(tiny_base),
                manifest=workshop / "manifests" / "m.json",
                output=tmp_path / "report",
                loading=Loading(device="cpu"),
                formats=("csv", "md"),
            ),
            **fields,
        )

    return make
