"""A report by groups of rows, from the option to every file that is written of it."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_audit.audits import Extraction, Matched, Membership, about
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.specs import Loading
from spark_audit.cli.main import run as command_line
from spark_audit.data.examples import Example, Span
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.pipeline.run import Request, run
from spark_audit.report.audit_report import read_report
from spark_audit.report.folder import write_report
from spark_audit.results.findings import UNUSABLE

SIZES = {"north": 24, "south": 22, "east": 21, "atoll": 3}
FRAMES = ("Ticket {} is open.", "Order {} came late.", "Room {} has a view.")


def rows_of_groups() -> list[tuple[str, Example]]:
    """Trained and held-out rows, each with its group; every one its own source."""
    rows = []
    for group, size in SIZES.items():
        for split in ("train", "test"):
            for i in range(size):
                key = f"{group[0]}{split[:2]}{i:02d}"
                number = str(np.random.default_rng([i, *key.encode()]).integers(1e5))
                frame = FRAMES[i % len(FRAMES)]
                start = frame.index("{")
                span = Span(start, start + len(number), "ID", "injected")
                text = frame.format(number) + f" {key}"
                example = Example(key, "t", text, " ok", split, spans=(span,))
                rows.append((group, example))
    return rows


@pytest.fixture(scope="module")
def request_by_region(tmp_path_factory, tiny_base, make_adapter) -> Any:
    """A request of three audits by a column of a file, in a folder of its own."""
    folder = tmp_path_factory.mktemp("groups")
    rows = rows_of_groups()
    base = open_checkpoint(str(tiny_base), name="base")
    manifest = build_manifest(
        [example for _, example in rows], base, name="m", caliper=50.0
    )
    write_manifest(manifest, folder / "m.json")
    with (folder / "regions.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "region"])
        writer.writerows((example.id, group) for group, example in rows)
    make_adapter(folder / "lora")
    by = f"region={folder / 'regions.csv'}"
    few = {"placebo_draws": 0, "rematched": False, "replicates": 100}
    return Request(
        audits=(
            Matched(by=by, **few),
            Membership(by=by, blind_permutations=0),
            Extraction(by=by),
        ),
        checkpoints=(f"mine={folder / 'lora'}",),
        base=str(tiny_base),
        manifest=folder / "m.json",
        output=folder / "report",
        loading=Loading(device="cpu"),
        formats=("json",),
    )


@pytest.fixture(scope="module")
def folder(request_by_region) -> Path:
    run(request_by_region)
    return Path(request_by_region.output)


def test_each_audit_has_figures_of_the_same_groups_and_one_finding(folder):
    report = read_report(folder)
    figures = {"matched": "memory", "mia": "auc", "extract": "greedy_beyond"}
    for audit, metric in figures.items():
        rows = [
            row
            for row in report.results
            if (row.audit, row.metric, row.group_kind) == (audit, metric, "group")
            and row.checkpoint == "mine"
        ]
        groups = {row.group_value for row in rows}
        assert groups == {"north", "south", "other groups"}, audit
        assert all(row.clusters >= 5 for row in rows), audit

        (finding,) = [
            finding
            for finding in report.findings
            if finding.audit == audit and finding.group_kind == "group"
        ]
        assert finding.family == "primary"
        assert finding.p_adjusted is not None
        assert finding.sentence

        # This tiny model is broken, so that all is void and nothing is answered.
        labels = [answer.label for answer in about(audit).answers(report)]
        is_answered = any(label.endswith("by region") for label in labels)
        assert is_answered == (finding.status not in UNUSABLE)


def test_no_file_names_a_group_of_few_rows(folder, tmp_path):
    formats = ["html", "md", "csv", "latex", "json"]
    copy = tmp_path / "copy"
    write_report(read_report(folder), copy, formats=formats)
    texts = [path.read_text() for path in copy.rglob("*") if path.is_file()]
    assert any("north" in text for text in texts)
    assert not any("atoll" in text for text in texts)
    (latex,) = copy.rglob("matched_groups.tex")
    assert "north" in latex.read_text()
    (results,) = copy.rglob("results.csv")
    with results.open() as file:
        lines = list(csv.DictReader(file))
    groups = {line["group_value"] for line in lines if line["group_kind"] == "group"}
    assert groups == {"north", "south", "other groups"}


def test_a_frame_has_the_groups(folder):
    frame = read_report(folder).to_frame()
    of_groups = frame[(frame["group_kind"] == "group") & (frame["metric"] == "memory")]
    assert {*of_groups["group_value"]} == {"north", "south", "other groups"}


def test_it_is_verified_and_compared_from_its_evidence(
    request_by_region, folder, tmp_path
):
    assert command_line(["verify", str(folder)]) == 0
    content = json.loads((folder / "report.json").read_text())
    assert content["settings"]["matched.by"].startswith("region=")

    # Next to a report without groups, those of the first stay.
    without = replace(
        request_by_region,
        audits=(Matched(placebo_draws=0, rematched=False, replicates=100),),
        scores=folder,
        output=tmp_path / "without",
    )
    run(without)
    words = ["compare", str(folder), str(without.output), "--baseline", "base"]
    assert command_line([*words, "-o", str(tmp_path / "both")]) == 0
    groups = {row.group_value for row in read_report(tmp_path / "both").results}
    assert "north" in groups
