"""A dry run counts what would be scored, and writes nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spark_audit.audits import Noise, all_audits
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.cli.main import run as command_line
from spark_audit.errors import SparkError
from spark_audit.manifest.file import read_manifest
from spark_audit.manifest.sequences import items_for
from spark_audit.pipeline.estimate import estimate
from spark_audit.pipeline.lineup import make_plans, union
from spark_audit.pipeline.run import Request, run


def test_dry_run_counts_and_writes_nothing(
    workshop, tiny_base, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(workshop)
    arguments = ["matched", "--ckpt", f"ours={workshop / 'lora'}", "--dry-run"]
    arguments += ["--base", str(tiny_base), "-o", str(tmp_path / "out"), "--json"]
    assert command_line(arguments) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["manifest"] == "m"
    assert facts["checkpoints"] == ["base", "ours"]
    (plain_pass,) = facts["passes"]
    assert plain_pass["pass"] == "plain"
    assert plain_pass["tokens"] > 100
    assert facts["seconds"] >= plain_pass["seconds"] > 0
    assert not (tmp_path / "out").exists()


def test_a_dry_run_counts_the_tokens_that_are_scored(workshop, tiny_base, monkeypatch):
    monkeypatch.chdir(workshop)
    audits = tuple(audit() for audit in all_audits().values())
    request = Request(audits=audits, checkpoints=(f"ours={workshop / 'lora'}",))
    facts = estimate(replace(request, base=str(tiny_base)))
    manifest = read_manifest(next(Path("manifests").glob("*.json")))
    checkpoint = open_checkpoint(str(tiny_base))
    _, plans = make_plans(manifest, audits)
    plan = union(plans)
    items = items_for(manifest, checkpoint, plan)
    read = sum(
        item.tokens for items_of_pass in items.values() for item in items_of_pass
    )
    n_tokens = sum(pass_facts["tokens"] for pass_facts in facts["passes"])
    assert n_tokens == pytest.approx(2 * read, rel=0.01)
    assert facts["checkpoints"] == ["base", "ours"]
    assert facts["seconds"] >= max(
        pass_facts["seconds"] for pass_facts in facts["passes"]
    )
    with pytest.raises(SparkError, match="did you mean"):
        estimate(replace(request, checkpoints=(str(workshop / "loar"),)))


def test_a_dry_run_where_checkpoints_lack_different_passes(
    request_of, make_adapter, tiny_base, tmp_path
):
    """The base lacks noisy texts alone, a second adapter all: both are of one shape."""
    make_adapter(tmp_path / "other", base=tiny_base, seed=5)
    store = tmp_path / "store"
    run(request_of(audits=("nll",), scores=store))
    facts = estimate(
        request_of(
            audits=("nll", Noise(draws=1)),
            checkpoints=(str(tmp_path / "other"),),
            scores=store,
            output=tmp_path / "other report",
        )
    )
    assert all(pass_facts["tokens"] > 0 for pass_facts in facts["passes"])
    assert 0 < facts["there"][0] < facts["there"][1]
