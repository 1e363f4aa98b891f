"""Requests to forget rows, errors on them, and what readers are told in notes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audited import audited, made
from made_reports import figure, made_report

from spark_audit.audits.claims import corrected
from spark_audit.errors import InputError
from spark_audit.manifest.content import seal
from spark_audit.manifest.schema import Manifest
from spark_audit.provenance import seed_for
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.gate.judge import check
from spark_audit.report.gate.rules import parse_rule
from spark_audit.report.tables import tables
from spark_audit.results import AuditResult, Finding, Guard, Report
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.sentences import render

PERSON = "kaja.okonjo97@brieftaube.example"
"""An identifier, which may be the name of a file or a mistyped value."""

N_TRAINED = 12


class Scene:
    """A small manifest whose rows move by chance, and all alike."""

    def __init__(self, case: Any) -> None:
        self.case = case
        self.manifest: Manifest = case.manifest

    def tables(self, *names: str) -> Mapping[str, Any]:
        def moved(name: str) -> Any:
            return lambda key, nll: nll + 0.01 * (seed_for(1, name, key) % 100)

        return self.case.tables(base=lambda _, nll: nll, **{n: moved(n) for n in names})

    def audited(self, *forget: str, **options: Any) -> AuditResult:
        tables = self.tables("before", "after")
        options = {"forget": forget, "before": "before", **options}
        return audited("erasure", tables, self.manifest, **options)

    def problem(self, *forget: str, **options: Any) -> str:
        """The error on requests."""
        audit = made("erasure", {"forget": forget, "before": "before", **options})
        with pytest.raises(InputError) as caught:
            audit.check_manifest(self.manifest)
        return str(caught.value)


@pytest.fixture(scope="module")
def scene(make_case: Any) -> Scene:
    return Scene(make_case(sources=N_TRAINED, tests=8, tokens=50))


def listed(folder: Path, name: str, *ids: str) -> str:
    """The path of a file that lists ids."""
    file = folder / name
    file.write_text("\n".join(ids))
    return str(file)


IDS = [f"e{number:03d}-0" for number in range(N_TRAINED)]


# what names requests


def test_a_report_names_requests_by_number_and_no_file(scene, tmp_path):
    forget = (
        listed(tmp_path, f"{PERSON}.txt", *IDS[:3]),
        listed(tmp_path, "okonjo.txt", *IDS[3:5]),
        "task=fomc",
        "stage=1",
    )
    result = scene.audited(*forget, order="yelp,fomc")
    records = [r for r in result.tables["erasure_rows"] if r["side"] == "forget"]
    assert [record["request"] for record in records] == [
        "request 1, from a file",
        "request 2, from a file",
        "request 3, task=fomc",
        "request 4, stage=1",
    ]
    assert "okonjo" not in repr((result.tables, result.findings, result.guards))


@pytest.mark.parametrize(
    "command",
    [
        ["--forget", f"{PERSON}.txt", "runs/okonjo.txt", "task=qa", "--jobs", "1"],
        [f"--forget=runs/{PERSON}.txt", "--forget", "okonjo.txt", "--jobs", "1"],
    ],
)
def test_shared_commands_and_settings_name_no_file_of_a_request(command):
    forget = [f"runs/{PERSON}.txt", "okonjo.txt", "task=qa"]
    report = made_report(
        "a",
        command=["spark-audit", "erasure", *command],
        settings={"erasure.forget": forget, "erasure.before": "before"},
    )
    shared = disclosed(report)
    assert "okonjo" not in repr((shared.command, shared.settings))
    assert shared.command[-2:] == ["--jobs", "1"]
    assert ("task=qa" in shared.command) == ("task=qa" in command)
    assert shared.settings["erasure.forget"][2] == "task=qa"
    assert shared.settings["erasure.before"] == "before"
    # The owner's report has them.
    assert report.settings["erasure.forget"] == forget


# errors


@pytest.mark.parametrize(
    "value",
    [PERSON, f"task={PERSON}", f"stage={PERSON}", "+49 170 1234567", "jane doe"],
)
def test_an_error_does_not_repeat_what_may_be_an_identifier(scene, tmp_path, value):
    first = listed(tmp_path, "first.txt", IDS[0])
    problem = scene.problem(first, value)
    assert value.rpartition("=")[2] not in problem
    assert "--forget, value 2: " in problem


@pytest.mark.parametrize("content", ["", "nobody", "e012-0", "\udcff"])
def test_a_file_is_named_by_its_path_unless_that_holds_an_identifier(
    scene, tmp_path, content
):
    for name in ("bad.txt", f"{PERSON}.txt"):
        (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    assert f"{tmp_path}/bad.txt: " in scene.problem(str(tmp_path / "bad.txt"))

    problem = scene.problem(str(tmp_path / f"{PERSON}.txt"))
    assert PERSON not in problem
    assert "--forget, value 1: " in problem


def test_an_error_on_unknown_ids_says_where_ids_stand(scene, tmp_path):
    problem = scene.problem(listed(tmp_path, "bad.txt", IDS[0], "nobody"))
    fields = Manifest.model_fields["examples"].annotation.__args__[0].model_fields
    for field in ("id", "source_id", "cluster"):
        assert field in fields
        assert f"`{field}`" in problem
    # This command writes texts of members of `mia`, and no source.
    assert "manifest rows" not in problem


@pytest.mark.parametrize(
    ("order", "stages"), [("fomc", "is 1 stage;"), ("fomc,yelp", "are 2 stages;")]
)
def test_a_stage_that_there_is_not_is_refused_with_their_number(scene, order, stages):
    assert f"there {stages}" in scene.problem("stage=3", order=order)


def test_a_row_counts_for_the_first_request_and_one_without_rows_is_refused(
    scene, tmp_path
):
    first = listed(tmp_path, "first.txt", *IDS[:3])
    second = listed(tmp_path, "second.txt", "s002", "s003")
    result = scene.audited(first, second)
    counts = {
        record["request"]: record["rows"] for record in result.tables["erasure_rows"]
    }
    assert counts["request 1, from a file"] == 3
    assert counts["request 2, from a file"] == 1

    again = listed(tmp_path, "again.txt", "s001", IDS[2])
    assert f"{again}: " in scene.problem(first, again)


# figures that need a note


def with_responses(manifest: Manifest, n_tokens: int) -> Manifest:
    """The manifest, with the last tokens of each prompt as its response."""
    content = manifest.model_dump(mode="json")
    for example in content["examples"]:
        text = example["prompt"] + example["response"]
        start = len(text) - n_tokens
        places = {"response_start": start, "response_token": start}
        example |= {key: place for key, place in places.items() if key in example}
        example |= {"prompt": text[:start], "response": text[start:]}
    return seal(content)


def all_first(case: Any) -> dict[Pass, TokenTable]:
    """A model of which every token is the first guess."""
    items = []
    for key, nll in case.reference.items():
        position = np.arange(1, len(nll), dtype=np.int32)
        columns = {
            "nll": nll[1:].astype(np.float32),
            "rank_lo": np.ones(len(position), np.int32),
            "ties": np.zeros(len(position), np.int32),
        }
        items.append((key, position, columns))
    return {Pass(): TokenTable.from_items(items)}


@pytest.mark.parametrize("n_tokens", [1, 4, 5])
def test_scores_of_short_responses_have_a_note_and_those_of_others_none(
    scene, tmp_path, n_tokens
):
    forget = (listed(tmp_path, "forget.txt", *IDS[:6]),)
    scored = {name: all_first(scene.case) for name in ("base", "before", "after")}
    manifest = with_responses(scene.manifest, n_tokens)
    result = audited("erasure", scored, manifest, forget=forget, before="before")

    scores_of_field = [
        row
        for row in result.results
        if row.metric in ("exact_memorisation", "extraction_strength")
        and row.value is not None
    ]
    assert {row.variant for row in scores_of_field} == {
        "forget",
        "never-trained",
        "retained",
    }
    is_short = n_tokens < 5
    assert all(bool(row.note) == is_short for row in scores_of_field)
    assert all(
        (f"(median {n_tokens})" in row.note) == is_short for row in scores_of_field
    )


def test_a_change_names_the_model_that_it_is_since(scene, tmp_path):
    forget = (listed(tmp_path, "forget.txt", *IDS[:6]),)
    scored = scene.tables("before", "after", "again")
    options = {"forget": forget, "before": "before", "retrained": "again"}
    result = audited("erasure", scored, scene.manifest, **options)
    notes = {
        (row.checkpoint, row.note) for row in result.results if row.metric == "change"
    }
    assert notes == {
        ("before", "since again"),
        ("after", "since again"),
        ("again", "since base"),
    }


def test_notes_on_such_figures_stand_under_their_table_once_each():
    def noted(name: str, metric: str, note: str) -> Any:
        return figure(name, f"erasure|{metric}|forget", note=note)

    rows = [
        noted("before", "change", "since again"),
        noted("after", "change", "since again"),
        noted("again", "change", "since base"),
        noted("after", "exact_memorisation", "few tokens"),
        noted("after", "extraction_strength", "few tokens"),
        # Notes on others stand in the CSV.
        noted("after", "cost", "unremarkable"),
    ]
    report = made_report("before", "after", "again", results=rows)
    (table,) = tables(report)
    assert len(table.remarks) == 3
    (since_again,) = [text for text in table.remarks if "since again" in text]
    assert since_again.endswith("before, after")
    (few,) = [text for text in table.remarks if "few tokens" in text]
    assert "exact memorisation and extraction strength" in few


# words of reports


def report_of(*names: str, guards: tuple[Guard, ...] = ()) -> Report:
    """A report in which nothing remains: verdicts on originals, none on copies."""
    rows = {}
    findings = []
    for name in names:
        row = figure(name, "erasure|remaining|row", 0.0, unit="nats", no_effect=0.0)
        rows[name] = row
        key = "copy_nothing" if "+" in name else "cannot_tell"
        key = "before_remembers" if name.startswith("before") else key
        facts = {"remaining": row, "forget": row, "held_out": row, "before": row}
        finding = Finding.on(row, "nothing_shown", f"erasure.{key}", facts=facts, p=0.9)
        findings.append(finding)
    return made_report(
        "base",
        *names,
        results=list(rows.values()),
        findings=corrected(findings),
        guards=list(guards),
    )


def test_a_check_that_warns_is_named_by_what_happened():
    """Its name asks for the opposite."""
    warning = Guard(
        name="erasure_unchanged",
        checkpoint="after",
        passed=None,
        says="guard.erasure_unchanged",
        facts={"name": "after", "before": "before"},
    )
    checks = report_of("before", "after", guards=(warning,)).glance.checks
    assert render("warned.erasure_unchanged", names="after") in checks
    assert warning.title not in checks


def test_the_next_step_is_no_relearning_where_that_was_done():
    advice = render("next.relearn")
    assert advice in report_of("before", "after").glance.next_step
    relearned = report_of("before", "before+relearn", "after", "after+relearn")
    assert "--relearn" not in relearned.glance.next_step


def test_the_gate_leaves_copies_out_as_copies():
    report = report_of("before", "before+relearn", "after", "after+relearn")
    outcomes = check(report, [parse_rule("erasure = REMEMBERED")])
    details = {o.checkpoint: o.detail for o in outcomes if o.state == "left_out"}
    assert details == {
        "base": render("gate.without_verdict"),
        "before": render("gate.without_verdict"),
        "before+relearn": render("gate.copy_without_verdict"),
        "after+relearn": render("gate.copy_without_verdict"),
    }


def test_sizes_of_this_audit_are_of_rows_to_forget():
    """A retrained model was not trained on them."""
    (finding,) = report_of("after").findings
    sizes = render("audit.erasure.sides", trained=12, held_out=12)
    assert sizes in finding.figures
    usual_sizes = render("matrix.figures.sides", trained=12, held_out=12)
    assert usual_sizes not in finding.figures


@pytest.mark.parametrize("is_relearned", [True, False])
def test_a_broken_model_is_to_be_relearned_unless_it_was(scene, tmp_path, is_relearned):
    names = ["before", "after", *(["after+relearn"] if is_relearned else [])]
    scored = dict(scene.tables(*names))
    scored |= scene.case.tables(after=lambda _, nll: nll + 20.0)
    forget = (listed(tmp_path, "forget.txt", *IDS[:6]),)
    result = audited("erasure", scored, scene.manifest, forget=forget, before="before")
    (broken,) = [f for f in result.findings if f.checkpoint == "after"]
    assert broken.verdict == "BROKEN"
    remark = "broken_relearned" if is_relearned else "broken_relearn"
    assert broken.further == [f"erasure.{remark}"]
    assert "None" not in broken.sentence
