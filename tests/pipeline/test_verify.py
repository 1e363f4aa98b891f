"""A report is concluded anew, and what was changed since is named, to the byte."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from named import examples

from spark_audit.audits import NLL, Extraction, Matched
from spark_audit.checkpoints.open import Opening, open_checkpoint
from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.cli.main import run as command_line
from spark_audit.errors import SparkError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.pipeline.compare import verify
from spark_audit.pipeline.run import Request, run
from spark_audit.report.folder import read_report
from spark_audit.report.gate import (
    check,
    differences,
    parse_rule,
    read_rules,
    statement,
)

RULE = "nll.nll.pii.low > 99"


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_base, make_adapter) -> Path:
    """A folder with an adapter, a report on it, and a statement on that."""
    folder = tmp_path_factory.mktemp("place")
    make_adapter(folder / "lora")
    base = open_checkpoint(str(tiny_base), name="base")
    manifest = build_manifest(examples(), base, name="m", caliper=2.0)
    write_manifest(manifest, folder / "m.json")
    request = Request(
        audits=(Matched(placebo_draws=5, rematched=False), NLL(), Extraction()),
        ckpt=(f"ours={folder / 'lora'}",),
        base=str(tiny_base),
        baseline="base",
        manifest=folder / "m.json",
        output=folder / "report",
        loading=Loading(device="cpu"),
        formats=("csv", "md"),
    )
    run(request)
    gate = ["gate", str(folder / "report"), "--fail-if", RULE]
    # A guard fails: random weights know nothing.
    assert command_line([*gate, "--attest", str(folder / "a.json")]) == 1
    return folder


def wrong(folder: Path, **more: Any) -> dict[str, str]:
    return {what: said for what, said in verify(folder, **more) if said}


def test_a_report_follows_from_its_evidence(place, tiny_base, capsys):
    more = ["--attestation", str(place / "a.json"), "--base", str(tiny_base)]
    more += ["--ckpt", f"ours={place / 'lora'}", "--json"]
    assert command_line(["verify", str(place / "report"), *more]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(one["verified"] for one in found)
    named = {one["what"] for one in found}
    assert {"scores/spans.parquet", "conclusions of matched"} <= named
    assert {"weights of ours", str(place / "a.json")} <= named


def test_a_figure_or_claim_that_does_not_follow_is_found(place, tmp_path):
    shutil.copytree(place / "report", tmp_path / "r")
    path = tmp_path / "r" / "report.json"
    whole = json.loads(path.read_text())
    for part, change in (
        ("results", lambda one: one | {"value": (one["value"] or 0) + 1e-6}),
        ("findings", lambda one: one | {"claim": "nothing_shown", "family": "primary"}),
    ):
        at = next(
            i
            for i, one in enumerate(whole[part])
            if one["audit"] == "matched" and one.get("value") is not None
        )
        changed = [*whole[part]]
        changed[at] = change(changed[at])
        path.write_text(json.dumps(whole | {part: changed}))
        said = wrong(tmp_path / "r")
        assert [*said] == ["conclusions of matched"]
        assert part in said["conclusions of matched"]


def test_one_byte_is_found_wherever_it_is(place, tmp_path):
    folder = tmp_path / "r"
    shutil.copytree(place / "report", folder)
    report = read_report(folder)
    names = sorted({n for names in report.files.values() for n in names})
    names = [name for name in (*names, "report.json") if (folder / name).exists()]
    content, rules, allow = read_rules(place / "a.json")
    rng, found = random.Random(5), 0

    def stated() -> bytes:
        now = read_report(folder)
        judged = check(now, [parse_rule(one) for one in rules], allow_missing=allow)
        return statement(now, folder, judged, allow_missing=allow)

    assert stated() == content
    for trial in range(60):
        name = names[trial % len(names)]
        whole = (folder / name).read_bytes()
        changed = bytearray(whole)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(bytes(changed))
        try:
            found += name in differences(stated(), content)
        except SparkError:
            found += 1  # it is no report any more
        (folder / name).write_bytes(whole)
    assert found == 60
    for _ in range(60):
        changed = bytearray(content)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        (tmp_path / "b.json").write_bytes(bytes(changed))
        try:
            found += bool(wrong_statement(folder, tmp_path / "b.json", content))
        except SparkError:
            found += 1
    assert found == 120


def wrong_statement(folder: Path, path: Path, content: bytes) -> list[str]:
    """What a statement says otherwise, without concluding anew."""
    theirs, rules, allow = read_rules(path)
    now = read_report(folder)
    judged = check(now, [parse_rule(one) for one in rules], allow_missing=allow)
    made = statement(now, folder, judged, allow_missing=allow)
    assert made == content or made != theirs
    return differences(made, theirs)


def test_other_weights_are_found(place, tmp_path, tiny_base):
    shutil.copytree(place / "lora", tmp_path / "lora")
    path = tmp_path / "lora" / "adapter_model.safetensors"
    whole, rng = path.read_bytes(), random.Random(6)
    start = 8 + int.from_bytes(whole[:8], "little")
    known = read_report(place / "report").checkpoints[-1].weights_sha256
    for _ in range(5):
        changed = bytearray(whole)
        changed[rng.randrange(start, len(changed))] ^= 1
        path.write_bytes(bytes(changed))
        spec = Spec("ours", (str(tmp_path / "lora"),))
        *_, one = Opening([spec], Loading(base=str(tiny_base))).described
        assert one.weights_sha256 != known
    source = f"ours={tmp_path / 'lora'}"
    said = wrong(place / "report", ckpt=[source], base=str(tiny_base))
    assert said == {"weights of ours": "are others"}


def test_a_statement_is_an_in_toto_test_result_and_holds_no_row(place):
    whole = json.loads((place / "a.json").read_text())
    assert whole["_type"] == "https://in-toto.io/Statement/v1"
    assert whole["predicateType"].endswith("/test-result/v0.1")
    for one in whole["subject"]:
        assert len(one["digest"]["sha256"]) == 64
    predicate = whole["predicate"]
    assert predicate["result"] == "FAILED"
    tests = [*predicate["passedTests"], *predicate["failedTests"]]
    assert sorted(tests) == [f"base: {RULE}", f"ours: {RULE}"]
    text = (place / "a.json").read_text()
    report = read_report(place / "report")
    assert report.manifest.digest not in text
    assert report.manifest.key not in text
    assert not any(example.id in text for example in examples())
    texts = [e.text[s.start : s.end] for e in examples() for s in e.spans]
    assert texts
    assert not any(one in text for one in texts)


def test_what_is_no_statement_and_unknown_names_are_refused(place, tmp_path, capsys):
    (tmp_path / "x.json").write_text("{}")
    call = ["verify", str(place / "report")]
    assert command_line([*call, "--attestation", str(tmp_path / "x.json")]) == 2
    assert "is no statement on a report" in capsys.readouterr().err
    assert command_line([*call, "--ckpt", f"our={place / 'lora'}"]) == 2
    assert "did you mean 'ours'?" in capsys.readouterr().err
