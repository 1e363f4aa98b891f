"""Records of Every Eval Ever: what its datastore asks for, checked without it.

Where the package `every_eval_ever` is installed, its own validator reads them, too.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from made_reports import TEST, checkpoint, figure, made_report, manifest_facts, said

from spark_audit.audits import about, audit_names
from spark_audit.cli.main import run as command_line
from spark_audit.files import check_links
from spark_audit.report.folder import read_report, write_report
from spark_audit.report.formats import REPORT_FOLDERS
from spark_audit.report.writers.eval_records import STATES_BY_LEVEL
from spark_audit.results import Report
from spark_audit.results.findings import Claim

UUID4 = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"

MEMORY = "spark-audit.matched.memory"

# Whether a lower figure is better for the people in the rows; of accuracy, for users.
IS_LOWER_BETTER = {
    "matched.memory": False,
    "matched.delta_sel": False,
    "matched.did": False,
    "rank.top1_memory": True,
    "canary.exposure_mean": True,
    "twins.rise": True,
    "mia.auc": True,
    "extract.greedy_rate": True,
    "passages.passage_rate": True,
    "generated.identifier_rate": True,
    "utility.last": False,
    "series.auc": True,
    "erasure.remaining": False,
}


def finding(name: str, claim: Claim) -> Any:
    return said("matched", name, claim, f"Of {name}.", **TEST)


@pytest.fixture
def report() -> Report:
    return made_report(
        *("base", "mine", "plain"),
        versions={"spark-audit": "0.1.0", "torch": "2.13.0"},
        manifest=manifest_facts("clinic"),
        findings=[finding("mine", "memory"), finding("plain", "nothing_shown")],
        results=[
            figure("base", "matched|memory", -0.01, unit="nats", clusters=60),
            figure("mine", "matched|memory", -0.25, unit="nats", clusters=60),
            figure("mine", "extract|greedy_rate", 0.5, clusters=80, at_most=0.75),
            figure("mine", "mia|auc|loss", 0.625, no_effect=0.5, clusters=200),
            figure("mine", "utility|last", 0.5, clusters=100),
            figure("plain", "matched|memory", None),
            figure("plain", "extract|greedy_rate", 0.5, clusters=3),
        ],
        contrasts=[
            figure("mine", "extract|greedy_rate", 0.25, baseline="base", clusters=80),
            figure("mine", "matched|did", 0.5, baseline="plain", clusters=60),
        ],
    )


def records(folder: Path) -> dict[str, Any]:
    """Name of the model -> its record."""
    by_name = {}
    for path in folder.glob("eee/data/*/*/*/*.json"):
        record = json.loads(path.read_text(encoding="utf-8"), parse_constant=float)
        by_name[record["model_info"]["name"]] = record
    return by_name


def results_of(record: dict[str, Any]) -> dict[str, Any]:
    return {
        result["evaluation_result_id"]: result
        for result in record["evaluation_results"]
    }


def check_as_the_datastore_does(path: Path) -> None:
    """What `every_eval_ever validate` refuses: path, ranges, texts, finite numbers."""
    record = json.loads(path.read_text(encoding="utf-8"), parse_constant=math.sqrt)
    data, collection, developer, model, name = path.parts[-5:]
    assert data == "data"
    assert re.fullmatch(rf"{UUID4}\.json", name)
    assert record["model_info"]["id"] == f"{developer}/{model}"
    for part in (collection, developer, model):
        assert part != "data"
        assert not re.search(r'[<>:"\\|?*\x00-\x1f]|[. ]$', part)

    for key in ("schema_version", "evaluation_id", "retrieved_timestamp"):
        assert isinstance(record[key], str)
    assert record["retrieved_timestamp"].isdigit()
    source = record["source_metadata"]
    assert source["source_type"] == "evaluation_run"
    assert source["evaluator_relationship"] == "other"
    assert {"name", "version"} <= record["eval_library"].keys()
    details = record["model_info"]["additional_details"]
    assert details["deployment_type"] in ("self_deployed", "unknown")
    assert details["model_availability"] == "unknown"

    for result in record["evaluation_results"]:
        config = result["metric_config"]
        score = result["score_details"]["score"]
        assert isinstance(config["lower_is_better"], bool)
        assert {"dataset_name", "source_type"} <= result["source_data"].keys()
        if config["score_type"] == "levels":
            assert config["has_unknown_level"]
            assert -1 <= score < len(config["level_names"])
            continue
        assert float(config["min_score"]) <= score <= float(config["max_score"])
        interval = result["score_details"]["uncertainty"]["confidence_interval"]
        assert interval["lower"] <= score <= interval["upper"]
        for texts in (details, result["score_details"]["details"]):
            assert all(isinstance(text, str) for text in texts.values())


def test_every_model_has_a_record_that_the_datastore_takes(report, tmp_path):
    written = write_report(report, tmp_path, formats=["eee"])
    assert len(written) == 2  # none of the base
    for path in written:
        check_as_the_datastore_does(path)


def test_the_validator_of_the_datastore_passes_them(report, tmp_path):
    validate = pytest.importorskip("every_eval_ever.validator.validate")
    write_report(report, tmp_path, formats=["eee"])
    assert validate.main([str(tmp_path / "eee/data/*/*/*/*.json")]) == 0


def test_figures_have_their_limits_range_and_direction(report, tmp_path):
    write_report(report, tmp_path, formats=["eee"])
    results = results_of(records(tmp_path)["mine"])
    assert {*results} == {
        "spark-audit.state",
        MEMORY,
        "spark-audit.matched.did",
        "spark-audit.extract.greedy_rate",
        "spark-audit.mia.auc.loss",
        "spark-audit.utility.last",
    }
    memory = results[MEMORY]
    assert memory["score_details"]["score"] == -0.24  # rounded as in shared files
    assert memory["score_details"]["uncertainty"] == {
        "confidence_interval": {
            "lower": -0.38,
            "upper": 0.0,
            "confidence_level": 0.95,
            "method": "jackknife-t",
        },
        "num_samples": 60,
    }
    assert memory["metric_config"]["min_score"] == "-Infinity"
    assert memory["metric_config"]["metric_unit"] == "nats"

    # The rate itself and not its difference from the base; names that others know.
    rate = results["spark-audit.extract.greedy_rate"]
    assert rate["score_details"]["score"] == 0.5
    assert rate["score_details"]["details"]["at_most"] == "0.75"
    assert rate["metric_config"]["max_score"] == 1.0
    ids = {name: one["metric_config"]["metric_id"] for name, one in results.items()}
    assert ids["spark-audit.mia.auc.loss"] == "auroc"
    assert ids["spark-audit.utility.last"] == "accuracy"
    did = results["spark-audit.matched.did"]["score_details"]["details"]
    assert did["baseline"] == "plain"
    assert did["family"] == "exploratory"

    # Memory is claimed by a finding: its figure is not called exploratory.
    memory = results[MEMORY]["score_details"]["details"]
    assert "family" not in memory


def test_every_main_figure_of_every_audit_has_the_right_direction(tmp_path):
    rows = []
    for audit in audit_names():
        for metric in about(audit).metrics:
            for variant in metric.glance:
                place = f"{audit}|{metric.name}|{variant.replace('*', 'loss')}"
                rows.append(figure("mine", place, 0.5, clusters=900))
    write_report(made_report("mine", results=rows), tmp_path, formats=["eee"])

    directions = {}
    for name, result in results_of(records(tmp_path)["mine"]).items():
        if result["metric_config"]["score_type"] == "continuous":
            figure_name = ".".join(name.split(".")[1:3])
            directions[figure_name] = result["metric_config"]["lower_is_better"]
    assert directions == IS_LOWER_BETTER


def test_states_are_levels_and_what_was_not_tested_is_unknown(report, tmp_path):
    write_report(report, tmp_path, formats=["eee"])
    by_name = records(tmp_path)
    for name, state in (("mine", "LEAKS"), ("plain", "NO LEAK FOUND")):
        result = results_of(by_name[name])["spark-audit.state"]
        assert result["score_details"]["score"] == STATES_BY_LEVEL.index(state)
        assert result["metric_config"]["lower_is_better"] is False

    untested = finding("mine", "not_tested").model_copy(update={"p": None})
    bare = made_report("mine", findings=[untested])
    write_report(bare, tmp_path / "bare", formats=["eee"])
    (result,) = records(tmp_path / "bare")["mine"]["evaluation_results"]
    assert result["score_details"]["score"] == -1


def test_what_is_missing_or_withheld_is_counted_and_not_written(report, tmp_path):
    write_report(report, tmp_path, formats=["eee"])
    plain = records(tmp_path)["plain"]
    assert {*results_of(plain)} == {"spark-audit.state"}
    left_out = plain["source_metadata"]["additional_details"]["figures_left_out"]
    assert left_out == "2"


@pytest.mark.parametrize(
    ("source", "model_id"),
    [
        ("runs/mine", "local/a__b_c"),
        ("hf:lab/net", "lab/net"),
        ("hf:lab/net@main", "lab/net"),
    ],
)
def test_a_model_of_the_hub_has_its_own_id(source, model_id, tmp_path):
    facts = checkpoint("a: b|c", source=source)
    row = figure(facts.name, "utility|last", 0.5)
    report = made_report(checkpoints=[facts], results=[row])
    (path,) = write_report(report, tmp_path, formats=["eee"])
    check_as_the_datastore_does(path)
    record = records(tmp_path)["a: b|c"]
    assert record["model_info"]["id"] == model_id
    assert "a__b_c" in record["evaluation_id"]


@pytest.mark.parametrize("name", ["data", "AUX", "con.2", "...", "unknown"])
def test_a_reserved_name_is_no_folder(name, tmp_path):
    report = made_report(name, results=[figure(name, "utility|last", 0.5)])
    (path,) = write_report(report, tmp_path, formats=["eee"])
    check_as_the_datastore_does(path)
    assert path.parent.name == f"_{name}".rstrip(".")


def test_a_later_report_replaces_the_records_and_verify_knows_them(report, tmp_path):
    write_report(report, tmp_path, formats=["json", "eee"])
    before = read_report(tmp_path).files["eee"]
    later = report.model_copy(update={"created": "2026-02-01T00:00:00+00:00"})
    write_report(later, tmp_path, formats=["json"])
    assert read_report(tmp_path).files["eee"] == before
    files = [path for path in (tmp_path / "eee").rglob("*") if path.is_file()]
    assert sorted(path.relative_to(tmp_path).as_posix() for path in files) == before


def test_no_record_is_written_through_a_link(report, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = tmp_path / "report"
    write_report(report, folder, formats=["json"])
    (folder / "eee").mkdir()
    (folder / "eee" / "data").symlink_to(outside)
    assert command_line(["report", str(folder), "--format", "eee"]) == 2
    assert not [*outside.iterdir()]
    (folder / "eee" / "data").unlink()
    check_links(folder, *REPORT_FOLDERS)


@pytest.mark.parametrize(
    "name", ["eee/data/a/../b/" + "0" * 36 + ".json", "eee/x.json"]
)
def test_a_report_names_no_other_files_as_records(name, report):
    with pytest.raises(ValueError, match="none of a report's"):
        report.model_copy(update={"files": {"eee": [name]}})
