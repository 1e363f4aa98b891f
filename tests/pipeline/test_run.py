"""From checkpoints to a report: right figures, resumed work, shared work, refusals."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from named import NAMES, examples
from tiny_models import make_model, save_model

from spark_audit.audits import Matched, Noise, Twins, Utility, all_audits
from spark_audit.checkpoints.specs import Loading
from spark_audit.cli.main import run as command_line
from spark_audit.data.examples import write_examples
from spark_audit.errors import CheckpointError, InputError, SparkError
from spark_audit.files import sha256_file
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.content import seal
from spark_audit.manifest.file import read_manifest, write_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import items_for
from spark_audit.pipeline.engines import local
from spark_audit.pipeline.estimate import estimate
from spark_audit.pipeline.job import Job, checked_job
from spark_audit.pipeline.lineup import make_plans, union
from spark_audit.pipeline.run import Request, run
from spark_audit.pipeline.verification.verify import verify
from spark_audit.report.checkpoint_states import checkpoint_states
from spark_audit.results import Report
from spark_audit.scoring.store import Store

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory, tiny_base, make_adapter):
    """A folder with manifests/m.json of the tiny base and an adapter ``lora``."""
    from spark_audit.checkpoints.open import open_checkpoint

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


def naive(folder: Path, base: Path, manifest: Manifest) -> dict[str, np.ndarray]:
    """NLL of every token in float64, one text at a time, by PEFT and log-softmax."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    model = PeftModel.from_pretrained(model, folder).double().eval()
    found = {}
    with torch.no_grad():
        for example in manifest.examples:
            ids = tokenizer(example.prompt + example.response, return_tensors="pt")
            logits = model(input_ids=ids["input_ids"]).logits[0, :-1]
            target = ids["input_ids"][0, 1:, None]
            nll = -torch.log_softmax(logits, -1).gather(1, target)[:, 0]
            found[example.id] = np.concatenate([[0.0], nll.numpy()])
    return found


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


def test_the_same_command_opens_nothing_until_something_changed(
    request_of, workshop, tiny_base, tmp_path, monkeypatch
):
    from spark_audit.pipeline import up_to_date

    lora, base, words = tmp_path / "lora", tmp_path / "base", tmp_path / "words"
    shutil.copytree(workshop / "lora", lora)
    shutil.copytree(tiny_base, base)
    shutil.copytree(tiny_base, words, ignore=shutil.ignore_patterns("*.safetensors"))
    manifest = tmp_path / "m.json"
    shutil.copy(workshop / "manifests" / "m.json", manifest)
    monkeypatch.chdir(tmp_path)
    request = request_of(
        checkpoints=(f"ours={lora}",),
        base=str(base),
        manifest=manifest,
        output=None,
        loading=Loading(tokenizer=str(words)),
    )
    done = run(request)
    again = run(replace(request, command=("typed", "otherwise")))
    assert (done.anew, again.anew) == (True, False)
    assert again.report == done.report
    for other in ({"seed": 1}, {"formats": ("md",)}, {"audits": ("matched",)}):
        assert up_to_date.unchanged(replace(request, **other)) is None

    def touched(path: Path) -> bool:
        """Whether a file with other bytes of the same size and time is noticed."""
        kept, raw = path.stat(), path.read_bytes()
        path.write_bytes(raw[:-1] + b"?")
        os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
        noticed = up_to_date.unchanged(request) is None
        path.write_bytes(raw)
        return noticed

    report = done.folder / "report.json"
    files = [manifest, lora / "adapter_model.safetensors", base / "model.safetensors"]
    for path in (*files, words / "tokenizer.json", report, done.folder / "report.md"):
        run(request)
        assert up_to_date.unchanged(request) is not None
        assert touched(path), path
    for gone in (lora / "adapter_model.safetensors", base / "model.safetensors"):
        assert run(request).anew
        assert not run(request).anew
        gone.unlink()
        with pytest.raises(SparkError):
            run(request)
        source = workshop / "lora" if gone.parent == lora else tiny_base
        shutil.copy(source / gone.name, gone)
    assert run(request).anew
    monkeypatch.setattr(up_to_date, "versions", lambda: {"torch": "another"})
    assert run(request).anew


def test_every_checkpoint_is_checked_before_any_is_scored(
    request_of, workshop, tiny_base, tmp_path, monkeypatch
):
    def never(*args: Any, **options: Any) -> Any:
        raise AssertionError("loaded or scored though another checkpoint does not fit")

    monkeypatch.setattr("spark_audit.pipeline.engines.local.score", never)
    monkeypatch.setattr(
        "spark_audit.checkpoints.stored_checkpoint.StoredCheckpoint.load", never
    )
    wide, other = tmp_path / "wide", tmp_path / "other"
    save_model(make_model("llama", hidden_size=48, seed=9), wide)
    shutil.copytree(tiny_base, other)
    raw = json.loads((other / "tokenizer.json").read_text())
    raw["normalizer"] = {"type": "Lowercase"}
    (other / "tokenizer.json").write_text(json.dumps(raw))
    first = f"ours={workshop / 'lora'}"
    for wrong, said in ((wide, "hidden_size"), (other, "tokenizer")):
        request = request_of(checkpoints=(first, f"theirs={wrong}"))
        for command in (run, estimate):
            with pytest.raises(CheckpointError, match=f"not fit the base: {said}"):
                command(request)
        assert not (tmp_path / "report").exists()


def test_an_empty_store_holds_nothing_in_part(request_of, tiny_base, tmp_path):
    """A text that stands in two rows is stored once, and is not stored for that."""
    from spark_audit.checkpoints.open import open_checkpoint

    rows = [*examples()]
    again = replace(rows[0], id="again", source_id="again")
    loaded = open_checkpoint(str(tiny_base), name="base")
    manifest = build_manifest([*rows, again], loaded, name="twice", caliper=2.0)
    write_manifest(manifest, tmp_path / "twice.json")
    job = checked_job(request_of(manifest=tmp_path / "twice.json"))
    unscored = job.unscored()
    assert job.stored(unscored) == (0, len(unscored), 0)


def test_scores_of_another_report_are_counted_and_taken(
    request_of, tmp_path, capsys, monkeypatch
):
    first = run(request_of()).report
    report = tmp_path / "report"
    for place in (report, report / "scores", report / "scores" / "store"):
        request = request_of(scores=place, output=tmp_path / "other", seed=1)
        found = estimate(replace(request, audits=("matched", "canary", "extract")))
        assert 2 == found["there"][0] < found["there"][1]
        assert found["store"] == str(report / "scores" / "store")
    capsys.readouterr()
    with monkeypatch.context() as patched:  # no model is loaded for them
        patched.setattr(
            "spark_audit.checkpoints.stored_checkpoint.StoredCheckpoint.load", None
        )
        report_of_stored = run(request).report
    assert report_of_stored.checkpoints == first.checkpoints
    assert "2 of 2 passes are stored in " in capsys.readouterr().err
    assert not (tmp_path / "other" / "scores" / "store").exists()
    shutil.rmtree(report / "scores")
    with pytest.raises(InputError, match="holds no scores"):
        run(request_of(scores=report, output=tmp_path / "third"))


def test_a_copy_under_another_name_is_noted_and_the_path_itself_refused(
    request_of, workshop, tmp_path
):
    shutil.copytree(workshop / "lora", tmp_path / "copy")
    both = (f"ours={workshop / 'lora'}", f"theirs={tmp_path / 'copy'}")
    report = run(request_of(checkpoints=both)).report
    notes = {one.name: one.notes for one in report.checkpoints}
    assert "the same model as 'ours'" in notes["theirs"]
    assert not any("the same model" in note for note in notes["base"])
    same = workshop / "manifests" / ".." / "lora"
    with pytest.raises(InputError, match="the same checkpoint is given twice"):
        run(request_of(checkpoints=(both[0], f"theirs={same}")))


def assert_same_figures(one: Report | None, other: Report | None) -> None:
    """Equal but for float noise: the workers' batches hold other rows."""
    assert len(one.results) == len(other.results)
    for a, b in zip(one.results, other.results, strict=True):
        assert a.model_dump() == pytest.approx(b.model_dump(), abs=1e-5)


def test_workers_score_their_parts_and_the_last_writes_the_report(request_of, tmp_path):
    alone = run(request_of(output=tmp_path / "alone")).report
    missing = []
    for part in (2, 0, 2):  # one that died in between is called again
        outcome = run(request_of(shard=(part, 3)))
        assert outcome.report is None
        missing.append(outcome.missing)
    assert missing[0] > missing[1] == missing[2] > 0
    # Other flags ask for other scores, which are not there.
    other = request_of(shard=(1, 3), loading=Loading(device="cpu", dtype="bfloat16"))
    assert run(other).report is None
    last = run(request_of(shard=(1, 3)))
    assert last.anew
    assert_same_figures(last.report, alone)
    assert not run(request_of(shard=(0, 3))).anew


def test_processes_end_with_the_one_that_asked_and_without_one_all_is_done(
    request_of, tmp_path, monkeypatch, capsys
):
    """These help with nothing: one waits to be ended, the other fails at once."""
    begin, score, begun = local.start, local.score_items, []

    def start(*given: Any) -> Any:
        begun.append(begin(*given))
        return begun[-1]

    def then(*given: Any, **options: Any) -> Any:
        if len(begun) == 1:
            raise KeyboardInterrupt
        begun[1].wait(300)
        return score(*given, **options)

    monkeypatch.setattr(local, "start", start)
    monkeypatch.setattr(local, "score_items", then)
    code = "import os, sys\nsys.stdin.buffer.read()\nos._exit(9)"
    monkeypatch.setattr(local, "HELPER_PROGRAM", code)
    with pytest.raises(KeyboardInterrupt):
        run(request_of(jobs=2))
    assert begun[0].poll() == 9
    assert not capsys.readouterr().err
    monkeypatch.setattr(local, "HELPER_PROGRAM", "raise SystemExit(3)")
    assert run(request_of(jobs=2)).report is not None
    assert "1 of 2 processes ended early (code 3;" in capsys.readouterr().err


def test_what_cannot_be_is_found_before_scoring_and_leaves_no_folder(
    request_of, workshop, tmp_path, monkeypatch
):
    def never(*args: Any, **options: Any) -> Any:
        raise AssertionError("scored although nothing can come of it")

    monkeypatch.setattr("spark_audit.pipeline.engines.local.score", never)
    given = tmp_path / "given"
    save_model(make_model("llama", seed=9), given / "base")
    (given / "file").write_text("")
    raw = (workshop / "manifests" / "m.json").read_bytes()
    changed = raw.replace(b'"caliper":2.0', b'"caliper":3.0', 1)
    (given / "changed.json").write_bytes(changed)
    assert changed != raw
    other = {"base": str(given / "base")}
    for wrong, code, said in (
        ({"checkpoints": ("x=/no/such/place",)}, 2, "there is no such file or folder"),
        ({"manifest": tmp_path / "none.json"}, 2, "none.json"),
        ({"manifest": given / "changed.json"}, 2, "was changed after it was built"),
        (other, 2, "made for another model: base weights"),
        (other | {"shard": (0, 2)}, 2, "made for another model: base weights"),
        ({"formats": ("md", "docx")}, 2, "--format: 'docx' is unknown; choose one"),
        (
            {"baseline": "x", "checkpoints": ("a=/no",)},
            2,
            "--baseline: 'x' is none of the",
        ),
        ({"output": given / "file" / "report"}, 4, "cannot be written"),
        ({"audits": ("stages",)}, 2, "--ckpt: no series of several stages was"),
    ):
        with pytest.raises(SparkError, match=said) as caught:
            run(request_of(**wrong))
        assert caught.value.exit_code == code
        assert [path.name for path in tmp_path.iterdir()] == ["given"]


def test_no_output_shows_an_identifier_unless_asked(request_of, tmp_path):
    run(request_of())
    files = [p for p in (tmp_path / "report").rglob("*") if p.is_file()]
    assert len(files) > 5
    for path in files:
        content = path.read_bytes()
        for name in NAMES:
            assert name.encode() not in content, path
            assert name.partition(" ")[2].encode() not in content, path


def test_only_the_manifest_of_a_report_is_read_with_it(request_of, workshop, capsys):
    folder = run(request_of(formats=("md",))).folder
    manifest = workshop / "manifests" / "m.json"
    call = ["report", str(folder), "--format", "dossier", "--manifest", str(manifest)]
    for shown, mode in (([], 0o644), (["--show-text"], 0o600)):
        assert command_line([*call, *shown]) == 0
        assert (folder / "dossier.html").stat().st_mode & 0o777 == mode
    assert command_line([*call[:-2], "--show-text"]) == 2
    assert "add --manifest" in capsys.readouterr().err
    assert command_line(["report", str(folder), "--show-text"]) == 2
    assert "--show-text: only the dossier shows text" in capsys.readouterr().err
    with pytest.raises(InputError, match="add --format dossier"):
        request_of(formats=("md",), show_text=True)
    other = read_manifest(manifest).model_dump(mode="json")
    other["pairs"].pop()
    write_manifest(seal(other), folder / "other.json")
    assert command_line([*call[:-1], str(folder / "other.json")]) == 2
    assert "is not the manifest of this report" in capsys.readouterr().err


def test_manifest_is_found_in_the_working_directory(
    request_of, workshop, monkeypatch, tmp_path
):
    monkeypatch.chdir(workshop)
    report = run(request_of(manifest=None)).report
    assert report.manifest.name == "m"
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    with pytest.raises(InputError, match="no manifest fits: there is none in manifest"):
        run(request_of(manifest=None))
    (empty / "manifests").mkdir()
    (empty / "manifests/m.json").symlink_to(workshop / "manifests/m.json")
    with pytest.raises(InputError, match="m.json .is a link out of the folder."):
        run(request_of(manifest=None))
    shutil.rmtree(empty / "manifests")
    shutil.copytree(workshop / "manifests", empty / "manifests")
    shutil.copy(empty / "manifests/m.json", empty / "manifests/n.json")
    with pytest.raises(InputError, match="several manifests fit: .*m.json, .*n.json"):
        run(request_of(manifest=None))


def test_folder_of_another_manifest_is_refused(request_of, tmp_path):
    request = request_of()
    run(request)
    path = tmp_path / "report" / "report.json"
    report = json.loads(path.read_text())
    report["manifest"]["digest"] = "f" * 64
    path.write_text(json.dumps(report))
    with pytest.raises(
        InputError, match="holds a finished report with another manifest"
    ):
        run(request)


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
    (part,) = facts["passes"]
    assert part["pass"] == "plain"
    assert part["tokens"] > 100
    assert facts["seconds"] >= part["seconds"] > 0
    assert not (tmp_path / "out").exists()


def test_a_dry_run_counts_the_tokens_that_are_scored(workshop, tiny_base, monkeypatch):
    monkeypatch.chdir(workshop)
    from spark_audit.checkpoints.open import open_checkpoint

    audits = tuple(audit() for audit in all_audits().values())
    request = Request(audits=audits, checkpoints=(f"ours={workshop / 'lora'}",))
    found = estimate(replace(request, base=str(tiny_base)))
    manifest = read_manifest(next(Path("manifests").glob("*.json")))
    checkpoint = open_checkpoint(str(tiny_base))
    _, plans = make_plans(manifest, audits)
    plan = union(plans)
    items = items_for(manifest, checkpoint, plan)
    read = sum(one.tokens for some in items.values() for one in some)
    told = sum(one["tokens"] for one in found["passes"])
    assert told == pytest.approx(2 * read, rel=0.01)
    assert found["checkpoints"] == ["base", "ours"]
    assert found["seconds"] >= max(one["seconds"] for one in found["passes"])
    with pytest.raises(SparkError, match="did you mean"):
        estimate(replace(request, checkpoints=(str(workshop / "loar"),)))


def test_a_dry_run_where_checkpoints_lack_different_passes(
    request_of, make_adapter, tiny_base, tmp_path
):
    """The base lacks noisy texts alone, a second adapter all: both are of one shape."""
    make_adapter(tmp_path / "other", base=tiny_base, seed=5)
    store = tmp_path / "store"
    run(request_of(audits=("nll",), scores=store))
    found = estimate(
        request_of(
            audits=("nll", Noise(draws=1)),
            checkpoints=(str(tmp_path / "other"),),
            scores=store,
            output=tmp_path / "other report",
        )
    )
    assert all(one["tokens"] > 0 for one in found["passes"])
    assert 0 < found["there"][0] < found["there"][1]


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
    from spark_audit.data.examples import write_examples

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

    one, other = trained("one", ["t1", "t0"]), trained("other", ["t0", "t1"])
    both = trained("both", ["t0", "t1"], stages=1)
    request = request_of(
        audits=("utility",),
        checkpoints=(one, both),
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
        checkpoints=(one, f"single={tmp_path / 'both' / '0'}"),
        baseline="one",
        output=tmp_path / "beside",
    )
    assert run(beside).report.settings["baseline"] == "one"
    with pytest.raises(
        InputError, match="'other' learned .* order .t0, t1. than t1, t0"
    ):
        run(replace(request, checkpoints=(one, other)))
    with pytest.raises(
        InputError, match="'one' learned .* another order .t1, t0. than"
    ):
        run(replace(request, audits=(Utility(order="t0,t1"),)))
    theirs = trained("theirs", ["t0", "t1"])
    (tmp_path / "theirs" / "run.json").unlink()
    with pytest.raises(InputError, match="'theirs' .*order unknown. than t1, t0"):
        run(replace(request, checkpoints=(one, theirs)))
    # What is no contradiction is taken.
    some = run(replace(request, audits=(Utility(order="t0"),))).report
    assert some.settings["utility.order"] == "t0"


def test_audits_of_the_same_checkpoints_add_up_in_one_folder(request_of, tmp_path):
    together = run(
        request_of(audits=("nll", "rank"), output=tmp_path / "together")
    ).report
    run(request_of(audits=("rank",)))
    both = run(request_of(audits=("nll",)))
    assert {row.audit for row in both.report.results} == {"nll", "rank"}
    assert sorted(both.report.results, key=repr) == sorted(together.results, key=repr)
    heads = [finding.audit for finding in both.report.findings]
    assert list(dict.fromkeys(heads)) == ["report", "rank", "nll"]
    scores = both.folder / "scores"
    assert (scores / "rank.parquet").exists()
    assert (scores / "nll.parquet").exists()
    assert both.report.evidence == {
        f"{audit}.parquet": sha256_file(scores / f"{audit}.parquet")
        for audit in ("rank", "nll")
    }
    assert together.evidence == both.report.evidence
    # The same audit again takes the old one's place.
    again = run(request_of(audits=("nll",))).report
    assert len(again.results) == len(both.report.results)


def test_what_several_audits_read_is_scored_once(request_of, monkeypatch):
    scored: list[str] = []
    add = Store.add

    def count(self: Store, key: str, *given: Any) -> None:
        scored.append(key)
        add(self, key, *given)

    monkeypatch.setattr(Store, "add", count)
    run(request_of(audits=("nll", "rank", "matched", "noise", "canary")))
    assert len(scored) == len({*scored}) > 64


def _link(folder: Path, target: Path) -> Path:
    """Another path of a checkpoint: one path under two names is refused."""
    link = folder / f"link-{len(list(folder.iterdir()))}"
    link.symlink_to(target)
    return link


def test_a_finished_report_is_not_lost_without_a_word(request_of, workshop, tmp_path):
    lora = workshop / "lora"
    two = (f"ours={lora}", f"other={_link(tmp_path, lora)}")
    third = f"third={_link(tmp_path, lora)}"
    run(request_of(audits=("rank", "nll"), checkpoints=two))
    with pytest.raises(InputError, match="checkpoints other, which would be lost"):
        run(request_of(audits=("rank", "nll")))
    with pytest.raises(
        InputError, match="audits (nll, rank|rank, nll) with another checkpoints"
    ):
        run(request_of(audits=("matched",), checkpoints=(*two, third)))
    with pytest.raises(InputError, match="audits nll with another seed"):
        run(request_of(audits=("rank",), checkpoints=two, seed=1))
    # More of everything loses nothing.
    more = request_of(audits=("rank", "nll"), checkpoints=(*two, third))
    assert run(more).report is not None


@pytest.mark.parametrize("name", ["scores", "scores/store", "tables"])
def test_a_report_folder_from_others_leads_nowhere_else(name, request_of, tmp_path):
    request, theirs = request_of(), tmp_path / "theirs"
    for kept in ("spans.parquet", "tables/a.csv", "results.csv"):
        (theirs / kept).parent.mkdir(parents=True, exist_ok=True)
        (theirs / kept).write_text("kept")
    (request.output / name).parent.mkdir(parents=True)
    (request.output / name).symlink_to(theirs)
    with pytest.raises(InputError, match=f"{name}: is a link out of the folder"):
        run(request)
    left = [path for path in theirs.rglob("*") if path.is_file()]
    assert [path.read_text() for path in left] == ["kept"] * 3


def test_python_takes_paths_and_names_the_argument_that_is_wrong(workshop, tiny_base):
    import spark_audit as sa

    path = workshop / "manifests" / "m.json"
    scores = sa.score(str(tiny_base), str(path))
    result = sa.audits.Matched(placebo_draws=5)({"mine": scores}, str(path))
    same = sa.audits.Matched(placebo_draws=5)({"mine": scores}, read_manifest(path))
    assert result.results == same.results
    assert any(row.value is not None for row in result.results)
    for bare in (scores, {"mine": next(iter(scores.values()))}, scores.keys()):
        with pytest.raises(TypeError, match="tables: give the scores of each checkpo"):
            sa.audits.Matched()(bare, path)
    with pytest.raises(TypeError, match="manifest: int is no path"):
        sa.audits.Matched()({"mine": scores}, 3)
    with pytest.raises(TypeError, match="checkpoint: int is neither a path"):
        sa.score(3, [])  # type: ignore[arg-type]
    one = Request(audits="matched", checkpoints="runs/a", manifest="m", data=())  # type: ignore[arg-type]
    assert one == Request(
        audits=("matched",), checkpoints=("runs/a",), manifest=Path("m")
    )


def test_each_checkpoint_scores_its_own_plan_whoever_comes_first(
    request_of, make_adapter, tmp_path
):
    for stage in ("0", "1"):
        make_adapter(tmp_path / "series" / stage)
    audits, ckpt = (
        (Twins(), Utility(scorer="likelihood")),
        (f"run={tmp_path / 'series'}",),
    )
    for order in (1, -1):
        job = Job.of(request_of(audits=audits, checkpoints=ckpt, output=tmp_path / "r"))
        plans = {}
        for one in job.opening.described[::order]:
            own = zip(job.request.audits, job.plans, strict=True)
            plans[one.name] = union(
                plan for audit, plan in own if job.lineup.sees(one.name, audit)
            )
            scored = {
                scoring_pass: [*pass_items.store_keys()]
                for scoring_pass, pass_items in job.items_by_pass(one).items()
            }
            assert scored == plans[one.name]
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
    held = [replace(one, spans=()) for one in audited]
    write_examples(tmp_path / "rows.jsonl", [*held, *fresh])
    request = request_of(relearn=(tmp_path / "rows.jsonl",), relearn_steps=3)
    report = run(request).report
    names = [one.name for one in report.checkpoints]
    assert names == ["base", "base+relearn", "ours", "ours+relearn"]
    assert [one.relearned_from for one in report.checkpoints] == [
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
    with pytest.raises(InputError, match="--relearn: has no row .*audited"):
        Job.of(replace(only_held, output=tmp_path / "no"))
