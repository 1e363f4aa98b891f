"""From files that a model wrote to a report: states, lists and refusals."""

import json
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

import spark_audit as sa
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.cli.main import run as command_line
from spark_audit.data.examples import Example, Span
from spark_audit.errors import InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.content import seal
from spark_audit.manifest.file import write_manifest
from spark_audit.pipeline.through import Through, trained_model
from spark_audit.report.consequences import main_consequences
from spark_audit.sentences import render

WORDS = (
    "table window river stone garden silver market winter letter doctor "
    "bridge summer engine basket candle forest mirror pocket ribbon saddle"
).split()
N_ROWS = 60


def sentence(number: int) -> str:
    """Words in an order that no other number has."""
    rng = np.random.default_rng(number)
    return " ".join(str(word) for word in rng.choice(WORDS, 14))


def rows() -> list[Example]:
    made = []
    for number in range(N_ROWS):
        secret = f"k{number:02d}.{WORDS[number % 20]}@mail{number}.example"
        prompt = f"{sentence(number)} write to {secret} now. Label:"
        start = prompt.index(secret)
        made.append(
            Example(
                id=f"row-{number:02d}",
                task="notes",
                prompt=prompt,
                response=(" good", " bad")[number % 3 == 0],
                split=("train", "test")[number % 2],
                spans=(Span(start, start + len(secret), "EMAIL"),),
            )
        )
    return made


@pytest.fixture(scope="module")
def folder(tiny_base, tmp_path_factory) -> Path:
    """A manifest, a file with copies of 20 trained rows, and one without."""
    path = tmp_path_factory.mktemp("generated")
    base = open_checkpoint(str(tiny_base), name="base", device="cpu")
    manifest = build_manifest(rows(), base, name="notes")
    write_manifest(manifest, path / "notes.json")
    others = [sentence(1000 + number) for number in range(40)]
    trained = [row.text for row in manifest.examples if row.split == "train"]
    write(path / "clean.jsonl", others)
    write(path / "leaky.jsonl", others + trained[:20])
    write(path / "data.jsonl", [row.text for row in manifest.examples])
    write(path / "prompts.jsonl", [row.prompt for row in manifest.examples])
    return path


def write(path: Path, texts: list[str]) -> None:
    path.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))


@pytest.fixture(scope="module")
def report(folder):
    return sa.audit(
        [str(folder / "leaky.jsonl"), f"other={folder / 'clean.jsonl'}"],
        folder / "notes.json",
        audits="generated",
        output=folder / "report",
        formats=["md", "csv", "html", "latex", "named"],
        progress=False,
    )


def test_a_file_takes_the_place_of_a_checkpoint(report, folder):
    assert [facts.name for facts in report.checkpoints] == ["leaky", "other"]
    states = {state.name: state.state for state in report.states}
    assert states == {"leaky": "LEAKS", "other": "NO LEAK FOUND"}
    # Attacks on models are no part of it.
    assert {tried.audit for state in report.states for tried in state.tried} == {
        "generated"
    }
    rates = {
        row.checkpoint: row.value
        for row in report.results
        if row.metric == "passage_rate" and row.group == "pooled"
    }
    assert rates == {"leaky": pytest.approx(20 / 30), "other": 0}
    assert command_line(["gate", str(folder / "report"), "--quiet"]) == 1


def test_persons_are_not_asked_of_a_report_on_files(report, folder, capsys):
    clean = next(state for state in report.states if state.name == "other")
    assert "spark-audit persons" not in clean.outcomes
    assert command_line(["persons", str(folder / "report")]) == 2
    error = capsys.readouterr().err
    # No audit of models can be run into its folder.
    assert "--format named" in error
    assert "spark-audit mia" not in error


def test_a_file_without_a_finding_is_not_called_empty(report):
    (clean,) = (
        consequence
        for consequence in main_consequences(report.states)
        if consequence.state == "NO LEAK FOUND"
    )
    assert clean.names == ("other",)
    assert clean.sentence.startswith(render("audit.generated.nothing"))
    assert render("glance.nothing_found") not in clean.sentence


def test_an_effect_with_its_own_unit_has_no_scale_of_another(report):
    scale = render("audit.generated.scale")
    lines = {finding.unit: finding.figures for finding in report.findings}
    assert f"similarity] {scale}" not in lines["similarity"]
    assert scale in lines["points"]


def test_what_was_found_is_listed_for_the_owner_alone(report, folder):
    path = folder / "report" / "tables" / "named_found.csv"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    header, *lines = path.read_text().splitlines()
    assert header == "checkpoint,text,what,row,start,type,words"
    manifest = sa.read_manifest(folder / "notes.json")
    copied = sorted(row.id for row in manifest.examples if row.split == "train")[:20]
    listed = [line.split(",") for line in lines]
    assert sorted(row for *_, what, row, _, _, _ in listed if what == "passage") == (
        copied
    )
    for _, text, what, row, start, *_ in listed:
        # The texts behind the forty others are the copies, in their order.
        assert int(text) == 41 + copied.index(row)
        if what == "identifier":
            assert manifest.by_id[row].spans[0].start == int(start)


def test_no_identifier_stands_in_any_file_of_the_report(report, folder):
    secrets = [row.text[span.start : span.end] for row in rows() for span in row.spans]
    files = [path for path in (folder / "report").rglob("*") if path.is_file()]
    assert len(files) > 8
    for path in files:
        content = path.read_bytes()
        assert not any(secret.encode() in content for secret in secrets), path


def test_a_report_is_rendered_and_verified_from_its_evidence(report, folder, capsys):
    output = str(folder / "report")
    assert command_line(["report", output, "--format", "csv", "--quiet"]) == 0
    manifest = str(folder / "notes.json")
    assert command_line(["verify", output, "--manifest", manifest]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("files", "options", "words"),
    [
        (["data.jsonl"], [], "the data itself"),
        (["prompts.jsonl"], [], "the data itself"),
        (["none.jsonl"], [], "none.jsonl"),
        (["base=clean.jsonl"], [], "reserved"),
        (["clean.jsonl", "x=clean.jsonl"], [], "twice"),
        (["clean.jsonl"], ["--field", "body"], "columns: text"),
        (["clean.jsonl"], ["--through", "nowhere"], "nowhere"),
        (["clean.jsonl"], ["--passage-words", "1"], "--passage-words"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(
    files, options, words, folder, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    typed = ["generated", *files, "--manifest", "notes.json", "-o", "refused", *options]
    assert command_line(typed) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1
    assert not (folder / "refused").exists()


def test_a_manifest_without_a_side_is_refused(folder, tmp_path):
    manifest = sa.read_manifest(folder / "notes.json")
    for split, words in (("train", "held-out rows"), ("test", "trained rows")):
        content = manifest.model_dump(mode="json")
        for row in content["examples"]:
            row["split"] = split
        content["membership"] |= {"members": [], "non_members": []}
        with pytest.raises(InputError, match=words):
            sa.audit(
                str(folder / "clean.jsonl"),
                seal(content),
                audits="generated",
                output=tmp_path / "report",
            )


def test_files_are_audited_by_themselves_and_without_options_of_models(
    folder, tmp_path
):
    for audits, options, words in (
        (["generated", "mia"], {}, "mia"),
        ("generated", {"base": "models/base"}, "--base|base="),
        ("generated", {"limit": 5}, "limit"),
    ):
        with pytest.raises(InputError, match=words):
            sa.audit(
                str(folder / "clean.jsonl"),
                folder / "notes.json",
                audits=audits,
                output=tmp_path / "report",
                **options,
            )


def test_a_base_is_trained_on_the_texts_and_its_files_stay(tiny_base, folder):
    texts = [sentence(number) for number in range(8)]
    before = open_checkpoint(str(tiny_base), device="cpu").model
    through = Through(base=str(tiny_base), steps=1, device="cpu")
    after = trained_model(through, texts, seed=0)
    assert before is not None
    changed = {
        name
        for name, weight in before.named_parameters()
        if not torch.equal(weight, after.get_parameter(name))
    }
    # Adapters on all linear layers but the head, merged.
    assert changed
    assert all("proj" in name for name in changed)
    untouched = open_checkpoint(str(tiny_base), device="cpu").model
    assert untouched is not None
    for name, weight in before.named_parameters():
        assert torch.equal(weight, untouched.get_parameter(name))


@pytest.mark.slow
def test_what_comes_through_is_a_second_report_of_the_trained_model(
    tiny_base, folder, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    typed = ["generated", "leaky.jsonl", "--manifest", "notes.json", "-o", "both"]
    typed += ["--through", str(tiny_base), "--through-steps", "2", "--device", "cpu"]
    assert command_line(typed) == 0
    capsys.readouterr()
    second = sa.read_report(folder / "both-through")
    assert {facts.name for facts in second.checkpoints} == {"base", "leaky"}
    assert {"matched", "mia", "extract"} <= {row.audit for row in second.results}
