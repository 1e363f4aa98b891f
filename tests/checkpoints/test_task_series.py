"""Row "folder of tasks"."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import (
    absent,
    each,
    inspected,
    opened,
    problem_of,
    reference_of,
    refused,
    said,
)
from tiny_models import make_model, make_tokenizer

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.run_record import read_run, trained_order
from spark_audit.checkpoints.specs import Spec
from spark_audit.checkpoints.task_series import expand, series
from spark_audit.errors import CheckpointError, InputError


def labels(path: Path) -> list[str]:
    return [stage.name for stage in series(str(path))]


@pytest.fixture(scope="module")
def adapters(make_adapter, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(folder / str(seed), seed=seed) for seed in (1, 2, 3)]


@pytest.fixture
def layout(adapters, tmp_path):
    """``layout(*names)``: a folder with one adapter at each of these sub-folders."""

    def make(*names: str, root: str = "run") -> Path:
        for i, name in enumerate(names):
            shutil.copytree(adapters[i % 3], tmp_path / root / name)
        return tmp_path / root

    return make


def test_trace_saves_whole_models_under_numbers(tiny_base, tmp_path):
    """TRACE: torch.save of the state, config.json, the bare vocabulary."""
    # One row more than the vocabulary: transformers adds <|endoftext|> to it.
    models = [make_model("gpt2", seed=seed, vocab_size=301) for seed in range(11)]
    for number, model in enumerate(models):
        folder = tmp_path / "trace" / str(number)
        folder.mkdir(parents=True)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        model.config.to_json_file(folder / "config.json")
        make_tokenizer(bos=False).backend_tokenizer.model.save(str(folder))
    trace = tmp_path / "trace"
    assert labels(trace) == [str(number) for number in range(11)]
    loaded = opened(trace, base=tiny_base)
    assert torch.equal(said(loaded), said(models[10]))
    assert loaded.notes[0] == "stage 11 of 11: 10"
    assert "tokenizer: the base's" in loaded.notes
    assert (loaded.format, loaded.source, loaded.name) == (
        "hf-folder",
        "trace",
        "trace",
    )
    third = opened(f"{trace}@3", base=tiny_base)
    assert torch.equal(said(third), said(models[2]))
    assert (third.source, third.name) == ("trace@3", "trace@3")
    # Without a base the vocabulary that TRACE saves is what there is.
    stage_alone = opened(trace)
    assert "tokenizer: made from a bare vocabulary file" in stage_alone.notes


def test_o_lora_keeps_adapters_in_folders_of_their_own(layout, tiny_base, adapters):
    run = layout("1-dbpedia/adapter", "2-amazon/adapter", "10-agnews/adapter")
    # The trainer leaves files beside the adapter that are no weights.
    torch.save({"lr": 0.1}, run / "1-dbpedia" / "training_args.bin")
    assert labels(run) == ["1-dbpedia", "2-amazon", "10-agnews"]
    for stage, adapter in zip(("@1", "@2", ""), adapters, strict=True):
        loaded = opened(f"{run}{stage}", base=tiny_base)
        truth = said(reference_of(tiny_base, adapter))
        assert torch.allclose(said(loaded), truth, rtol=0, atol=1e-6)
    # One task's folder alone is its adapter.
    first_stage = open_checkpoint(
        str(run / "2-amazon" / "adapter"), base=str(tiny_base)
    )
    assert first_stage.format == "peft-adapter"


@pytest.mark.parametrize(
    "names",
    [
        ["task_1", "task_2", "task_10"],
        ["task-1-fomc", "task-2-yelp", "task-3-agnews"],
        ["checkpoint-50", "checkpoint-100", "checkpoint-1000"],
        ["stage_0", "stage_1", "stage_2"],
        ["Task1_llava_lora", "Task2_llava_lora"],
    ],
)
def test_other_ways_to_number_stages_are_read(names, layout):
    run = layout(*names)
    (run / "logs").mkdir()
    (run / "notes-3.txt").write_text("x")
    assert labels(run) == names


def test_a_training_run_of_spark_train(layout, tiny_base, adapters):
    run = layout(
        "stages/1-fomc/task", "stages/1-fomc/priv", "stages/2-yelp/task"
    )  # The second stage's correction was not done yet.
    (run / "run.json").write_text("{}")
    stages = series(str(run))
    assert [stage.name for stage in stages] == ["1-fomc", "2-yelp"]
    assert [*map(list, stages.values())] == [["priv", "task"], ["task"]]
    for source, adapter, note in (
        (f"{run}@1", adapters[1], "stage 1 of 2: 1-fomc (priv/)"),
        (f"{run}@1:task", adapters[0], "stage 1 of 2: 1-fomc (task/)"),
        (
            str(run),
            adapters[2],
            "stage 2 of 2: 2-yelp (task/)",
        ),
    ):
        loaded = opened(source, base=tiny_base)
        truth = said(reference_of(tiny_base, adapter))
        assert torch.allclose(said(loaded), truth, rtol=0, atol=1e-6)
        assert loaded.notes[0] == note
    assert inspected(run, base=tiny_base)["stages"] == "1-fomc, 2-yelp"


def test_a_run_that_has_not_finished_says_so(layout, tiny_base):
    run = layout("stages/1-fomc/task", "stages/1-fomc/priv", "stages/2-yelp/task")
    corrects = {"lr": 0.1, "ptpc.steps": 5}

    def notes(source: str = "", **record: Any) -> list[str]:
        run_facts = {"kind": "spark-train-run", "tasks": ["fomc", "yelp"]}
        (run / "run.json").write_text(json.dumps(run_facts | record))
        loaded = opened(f"{run}{source}", base=tiny_base)
        return [note for note in loaded.notes if "not finished" in note]

    note = "the run has not finished: {} of 2 tasks"
    assert notes(status="running", settings=corrects) == [note.format(1)]
    assert notes("@1", status="running", settings=corrects) == [note.format(1)]
    assert notes("/stages", status="running", settings=corrects) == [note.format(1)]
    # Whatever else stands there, or is missing, is no reason to fail.
    for settings in ({}, "ptpc.steps"):
        assert notes(status="running", settings=settings, tasks=3) == [
            "the run has not finished: 1 tasks"
        ]
    assert notes(status="running", kind="other") == []
    for text in ("", "\xff", "[" * 10**5):
        (run / "run.json").write_text(text, encoding="latin-1")
        problem = problem_of(run, base=tiny_base)
        assert f"{run / 'run.json'}: " in problem
    (run / "run.json").write_text("[1]")
    loaded = opened(run, base=tiny_base)
    assert not [note for note in loaded.notes if "not finished" in note]


@pytest.mark.parametrize("lost", ["1-fomc", "2-yelp/priv"])
def test_a_finished_run_that_lost_a_stage_is_not_another_run(lost, layout, tiny_base):
    """Its last stage would be audited as the whole: of a broken copy, a wrong one."""
    stage_parts = [
        f"stages/{s}/{p}" for s in ("1-fomc", "2-yelp") for p in ("task", "priv")
    ]
    run = layout(*stage_parts)
    phases = {stage_part.removeprefix("stages/"): {} for stage_part in stage_parts}
    run_facts = {"kind": "spark-train-run", "seconds": phases, "status": "complete"}
    (run / "run.json").write_text(
        json.dumps(run_facts | {"settings": {"ptpc.steps": 5}})
    )
    assert opened(run, base=tiny_base).notes
    shutil.rmtree(run / "stages" / lost)
    (run / "stages" / lost).write_text("no folder")
    for source in (str(run), f"{run}@1", f"{run}/stages"):
        refused(source, f"{lost[:6]}/priv of the finished run is gone")
    other_folder = run / "stages" / "1-fomc" / "task"
    if lost != "1-fomc":
        opened(other_folder, base=tiny_base)


def test_the_only_stage_of_a_correcting_method_may_lack_its_correction(
    layout, tiny_base
):
    run = layout("stages/1-fomc/task")
    for settings, note in (
        ({"ptpc.steps": 5}, "; its method corrects each stage, this one was not yet"),
        ({"lr": 1}, ""),
    ):
        record = {"kind": "spark-train-run", "settings": settings, "status": "running"}
        (run / "run.json").write_text(json.dumps(record | {"tasks": ["fomc"]}))
        loaded = opened(run, base=tiny_base)
        assert loaded.notes[0] == f"stage 1 of 1: 1-fomc (task/){note}"
        done = 0 if note else 1
        assert loaded.notes[1] == f"the run has not finished: {done} of 1 tasks"


def test_stages_trained_on_another_base_are_refused(layout, tiny_base, copied):
    run = layout("stages/1-fomc/task", "stages/2-yelp/task")
    other_base = copied(tiny_base, "tiny-base")  # of the same name and shapes
    make_model(seed=9).save_pretrained(other_base)
    mine = opened(tiny_base).weights_sha256
    for stage in ("1-fomc", "2-yelp"):
        trained_on = run / "stages" / stage / "task" / "trained_on.json"
        trained_on.write_text(json.dumps({"base_sha256": mine}))
    other_digest = opened(other_base).weights_sha256
    message = f"was trained on another base ({mine[:16]}, not {other_digest[:16]})"
    for source in (str(run), f"{run}@1"):
        refused(source, message, base=other_base)
        problem = problem_of(source, base=other_base)
        assert message in problem
        assert not problem_of(source, base=tiny_base)
        opened(source, base=tiny_base)
    specs = expand(Spec("x", (str(run),)))
    with pytest.raises(CheckpointError, match="--base$"):
        next(each(specs, base=str(other_base), device="cpu"))


def test_a_list_of_paths(adapters, layout, tiny_base, tmp_path):
    layout("a", "b", root="lists")
    listing = tmp_path / "lists" / "order.txt"
    listing.write_text(f"# the order of training\nb\n\n./a  # last\n{adapters[2]}\n")
    assert labels(listing) == ["b", "a", "3"]
    loaded = opened(f"{listing}@2", base=tiny_base)
    assert loaded.notes[0] == "stage 2 of 3: a"
    assert loaded.source == "order.txt@2"
    listing.write_text("b\nnothing\n")
    refused(listing, "line 2 names no checkpoint that exists; write one")
    listing.write_text("# nothing\n")
    refused(listing, "holds no path; write one path per line")


def test_a_base_is_one_model_or_one_stage(layout, tiny_base, adapters, tmp_path):
    for name in ("1-a", "2-b"):
        shutil.copytree(tiny_base, tmp_path / "full" / name)
    for several in (layout("1-a", "2-b"), tmp_path / "full"):
        absent(adapters[0], " 2 stages", base=several)
        with pytest.raises(InputError, match=f"^{several}: .* 2 "):
            open_checkpoint(several, name="base")
    one_stage = opened(adapters[0], base=tmp_path / "full" / "1-a")
    assert torch.equal(said(one_stage), said(opened(adapters[0], base=tiny_base)))


def test_stages_that_are_not_there(layout, tiny_base):
    run = layout("1-a", "2-b")
    refused(
        f"{run}@3", "has 2 stages, and no checkpoint @3; write @1 to @2", base=tiny_base
    )
    refused(f"{run}@1:task", "has 2 stages, and no checkpoint @1:task")
    refused(f"{run / '1-a'}@1", "is one checkpoint, not a series: @1 does not apply")
    (run / "3-c").mkdir()
    refused(run, "stage folder 3-c holds no checkpoint; wait until its training")


@pytest.mark.parametrize("name", ["stages", "stages/2-b", "stages/1-a/priv"])
def test_no_stage_is_a_link_out_of_the_series(name, layout, adapters):
    run = layout("stages/1-a/task", "stages/1-a/priv", "stages/2-b")
    outside = run.parent / "theirs"
    shutil.move(run / name, outside)
    (run / name).symlink_to(outside)
    refused(run, f"{Path(name).name} leads out of the folder")
    (run / name).unlink()
    shutil.move(outside, run / name)
    (run.parent / "link").symlink_to(run)
    assert labels(run.parent / "link") == ["1-a", "2-b"]


def test_a_checkpoint_with_checkpoints_inside_is_itself_one(
    tiny_base, copied, adapters
):
    folder = copied(tiny_base)
    shutil.copytree(adapters[0], folder / "checkpoint-10")
    assert series(str(folder)) == {}
    assert opened(folder).format == "hf-folder"


def test_stages_of_one_name_are_told_apart(layout, tiny_base):
    run = layout("a/last", "b/last", root="lists")
    listing = run / "order.txt"
    listing.write_text("a/last\nb/last\n")
    loaded = opened(f"{listing}@1", base=tiny_base)
    assert loaded.notes[0] == "stage 1 of 2: a/last"
    assert inspected(listing, base=tiny_base)["stages"] == "a/last, b/last"
    listing.write_text("a/last\n./b/../a/last\n")
    refused(listing, "line 2 names a checkpoint again")


def test_a_run_without_a_stage_says_how_it_goes_on(tmp_path):
    run = make_run(tmp_path / "run", status="running")
    problem = "is a run of spark-train that has not finished a stage; give the same "
    refused(run, problem + f"`spark-train run -o {run}` again: it goes on")


def make_run(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    record = {
        "kind": "spark-train-run",
        "method": "spark",
        "tasks": ["fomc", "yelp"],
        "settings": {"lr": 0.1, "ptpc.ul": False, "loss.scope": "response", "x": None},
        "seconds": {"1-fomc/task": {"task": 2.5, "end": 1e-9}, "1-fomc/priv": {"c": 1}},
        **changes,
    }
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_a_run_is_known_by_its_stages_folder_too(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "stages").mkdir()
    assert read_run(run / "stages") == read_run(run) != {}


@pytest.mark.parametrize(
    "content",
    [b"", b"[1]", b"{", b'{"kind": "other"}', b"\xff\xfe", b"[" * 100_000],
)
def test_what_is_no_run_is_passed_over(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    assert read_run(tmp_path) == read_run(tmp_path / "run.json") == {}


def test_the_order_is_what_the_run_says(tmp_path):
    assert trained_order(make_run(tmp_path / "run")) == ("fomc", "yelp")
    (tmp_path / "run" / "stages").mkdir()
    assert trained_order(tmp_path / "run" / "stages") == ("fomc", "yelp")
    assert trained_order(tmp_path / "none") == ()
    for broken in (None, "fomc", ["fomc", 2]):
        run = make_run(tmp_path / str(broken), tasks=broken)
        assert trained_order(run) == ()
