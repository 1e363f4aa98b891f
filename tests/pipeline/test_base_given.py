"""The base model: not given, or given in the place of the checkpoint."""

from dataclasses import replace
from typing import Any

import pytest
from named import examples
from tiny_models import make_model, save_model

from spark_audit.audits import Matched
from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.pipeline.run import Request, run


@pytest.fixture(scope="module")
def workshop(tmp_path_factory, tiny_base):
    """A folder with m.json of the tiny base, and a model ``full`` of other weights."""
    from spark_audit.checkpoints.open import open_checkpoint

    folder = tmp_path_factory.mktemp("workshop")
    save_model(make_model("llama", seed=9), folder / "full")
    loaded = open_checkpoint(str(tiny_base), name="base")
    manifest = build_manifest(examples(), loaded, name="m", caliper=2.0)
    write_manifest(manifest, folder / "m.json")
    return folder


@pytest.fixture
def request_of(workshop, tmp_path):
    """``request_of(ckpt, **fields)``: an audit of full weights."""

    def make(ckpt: Any, **fields: Any) -> Request:
        request = Request(
            audits=(Matched(placebo_draws=5, rematched=False),),
            checkpoints=(f"ours={ckpt}",),
            manifest=workshop / "m.json",
            output=tmp_path / "report",
            loading=Loading(device="cpu"),
            formats=("md",),
        )
        return replace(request, **fields)

    return make


def test_base_and_checkpoint_in_each_others_place(request_of, tiny_base, workshop):
    swapped = request_of(tiny_base, base=str(workshop / "full"))
    with pytest.raises(InputError, match="^--ckpt: .*--base"):
        run(swapped)
    swapped_specs = (f"base={workshop / 'full'}", f"x={tiny_base}")
    named = replace(swapped, base=None, checkpoints=swapped_specs)
    with pytest.raises(InputError, match="^--ckpt: .*--base"):
        run(named)


def test_a_run_without_the_base_says_before_scoring_what_is_not_tested(
    request_of, tiny_base, capsys
):
    run(request_of(tiny_base))
    assert "--base MODEL" in capsys.readouterr().err


def test_lora_alpha_of_no_lora_weights_is_refused(request_of, tiny_base):
    loading = Loading(device="cpu", lora_alpha=16)
    with pytest.raises(InputError, match="^--lora-alpha: "):
        run(request_of(tiny_base, loading=loading))
