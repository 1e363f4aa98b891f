"""From checkpoints to a report: right figures, shared work, orders of tasks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from named import NAMES, examples

from spark_audit.audits import Twins, Utility
from spark_audit.checkpoints.specs import Loading
from spark_audit.cli.main import run as command_line
from spark_audit.data.examples import write_examples
from spark_audit.errors import InputError
from spark_audit.manifest.file import read_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.engines import local
from spark_audit.pipeline.job import Job
from spark_audit.pipeline.lineup import union
from spark_audit.pipeline.run import run
from spark_audit.pipeline.verification.verify import verify
from spark_audit.report.checkpoint_states import checkpoint_states
from spark_audit.results import Report


def naive(folder: Path, base: Path, manifest: Manifest) -> dict[str, np.ndarray]:
    """NLL of every token in float64, one text at a time, by PEFT and log-softmax."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    model = PeftModel.from_pretrained(model, folder).double().eval()
    nll_by_example = {}
    with torch.no_grad():
        for example in manifest.examples:
            ids = tokenizer(example.prompt + example.response, return_tensors="pt")
            logits = model(input_ids=ids["input_ids"]).logits[0, :-1]
            target = ids["input_ids"][0, 1:, None]
            nll = -torch.log_softmax(logits, -1).gather(1, target)[:, 0]
            nll_by_example[example.id] = np.concatenate([[0.0], nll.numpy()])
    return nll_by_example


def test_figures_equal_a_naive_float64_recomputation(request_of, workshop, tiny_base):
    request = request_of(baseline="base")
    report = run(request).report
    manifest = read_manifest(workshop / "manifests" / "m.json")
    nll = naive(workshop / "lora", tiny_base, manifest)
    pii: list[float] = []
    control: list[float] = []
    for pair in manifest.pairs:
        if manifest.by_id[pair.example].split == "train":
            values = nll[pair.example]
            pii += values[pair.pii.token_start : pair.pii.token_end].tolist()
            control += values[
                pair.control.token_start : pair.control.token_end
            ].tolist()
    rows = {
        row.metric: row
        for row in report.results
        if row.checkpoint == "ours" and row.group == "pooled" and not row.variant
    }
    assert rows["nll_pii"].value == pytest.approx(np.mean(pii), abs=1e-4)
    assert rows["nll_control"].value == pytest.approx(np.mean(control), abs=1e-4)
    assert rows["delta_sel"].value == pytest.approx(
        np.mean(pii) - np.mean(control), abs=1e-4
    )
    assert {c.name for c in report.checkpoints} == {"base", "ours"}
    (guard,) = [g for g in report.guards if g.name == "reference reproduced"]
    assert guard.passed is True
    assert any(row.metric == "did" for row in report.contrasts)


def assert_same_figures(report: Report | None, other_report: Report | None) -> None:
    """Equal but for float noise: the workers' batches hold other rows."""
    assert len(report.results) == len(other_report.results)
    for a, b in zip(report.results, other_report.results, strict=True):
        assert a.model_dump() == pytest.approx(b.model_dump(), abs=1e-5)


def test_workers_score_their_parts_and_the_last_writes_the_report(request_of, tmp_path):
    report_alone = run(request_of(output=tmp_path / "alone")).report
    missing = []
    for shard in (2, 0, 2):  # one that died in between is called again
        outcome = run(request_of(shard=(shard, 3)))
        assert outcome.report is None
        missing.append(outcome.missing)
    assert missing[0] > missing[1] == missing[2] > 0
    # Other flags ask for other scores, which are not there.
    request_in_bfloat16 = request_of(
        shard=(1, 3), loading=Loading(device="cpu", dtype="bfloat16")
    )
    assert run(request_in_bfloat16).report is None
    last = run(request_of(shard=(1, 3)))
    assert last.anew
    assert_same_figures(last.report, report_alone)
    assert not run(request_of(shard=(0, 3))).anew


def test_processes_end_with_the_one_that_asked_and_without_one_all_is_done(
    request_of, tmp_path, monkeypatch, capsys
):
    """These help with nothing: one waits to be ended, the other fails at once."""
    begin = local.start
    score = local.score_items
    begun = []

    def start(*given: Any) -> Any:
        begun.append(begin(*given))
        return begun[-1]

    def then(*given: Any, **options: Any) -> Any:
        if len(begun) == 1:
            raise KeyboardInterrupt
        begun[1].process.wait(300)
        return score(*given, **options)

    monkeypatch.setattr(local, "start", start)
    monkeypatch.setattr(local, "score_items", then)
    code = "import os, sys\nsys.stdin.buffer.read()\nos._exit(9)"
    monkeypatch.setattr(local, "HELPER_PROGRAM", code)
    with pytest.raises(KeyboardInterrupt):
        run(request_of(jobs=2))
    assert begun[0].process.poll() == 9
    assert not capsys.readouterr().err
    monkeypatch.setattr(local, "HELPER_PROGRAM", "raise SystemExit(3)")
    assert run(request_of(jobs=2)).report is not None
    assert "(code 3;" in capsys.readouterr().err


def test_no_output_shows_an_identifier_unless_asked(request_of, tmp_path):
    run(request_of())
    files = [p for p in (tmp_path / "report").rglob("*") if p.is_file()]
    assert len(files) > 5
    for path in files:
        content = path.read_bytes()
        for name in NAMES:
            assert name.encode() not in content, path
            assert name.partition(" ")[2].encode() not in content, path


def test_json_on_stdout_is_the_report(
    workshop, tiny_base, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(workshop)
    arguments = ["matched", "--ckpt", f"base={tiny_base}", "--json", "--quiet"]
    arguments += ["--format", "json"]
    arguments += ["-o", str(tmp_path / "out"), "--placebo-draws", "0"]
    assert command_line(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out" / "report.json").read_text())


def test_a_run_says_in_which_order_it_learned_its_tasks(
    request_of, make_adapter, tmp_path
):
    """Rows lie in another order than that of training, as files of a folder do."""
    rows = [replace(e, task=f"t{i % 2}") for i, e in enumerate(examples(32))]
    rows = [replace(e, split="test" if i % 3 else "train") for i, e in enumerate(rows)]
    data = []
    for task in ("t0", "t1"):
        data.append(tmp_path / "data" / f"{task}.jsonl")
        write_examples(data[-1], [row for row in rows if row.task == task])

    def trained(name: str, tasks: list[str], stages: int = 2) -> str:
        folder = tmp_path / name
        for stage in range(stages):
            make_adapter(folder / str(stage), seed=stage + 1)
        facts = {"kind": "spark-train-run", "tasks": tasks}
        (folder / "run.json").write_text(json.dumps(facts))
        return f"{name}={folder}"

    first_run = trained("one", ["t1", "t0"])
    other_run = trained("other", ["t0", "t1"])
    run_of_one_stage = trained("both", ["t0", "t1"], stages=1)
    request = request_of(
        audits=("utility",),
        checkpoints=(first_run, run_of_one_stage),
        manifest=None,
        data=tuple(data),
    )
    report = run(request).report
    assert report.settings["utility.order"] == "t1,t0"
    matrix = [r for r in report.tables["accuracy_matrix"] if r["checkpoint"] == "one"]
    assert [record["after"] for record in matrix] == ["t1", "t0"]
    assert {row.checkpoint for row in report.results} == {"base", "one", "both"}
    bwt = [row for row in report.results if row.metric == "bwt"]
    assert {row.checkpoint for row in bwt if row.status == "ok"} == {"one"}
    # A series beside a single checkpoint is one of the names, too.
    beside = replace(
        request,
        checkpoints=(first_run, f"single={tmp_path / 'both' / '0'}"),
        baseline="one",
        output=tmp_path / "beside",
    )
    assert run(beside).report.settings["baseline"] == "one"
    with pytest.raises(InputError, match="'other' .*t0, t1.*t1, t0"):
        run(replace(request, checkpoints=(first_run, other_run)))
    with pytest.raises(InputError, match="'one' .*t1, t0"):
        run(replace(request, audits=(Utility(order="t0,t1"),)))
    run_without_facts = trained("theirs", ["t0", "t1"])
    (tmp_path / "theirs" / "run.json").unlink()
    with pytest.raises(InputError, match="'theirs' .*t1, t0"):
        run(replace(request, checkpoints=(first_run, run_without_facts)))
    # What is no contradiction is taken.
    report_of_one_task = run(replace(request, audits=(Utility(order="t0"),))).report
    assert report_of_one_task.settings["utility.order"] == "t0"


def test_each_checkpoint_scores_its_own_plan_whoever_comes_first(
    request_of, make_adapter, tmp_path
):
    for stage in ("0", "1"):
        make_adapter(tmp_path / "series" / stage)
    audits = (Twins(), Utility(scorer="likelihood"))
    ckpt = (f"run={tmp_path / 'series'}",)
    for order in (1, -1):
        job = Job.of(request_of(audits=audits, checkpoints=ckpt, output=tmp_path / "r"))
        plans = {}
        for described in job.opening.described[::order]:
            audits_with_plans = zip(job.request.audits, job.plans, strict=True)
            plans[described.name] = union(
                plan
                for audit, plan in audits_with_plans
                if job.lineup.sees(described.name, audit)
            )
            scored = {
                scoring_pass: [*pass_items.store_keys()]
                for scoring_pass, pass_items in job.items_by_pass(described).items()
            }
            assert scored == plans[described.name]
        assert plans["run"] != plans["run@1"]


def test_relearning_uses_no_audited_row_and_trains_nothing_that_is_stored(
    request_of, tmp_path, monkeypatch
):
    from spark_audit.checkpoints import derived

    audited = examples()
    fresh = [
        replace(
            audited[0],
            id=f"other-{i}",
            source_id=f"other-{i}",
            prompt=f"The {word} day was long.\nLabel:",
            spans=(),
        )
        for i, word in enumerate(("first", "last"))
    ]
    held = [replace(example, spans=()) for example in audited]
    write_examples(tmp_path / "rows.jsonl", [*held, *fresh])
    request = request_of(relearn=(tmp_path / "rows.jsonl",), relearn_steps=3)
    report = run(request).report
    names = [checkpoint.name for checkpoint in report.checkpoints]
    assert names == ["base", "base+relearn", "ours", "ours+relearn"]
    assert [checkpoint.relearned_from for checkpoint in report.checkpoints] == [
        *(None, "base", None, "ours")
    ]
    assert any(row.metric == "returned" for row in report.contrasts)
    assert not [f for f in report.findings if f.checkpoint == "base+relearn"]
    assert {s.name for s in checkpoint_states(report)} == {"ours", "ours+relearn"}

    def never_trained(*_: object, **__: object) -> None:
        pytest.fail("trained")

    monkeypatch.setattr(derived, "relearned_weights", never_trained)
    again = run(replace(request, output=tmp_path / "again", scores=request.output))
    assert again.report.results == report.results
    assert all(not wrong for _, wrong in verify(request.output))
    only_held = replace(request, relearn=(tmp_path / "held.jsonl",))
    write_examples(tmp_path / "held.jsonl", held)
    with pytest.raises(InputError, match="^--relearn: "):
        Job.of(replace(only_held, output=tmp_path / "no"))
