"""A dry run counts what would be scored, and writes nothing."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from spark_audit.audits import Erasure, Noise, all_audits
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
    # Nothing was to be forgotten here.
    chosen = [
        audit
        for audit in all_audits().values()
        if audit is not Erasure and not audit.of_files
    ]
    audits = tuple(audit() for audit in chosen)
    request = Request(audits=audits, checkpoints=(f"ours={workshop / 'lora'}",))
    facts = estimate(replace(request, base=str(tiny_base)))
    manifest = read_manifest(next(Path("manifests").glob("*.json")))
    checkpoint = open_checkpoint(str(tiny_base))
    _, plans = make_plans(manifest, audits)
    plan = union(plans)
    items = items_for(manifest, checkpoint, plan)
    read = sum(
        item.n_tokens for items_of_pass in items.values() for item in items_of_pass
    )
    n_tokens = sum(pass_facts["tokens"] for pass_facts in facts["passes"])
    assert n_tokens == pytest.approx(2 * read, rel=0.01)
    assert facts["checkpoints"] == ["base", "ours"]
    assert facts["seconds"] >= max(
        pass_facts["seconds"] for pass_facts in facts["passes"]
    )
    with pytest.raises(SparkError, match=str(workshop / "lora")):
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


def test_an_audit_adds_what_a_dry_run_without_it_saves(request_of):
    audits = (all_audits()["matched"](), all_audits()["mia"](), Noise(draws=1))
    facts = estimate(request_of(audits=audits))
    n_tokens = sum(record["tokens"] for record in facts["passes"])
    added = {record["audit"]: record["tokens"] for record in facts["audits"]}
    assert list(added) == [audit.name for audit in audits]
    assert added["noise"] > 0
    # Both read the same texts, so that none of the two could be left out to save them.
    assert facts["shared"]["tokens"] > 0

    for audit in audits:
        others = tuple(other for other in audits if other is not audit)
        without = estimate(request_of(audits=others))
        n_without = sum(record["tokens"] for record in without["passes"])
        assert n_tokens - n_without == added[audit.name]
    assert n_tokens == sum(added.values()) + facts["shared"]["tokens"]
    seconds = sum(record["seconds"] for record in facts["passes"])
    parts = [record["seconds"] for record in facts["audits"]]
    assert sum(parts) + facts["shared"]["seconds"] == pytest.approx(seconds, abs=0.1)


def test_two_names_of_one_model_are_counted_once(request_of, workshop, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(workshop / "lora", copy)
    ours = f"ours={workshop / 'lora'}"
    once = estimate(request_of(checkpoints=(ours,), output=tmp_path / "once"))
    twice = estimate(
        request_of(checkpoints=(ours, f"copy={copy}"), output=tmp_path / "twice")
    )
    assert [record["tokens"] for record in once["passes"]] == [
        record["tokens"] for record in twice["passes"]
    ]


def test_the_base_is_not_scored_for_an_audit_that_does_not_read_it(
    request_of, workshop, make_adapter, tiny_base, tmp_path
):
    make_adapter(tmp_path / "later", base=tiny_base, seed=5)
    series = f"run=[{workshop / 'lora'},{tmp_path / 'later'}]"
    stages = all_audits()["stages"]()
    request = request_of(audits=(stages,), checkpoints=(series,))
    with_base = estimate(request)
    (plain_pass,) = with_base["passes"]
    manifest = read_manifest(request.manifest)
    (keys,) = stages.plan(manifest).values()
    assert plain_pass["items"] == 2 * len(keys)

    # A base that another audit reads is scored for that audit alone.
    report = run(request).report
    assert report is not None
    assert "base" in {checkpoint.name for checkpoint in report.checkpoints}
    series_audit = all_audits()["series"]()
    facts = estimate(request_of(audits=(stages, series_audit), checkpoints=(series,)))
    # The scores of both stages are stored: what is left is the base.
    n_tokens = sum(record["tokens"] for record in facts["passes"])
    added = {record["audit"]: record["tokens"] for record in facts["audits"]}
    assert added == {"stages": 0, "series": n_tokens}
    assert n_tokens > 0
